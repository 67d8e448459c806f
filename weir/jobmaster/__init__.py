"""The job master, in the driver: it deploys attempts, runs checkpoints and restores after failures.

- ``job_master``: the job's states, slots and attempts; ``checkpoint_runner``: files of checkpoints;
- ``coordination``: the checkpoint coordinator, in this process or in the control plane;
- ``restore_choice``: the checkpoint that an attempt starts from;
- ``savepoint_mailbox``, ``savepoint_requests``: requests by way of the checkpoint storage;
- ``history``, ``collected_output``: results for the caller of ``execute``.
"""
