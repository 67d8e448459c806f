"""Jobs: submissions, the drivers that run them, and the operations on them.

A job has a desired state (``DesiredState``) and a status (``JobStatus``); the steps that bring the
status to the desired state (launch, relaunch, cancel) are driven by rows with due times. This app
imports nothing of ``checkpoints``: it reaches them by ``jobs.hooks``.
"""
