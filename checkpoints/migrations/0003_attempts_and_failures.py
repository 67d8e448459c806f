from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("checkpoints", "0002_evidence"),
        ("jobs", "0003_recent_operations"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(fields=["job", "attempt", "number"], name="checkpoint_attempts"),
        ),
        migrations.AddIndex(
            model_name="checkpoint",
            index=models.Index(
                condition=models.Q(("status", "aborted")),
                fields=["job", "triggered_at"],
                name="checkpoint_failures",
            ),
        ),
    ]
