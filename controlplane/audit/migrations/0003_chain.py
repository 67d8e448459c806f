from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("audit", "0002_refusals_counted")]

    operations = [
        migrations.AddField(
            model_name="auditentry",
            name="number",
            field=models.BigIntegerField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="auditentry",
            name="digest",
            field=models.CharField(blank=True, default="", editable=False, max_length=64),
            preserve_default=False,
        ),
        migrations.CreateModel(
            name="AuditChain",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(default=1, primary_key=True, serialize=False),
                ),
                ("number", models.BigIntegerField(default=0)),
                ("digest", models.CharField(blank=True, max_length=64)),
                ("removed_number", models.BigIntegerField(default=0)),
                ("removed_digest", models.CharField(blank=True, max_length=64)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)), name="audit_chain_single"
                    )
                ],
            },
        ),
    ]
