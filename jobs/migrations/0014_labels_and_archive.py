from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_upgrade_validated")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="labels",
            field=models.JSONField(blank=True, default=dict),
        ),
        migrations.AddField(
            model_name="job",
            name="archived_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
