"""The Celery task of alerts. The next round does the work of a lost one."""

from celery import shared_task

from controlplane.alerts.evaluation import Evaluation

_evaluation = Evaluation()


# Acknowledged when it begins: beat sends the next round in a few seconds.
@shared_task(acks_late=False)
def evaluate() -> None:
    """Evaluate the rules on what has changed."""
    _evaluation.run()
