from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models

KINDS = [
    ("submit", "Submit"),
    ("cancel", "Cancel"),
    ("checkpoint", "Checkpoint"),
    ("restart", "Restart"),
    ("savepoint", "Savepoint"),
    ("stop", "Stop"),
    ("rollback", "Rollback"),
    ("rescale", "Rescale"),
    ("upgrade", "Upgrade"),
    ("fork", "Fork"),
    ("discard", "Discard"),
    ("preview", "Preview"),
    ("compare", "Compare"),
]


class Migration(migrations.Migration):
    dependencies = [("jobs", "0011_parallelism_validated")]

    operations = [
        migrations.RemoveConstraint(model_name="operation", name="operation_kind"),
        migrations.AlterField(
            model_name="operation",
            name="kind",
            field=models.CharField(choices=KINDS, max_length=16),
        ),
        AddConstraintNotValid(
            model_name="operation",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", [kind for kind, _ in KINDS])),
                name="operation_kind",
            ),
        ),
    ]
