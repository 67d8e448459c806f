"""Jobs: what somebody submitted, the drivers that run it, and the operations on it.

A job is wanted in one of two states (``DesiredState``) and is in one of ``JobStatus``; whatever
brings the second to the first (launch, recover, cancel) is driven by rows with due times. This app
knows nothing of checkpoints: it says what happens by the signals in ``jobs.signals``.
"""
