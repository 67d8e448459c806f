from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # Checkpoints are written while the index is built.

    dependencies = [("checkpoints", "0006_removed_checkpoints")]

    operations = [
        AddIndexConcurrently(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("has_details", True), ("status__in", ["aborted", "failed"])),
                fields=["job", "number"],
                name="checkpoint_failed_details",
            ),
        ),
    ]
