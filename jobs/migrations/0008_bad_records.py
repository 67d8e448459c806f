from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_failed_attempts_removed")]

    operations = [
        migrations.AddField(
            model_name="subtask",
            name="bad_marks",
            field=models.JSONField(default=list),
        ),
    ]
