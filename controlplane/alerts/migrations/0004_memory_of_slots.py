from typing import Any

from django.db import migrations, models

from controlplane.alerts import defaults

KINDS = [
    "checkpoint_age",
    "checkpoint_failures",
    "checkpoint_duration",
    "checkpoint_alignment",
    "state_growth",
    "job_failed",
    "restarts",
    "recovery_time",
    "operation_failed",
    "driver_silent",
    "subtask_silent",
    "back_pressure",
    "host_starved",
    "slot_memory",
    "bad_records",
    "event_time_lag",
]
CHOICES = [(kind, kind) for kind in KINDS]


def install(apps: Any, schema_editor: Any) -> None:
    """Store the rule of the new kind."""
    defaults.install(apps.get_model("alerts", "Rule").objects, ["slot_memory"])


class Migration(migrations.Migration):

    dependencies = [("alerts", "0003_hosts_and_bad_records")]

    operations = [
        migrations.RemoveConstraint(model_name="rule", name="rule_kind"),
        migrations.AlterField(
            model_name="rule", name="kind", field=models.CharField(choices=CHOICES, max_length=32)
        ),
        migrations.AlterField(
            model_name="alert", name="kind", field=models.CharField(choices=CHOICES, max_length=32)
        ),
        migrations.AddConstraint(
            model_name="rule",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", KINDS)), name="rule_kind"
            ),
        ),
        migrations.RunPython(install, migrations.RunPython.noop, elidable=False),
    ]
