from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # Drivers go on reporting while the indices are built.

    dependencies = [("jobs", "0005_job_events")]

    operations = [
        AddIndexConcurrently(
            model_name="attempt",
            index=models.Index(fields=["ended_at", "id"], name="attempt_age"),
        ),
        AddIndexConcurrently(
            model_name="driver",
            index=models.Index(fields=["ended_at", "id"], name="driver_age"),
        ),
        AddIndexConcurrently(
            model_name="jobexception",
            index=models.Index(fields=["at", "id"], name="exception_age"),
        ),
    ]
