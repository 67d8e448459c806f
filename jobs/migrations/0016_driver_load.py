from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0015_worker_memory")]

    operations = [
        migrations.AddField(
            model_name="driver",
            name="load",
            field=models.JSONField(blank=True, db_default={}, default=dict),
        ),
    ]
