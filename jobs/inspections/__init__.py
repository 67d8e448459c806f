"""Inspections of running subtasks on request: the stacks of their loop, records that pass them.

A request is a command to the job's driver and an entry in Redis, an answer is an event of the
driver and an entry beside it. Nothing else keeps either: both end by themselves after minutes, the
database holds the audit entries of taps alone.
"""
