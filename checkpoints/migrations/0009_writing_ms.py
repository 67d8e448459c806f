from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("checkpoints", "0008_in_flight_by_channel")]

    operations = [
        migrations.AddField(
            model_name="subtaskack",
            name="writing_ms",
            field=models.FloatField(blank=True, null=True),
        ),
    ]
