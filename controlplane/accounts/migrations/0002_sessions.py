import django.db.models.deletion
from django.conf import settings
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def end_earlier_sessions(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Delete the rows of Django's own session engine, which was used before; its table stays."""
    connection = schema_editor.connection
    with connection.cursor() as cursor:
        if "django_session" in connection.introspection.table_names(cursor):
            cursor.execute("DELETE FROM django_session")


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Session",
            fields=[
                (
                    "session_key",
                    models.CharField(
                        max_length=40,
                        primary_key=True,
                        serialize=False,
                        verbose_name="session key",
                    ),
                ),
                ("session_data", models.TextField(verbose_name="session data")),
                ("expire_date", models.DateTimeField(db_index=True, verbose_name="expire date")),
                ("browser", models.CharField(max_length=200)),
                ("began_at", models.DateTimeField()),
                ("used_at", models.DateTimeField()),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="sessions",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "session",
                "verbose_name_plural": "sessions",
                "abstract": False,
            },
        ),
        migrations.RunPython(end_earlier_sessions, migrations.RunPython.noop),
    ]
