import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0004_set_aside_steps'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='is_planned',
            field=models.BooleanField(default=True),
        ),
        migrations.RunSQL(
            "UPDATE jobs_job SET is_planned = false "
            "WHERE status IN ('failing', 'restarting', 'failed')",
            migrations.RunSQL.noop,
        ),
        migrations.CreateModel(
            name='JobEvent',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('checkpoint.completed', 'Checkpoint Completed'), ('checkpoint.failed', 'Checkpoint Failed'), ('checkpoint.expired', 'Checkpoint Expired'), ('checkpoint.aborted', 'Checkpoint Aborted'), ('attempt.began', 'Attempt Began'), ('attempt.ended', 'Attempt Ended'), ('job.changed', 'Job Changed'), ('operation.ended', 'Operation Ended'), ('driver.lost', 'Driver Lost')], max_length=24)),
                ('at', models.DateTimeField()),
                ('planned', models.BooleanField()),
                ('reason', models.CharField(blank=True, max_length=64)),
                ('facts', models.JSONField(default=dict)),
                ('job', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='events', to='jobs.job')),
            ],
            options={
                'ordering': ['id'],
                'indexes': [models.Index(fields=['job', 'id'], name='job_event_order'), models.Index(fields=['at'], name='job_event_age')],
                'constraints': [models.CheckConstraint(condition=models.Q(('kind__in', ['checkpoint.completed', 'checkpoint.failed', 'checkpoint.expired', 'checkpoint.aborted', 'attempt.began', 'attempt.ended', 'job.changed', 'operation.ended', 'driver.lost'])), name='job_event_kind')],
            },
        ),
    ]
