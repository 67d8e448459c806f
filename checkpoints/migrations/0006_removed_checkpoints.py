import django.db.models.deletion
from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0005_failures_index"),
        ("jobs", "0005_job_events"),
    ]

    operations = [
        migrations.CreateModel(
            name="RemovedCheckpoints",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="removed_checkpoints",
                        serialize=False,
                        to="jobs.job",
                    ),
                ),
                ("up_to", models.BigIntegerField(default=0)),
                ("totals", models.JSONField(default=dict)),
            ],
        ),
        ValidateConstraint(model_name="checkpoint", name="checkpoint_status"),
    ]
