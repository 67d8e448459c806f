from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0006_age_indexes")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="failed_attempts_removed",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
