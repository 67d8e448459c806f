"""The job master, in the driver: it deploys attempts, runs checkpoints and restores after failures.

- ``job_master``: the job's status and its attempts, decided by one thread;
- ``slots``, ``workers``, ``attempt``, ``restarts``, ``recovery_report``: what it knows;
- ``fence``: the claims of attempts, which drivers of one job exclude each other by;
- ``restorer``, ``restore_choice``: the checkpoint that an attempt starts from;
- ``checkpoint_runner``: the checkpoints, one record each (``triggered_checkpoints``), and their I/O
  (``manifest_writer``, ``checkpoint_files``);
- ``coordination``, ``remote_coordination``: the checkpoint coordinator, in this process or in the
  control plane: events in, commands out;
- ``savepoint_requests``, ``mailbox_poll``, ``savepoint_mailbox``: requests in library mode;
- ``history``, ``collected_output``: results for the caller of ``execute``.
"""
