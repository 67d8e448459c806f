from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0009_recovery_target")]

    operations = [
        migrations.RemoveConstraint(model_name="operator", name="operator_parallelism"),
        AddConstraintNotValid(
            model_name="operator",
            constraint=models.CheckConstraint(
                condition=models.Q(("parallelism__range", (1, 32_768))),
                name="operator_parallelism",
            ),
        ),
    ]
