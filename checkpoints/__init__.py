"""Checkpoints: the shell around ``weir.protocol.coordinator``, and what readers see of them.

Events of a job's driver are folded into the coordinator's state under the job's lock; what it
commands becomes rows for readers, commands in the outbox, and files to delete.
"""
