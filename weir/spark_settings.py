"""Spark's settings for each job of Weir, by whichever way its driver starts.

They stand in the properties file that the control plane gives to ``spark-submit``, and in the
context that library mode makes. What a job or the control plane sets itself takes their place.
"""

from typing import Final

from weir.spark_master import TASK_FAILURES_MAX

LOOPBACK: Final = "127.0.0.1"
SETTINGS: Final = {
    "spark.task.maxFailures": str(TASK_FAILURES_MAX),
    "spark.speculation": "false",
    "spark.python.worker.reuse": "false",
    "spark.ui.enabled": "false",
    "spark.locality.wait": "0s",
    # Between executors Spark sends nothing for a job but the code of its tasks. A new executor
    # takes it from any that has it: also from one that hangs, which it would await for two minutes.
    "spark.shuffle.io.connectionTimeout": "10s",
    "spark.shuffle.io.maxRetries": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.processTreeMetrics.enabled": "false",
}
# Slots get their keys over Spark's own connections; ``weir.spark.encryption`` has the reasons.
AUTHENTICATED: Final = {"spark.authenticate": "true"}
ENCRYPTED: Final = {
    **AUTHENTICATED,
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}
