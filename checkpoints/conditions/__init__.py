"""Conditions of a job that need attention, as pages, alerts and feeds judge them.

- ``facts``: what conditions depend on, from rows that the caller has read;
- ``judge``: the conditions that hold, each with a kind, a severity and a sentence; pure;
- ``reasons``: the reasons of checkpoints without a manifest, in words; pure.
"""
