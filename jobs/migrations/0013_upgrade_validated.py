from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0012_upgrade")]

    operations = [ValidateConstraint(model_name="operation", name="operation_kind")]
