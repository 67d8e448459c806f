from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0014_labels_and_archive")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="memory_bytes",
            field=models.BigIntegerField(blank=True, null=True),
        ),
    ]
