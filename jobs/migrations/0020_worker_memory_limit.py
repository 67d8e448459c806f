from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0019_attempt_gave_up")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="memory_limit_bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="worker",
            name="memory_limit_source",
            field=models.CharField(
                blank=True,
                choices=[("setting", "setting"), ("cgroup", "cgroup")],
                db_default="",
                default="",
                max_length=16,
            ),
        ),
    ]
