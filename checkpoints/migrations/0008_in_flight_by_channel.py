import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('checkpoints', '0007_failed_details'),
    ]

    operations = [
        migrations.AddField(
            model_name='checkpoint',
            name='switched_count',
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='checkpoint',
            name='switched_ms',
            field=models.FloatField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name='checkpoint',
            name='unaligned_count',
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='gatealignment',
            name='in_flight',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), blank=True, null=True, size=None),
        ),
        migrations.AddField(
            model_name='subtaskack',
            name='in_flight_output_bytes',
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='subtaskack',
            name='switched',
            field=models.CharField(blank=True, choices=[('input', 'input'), ('output', 'output'), ('upstream', 'upstream')], db_default='', default='', max_length=8),
        ),
        migrations.AddField(
            model_name='subtaskack',
            name='switched_ms',
            field=models.FloatField(blank=True, null=True),
        ),
    ]
