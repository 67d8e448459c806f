from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0008_bad_records")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="recovery_target_s",
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("recovery_target_s__gte", 0.001), ("recovery_target_s__lte", 2592000)
                ),
                name="job_recovery_target",
            ),
        ),
    ]
