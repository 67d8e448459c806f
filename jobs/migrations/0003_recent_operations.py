from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0002_what_subtasks_do"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name="operation",
            index=models.Index(
                fields=["job", "-ended_at", "-created_at", "id"], name="operation_recent"
            ),
        ),
    ]
