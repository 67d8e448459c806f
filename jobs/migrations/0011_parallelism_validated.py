from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("jobs", "0010_parallelism_bound")]

    operations = [ValidateConstraint(model_name="operator", name="operator_parallelism")]
