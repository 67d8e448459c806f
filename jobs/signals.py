"""What jobs say to whoever cares, inside the transaction that holds the job's lock.

Receivers run at once and raise to roll everything back.
"""

from django.dispatch import Signal

# The job's driver is gone; it may be replaced. kwargs: job, driver, cause.
driver_lost = Signal()
# The job reached a final status by a decision made here, not by its driver's word. kwargs: job.
job_ended = Signal()
# A job that had ended is wanted again; before its next driver is requested. kwargs: job.
job_reopened = Signal()
# May the job's next driver be launched? A receiver answers False while something of the last one
# is still being settled; the launch is tried again at the next tick. kwargs: job.
launch_asked = Signal()
# Somebody names a checkpoint or savepoint for a new job to begin with. kwargs: uri. A receiver that
# knows it answers whose it is, as (job, number), with that job locked; or refuses it.
restore_asked = Signal()
# A new job, which may begin with a checkpoint, was created. kwargs: job.
job_created = Signal()
# The outputs of two jobs were compared: what else is there to say? Receivers answer with further
# members of the result. kwargs: job, other (an id).
jobs_compared = Signal()
# An open operation reached its deadline or was overtaken. kwargs: operation.
operation_given_up = Signal()
