from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0020_worker_memory_limit")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="restored_local_bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
    ]
