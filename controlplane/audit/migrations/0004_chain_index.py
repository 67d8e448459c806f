from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # The log may be large: it is written while the index is built.

    dependencies = [("audit", "0003_chain")]

    operations = [
        AddIndexConcurrently(
            model_name="auditentry",
            index=models.Index(fields=["number"], name="audit_chain"),
        ),
    ]
