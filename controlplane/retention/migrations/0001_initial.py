from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="Tally",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=40)),
                ("place", models.CharField(blank=True, max_length=200)),
                ("removed", models.BigIntegerField(default=0)),
                ("removed_at", models.DateTimeField(null=True)),
                ("looked_at", models.DateTimeField(null=True)),
                ("counted_at", models.DateTimeField(null=True)),
                ("kept", models.BigIntegerField(null=True)),
                ("kept_bytes", models.BigIntegerField(null=True)),
                ("problem", models.TextField(blank=True)),
            ],
            options={
                "ordering": ["kind", "place"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("kind", "place"), name="tally_kind_and_place"
                    )
                ],
            },
        ),
    ]
