"""Drivers: their rows, their processes on this machine, and the right to speak for a job.

- ``drivers``: which driver may speak, its end, its successor; ``restart_policy``: whether and when;
- ``driver_claims``: a launcher's hold on a driver; ``outbox``: commands that it has not taken yet;
- ``launcher``, ``spark_command``, ``driver_files``: starting a driver;
- ``driver_watch``, ``processes``, ``child_processes``: noticing its end, and ending it.
"""
