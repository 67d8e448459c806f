from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0018_activity")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="gave_up",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
