"""Checkpoints: the shell around ``weir.protocol.coordinator``, and the rows for readers.

Events of a job's driver are folded into the coordinator's state under the job's lock; its commands
become rows for readers, commands in the outbox, and files to delete.
"""
