"""Signals about jobs, sent inside the transaction that holds the job's lock.

Receivers run at once and raise to roll everything back.
"""

from django.dispatch import Signal

# The job's driver was lost or ended; it may be replaced. kwargs: job, driver, cause, and reason,
# the weir.protocol.lifecycle.FailureReason of the checkpoints under way.
driver_lost = Signal()
# The control plane, not the driver, moved the job to a final status. kwargs: job.
job_ended = Signal()
# A job that had ended is restarted; before its next driver is requested. kwargs: job.
job_reopened = Signal()
# May the job's next driver be launched? A receiver answers False while the end of the last one is
# still being settled; the next tick tries the launch again. kwargs: job.
launch_asked = Signal()
# A submission names a checkpoint or savepoint to start from. kwargs: uri. A receiver that knows it
# answers with its (job, number), that job locked; or refuses it.
restore_asked = Signal()
# A new job, which may start from a checkpoint, was created. kwargs: job.
job_created = Signal()
# The outputs of two jobs were compared. Receivers answer with further members of the result.
# kwargs: job, other (an id).
jobs_compared = Signal()
# An open operation reached its deadline or was overtaken. kwargs: operation.
operation_given_up = Signal()
