from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("jobs", "0017_chain_samples")]

    operations = [
        AddIndexConcurrently(
            model_name="jobevent",
            index=models.Index(
                fields=["at", "id"],
                condition=~models.Q(kind="checkpoint.completed"),
                name="job_event_activity",
            ),
        ),
    ]
