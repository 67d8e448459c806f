from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models

# Until here all checkpoints without a manifest were aborted. Why a driver was replaced was not kept,
# so those that a restart ended stay failures.
FAILURES = """
    UPDATE checkpoints_checkpoint AS c
    SET status = CASE WHEN j.status IN ('finished', 'canceled') THEN 'aborted' ELSE 'failed' END,
        reason = CASE j.status
            WHEN 'finished' THEN 'job_finished'
            WHEN 'canceled' THEN 'job_canceled'
            ELSE c.reason
        END
    FROM jobs_job AS j
    WHERE j.id = c.job_id AND c.status = 'aborted'
        AND c.reason = 'checkpoint_coordinator_shutdown';
    UPDATE checkpoints_checkpoint SET status = 'failed'
    WHERE status = 'aborted' AND reason NOT IN (
        'checkpoint_subsumed', 'checkpoint_declined_task_closing', 'checkpoint_coordinator_suspend',
        'control_plane_away', 'job_finished', 'job_canceled'
    );
"""
BACK = """
    UPDATE checkpoints_checkpoint SET reason = CASE
        WHEN reason IN ('job_finished', 'job_canceled') THEN 'checkpoint_coordinator_shutdown'
        WHEN reason = 'job_stopped' THEN 'checkpoint_subsumed'
        ELSE 'job_failover'
    END
    WHERE status = 'aborted' AND reason IN (
        'job_finished', 'job_canceled', 'job_stopped', 'job_restarted', 'job_rescaled',
        'job_rolled_back', 'control_plane_stopped'
    );
    UPDATE checkpoints_checkpoint SET status = 'aborted' WHERE status = 'failed';
"""


class Migration(migrations.Migration):

    dependencies = [
        ('checkpoints', '0003_attempts_and_failures'),
        ('jobs', '0005_job_events'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='checkpoint',
            name='checkpoint_status',
        ),
        migrations.AlterField(
            model_name='checkpoint',
            name='reason',
            field=models.CharField(blank=True, choices=[('periodic_scheduler_shutdown', 'periodic_scheduler_shutdown'), ('too_many_checkpoint_requests', 'too_many_checkpoint_requests'), ('minimum_time_between_checkpoints', 'minimum_time_between_checkpoints'), ('not_all_required_tasks_running', 'not_all_required_tasks_running'), ('checkpoint_coordinator_shutdown', 'checkpoint_coordinator_shutdown'), ('io_exception', 'io_exception'), ('checkpoint_async_exception', 'checkpoint_async_exception'), ('checkpoint_expired', 'checkpoint_expired'), ('checkpoint_declined', 'checkpoint_declined'), ('finalize_checkpoint_failure', 'finalize_checkpoint_failure'), ('checkpoint_subsumed', 'checkpoint_subsumed'), ('checkpoint_declined_task_not_ready', 'checkpoint_declined_task_not_ready'), ('checkpoint_declined_task_closing', 'checkpoint_declined_task_closing'), ('checkpoint_declined_subsumed', 'checkpoint_declined_subsumed'), ('checkpoint_declined_on_cancellation_barrier', 'checkpoint_declined_on_cancellation_barrier'), ('checkpoint_coordinator_suspend', 'checkpoint_coordinator_suspend'), ('job_failover', 'job_failover'), ('task_failure', 'task_failure'), ('control_plane_away', 'control_plane_away'), ('job_finished', 'job_finished'), ('job_canceled', 'job_canceled'), ('job_stopped', 'job_stopped'), ('job_restarted', 'job_restarted'), ('job_rescaled', 'job_rescaled'), ('job_rolled_back', 'job_rolled_back'), ('control_plane_stopped', 'control_plane_stopped')], max_length=64),
        ),
        migrations.AlterField(
            model_name='checkpoint',
            name='status',
            field=models.CharField(choices=[('pending', 'pending'), ('finalizing', 'finalizing'), ('completed', 'completed'), ('failed', 'failed'), ('aborted', 'aborted'), ('subsumed', 'subsumed'), ('discarded', 'discarded')], max_length=16),
        ),
        migrations.RunSQL(FAILURES, BACK),
        AddConstraintNotValid(
            model_name='checkpoint',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ['pending', 'finalizing', 'completed', 'failed', 'aborted', 'subsumed', 'discarded'])), name='checkpoint_status'),
        ),
    ]
