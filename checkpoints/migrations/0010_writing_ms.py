from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("checkpoints", "0009_last_subtask")]

    operations = [
        migrations.AddField(
            model_name="subtaskack",
            name="writing_ms",
            field=models.FloatField(blank=True, null=True),
        ),
    ]
