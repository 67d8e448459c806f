from typing import Any

from django.db import migrations

from controlplane.alerts import defaults


def install(apps: Any, schema_editor: Any) -> None:
    defaults.install(apps.get_model("alerts", "Rule").objects)


class Migration(migrations.Migration):

    dependencies = [("alerts", "0001_initial"), ("controlplane", "0001_initial")]

    operations = [migrations.RunPython(install, migrations.RunPython.noop, elidable=False)]
