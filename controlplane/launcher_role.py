"""The launcher's role in the database: jobs and checkpoints, and no accounts, tokens or sessions.

A launcher starts user code on its machine. Should user code get hold of its connection after all,
it could change jobs, but neither read password hashes, tokens and sessions nor give itself a role.
``weir_prepare`` grants the rights anew after each migration.
"""

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from psycopg2 import extensions, sql

# Apps whose rows the launcher reads and changes; of "controlplane", the clock's correction, of
# "retention" the tallies.
WORKED_ON = ("controlplane", "retention", "jobs", "checkpoints")
NAMED = {  # Columns that it may read; the values of secrets are encrypted.
    "accounts_user": ("id", "username"),
    "audit_auditentry": ("id",),
    "secrets_secret": ("name", "encrypted"),
}
ADDED_TO = ("audit_auditentry",)


def ensure_launcher_role(name: str, password: str) -> None:
    """Create or change the role, and grant it what a launcher needs. Idempotent.

    Raises:
        ImproperlyConfigured: The name is that of the role which owns the tables.
    """
    role = sql.Identifier(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, current_database()")
        owner, database = cursor.fetchone()
        if name == owner:
            raise ImproperlyConfigured(
                f"WEIR_LAUNCHER_ROLE={name} is the role that owns the tables; name another one"
            )
        # Hashed here: the server's log gets no password, should it log the statement.
        inner = connection.connection
        hashed = extensions.encrypt_password(password, name, inner, "scram-sha-256")
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name])
        verb = sql.SQL("ALTER" if cursor.fetchone() else "CREATE")
        for statement in (
            sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, role, sql.Literal(hashed)),
            sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(database), role),
            sql.SQL("GRANT USAGE ON SCHEMA public TO {}").format(role),
            sql.SQL("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {}").format(role),
            sql.SQL("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {}").format(role),
            sql.SQL("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {}").format(
                sql.SQL(", ").join(map(sql.Identifier, _worked_on())), role
            ),
            sql.SQL("GRANT INSERT ON {} TO {}").format(
                sql.SQL(", ").join(map(sql.Identifier, ADDED_TO)), role
            ),
            *(
                sql.SQL("GRANT SELECT ({}) ON {} TO {}").format(
                    sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(table), role
                )
                for table, columns in NAMED.items()
            ),
        ):
            cursor.execute(statement)


def _worked_on() -> list[str]:
    return [
        model._meta.db_table
        for app in WORKED_ON
        for model in apps.get_app_config(app).get_models(include_auto_created=True)
    ]
