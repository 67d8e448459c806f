from django.conf import settings
from typing import Any

from django.db import migrations, models

from controlplane.alerts import defaults


def install(apps: Any, schema_editor: Any) -> None:
    defaults.install(apps.get_model("alerts", "Rule").objects, "bad_records")


class Migration(migrations.Migration):

    dependencies = [
        ('alerts', '0002_default_rules'),
        ('deliveries', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='rule',
            name='rule_kind',
        ),
        migrations.AlterField(
            model_name='alert',
            name='kind',
            field=models.CharField(choices=[('checkpoint_age', 'checkpoint_age'), ('checkpoint_failures', 'checkpoint_failures'), ('checkpoint_duration', 'checkpoint_duration'), ('checkpoint_alignment', 'checkpoint_alignment'), ('state_growth', 'state_growth'), ('job_failed', 'job_failed'), ('restarts', 'restarts'), ('recovery_time', 'recovery_time'), ('operation_failed', 'operation_failed'), ('driver_silent', 'driver_silent'), ('subtask_silent', 'subtask_silent'), ('back_pressure', 'back_pressure'), ('bad_records', 'bad_records'), ('event_time_lag', 'event_time_lag')], max_length=32),
        ),
        migrations.AlterField(
            model_name='rule',
            name='kind',
            field=models.CharField(choices=[('checkpoint_age', 'checkpoint_age'), ('checkpoint_failures', 'checkpoint_failures'), ('checkpoint_duration', 'checkpoint_duration'), ('checkpoint_alignment', 'checkpoint_alignment'), ('state_growth', 'state_growth'), ('job_failed', 'job_failed'), ('restarts', 'restarts'), ('recovery_time', 'recovery_time'), ('operation_failed', 'operation_failed'), ('driver_silent', 'driver_silent'), ('subtask_silent', 'subtask_silent'), ('back_pressure', 'back_pressure'), ('bad_records', 'bad_records'), ('event_time_lag', 'event_time_lag')], max_length=32),
        ),
        migrations.AddConstraint(
            model_name='rule',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', ['checkpoint_age', 'checkpoint_failures', 'checkpoint_duration', 'checkpoint_alignment', 'state_growth', 'job_failed', 'restarts', 'recovery_time', 'operation_failed', 'driver_silent', 'subtask_silent', 'back_pressure', 'bad_records', 'event_time_lag'])), name='rule_kind'),
        ),
        migrations.RunPython(install, migrations.RunPython.noop, elidable=False),
    ]
