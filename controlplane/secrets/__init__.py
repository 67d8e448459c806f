"""Secrets of pipelines: named, write-only, encrypted at rest (``encryption``).

No API, page, log or audit entry has a value; only a launcher decrypts them, for the driver of a job
that names them (``jobs.drivers.handed_secrets``).
"""
