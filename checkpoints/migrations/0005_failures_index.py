from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # Checkpoints are written while the index is built.

    dependencies = [("checkpoints", "0004_planned_is_not_failed")]

    operations = [
        RemoveIndexConcurrently(model_name="checkpoint", name="checkpoint_failures"),
        AddIndexConcurrently(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("status", "failed")),
                fields=["job", "triggered_at"],
                name="checkpoint_failures",
            ),
        ),
    ]
