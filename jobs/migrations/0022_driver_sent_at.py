from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_restored_local_bytes")]

    operations = [
        migrations.AddField(
            model_name="driver",
            name="sent_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
