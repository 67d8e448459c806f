"""The checkpoint protocol: consistent snapshots of a running dataflow, decided without any I/O.

A *barrier* with the checkpoint's id is injected at the sources and flows with the records. A
subtask that has received it on all inputs snapshots its state and forwards the barrier; the
snapshot is therefore exactly the effect of the records before the barrier, and all snapshots
together are a consistent cut through the stream. Restoring them and rewinding the sources to their
positions in the same cut replays every record after the cut and none before it.

Two machines decide everything:

- A *barrier handler* per subtask decides which inputs to block and when to snapshot (``alignment``,
  ``unaligned``).
- One *coordinator* per job decides when to trigger, which subtasks still have to acknowledge, when
  a checkpoint is complete, and what may be deleted (``coordinator``, with single decisions in files
  of their own: ``scheduling``, ``failures``, ``retention``). Its values and messages are in
  ``pending`` and ``messages``.

After a failure ``restarts`` decides whether and when the job restarts, and ``restore`` assigns the
state of a completed checkpoint to the subtasks of the next attempt.

Nothing here knows a socket, a clock, a thread or a random number: time and randomness are
arguments, I/O is a command whose outcome comes back as an event. Messages may be repeated, delayed
or come from an attempt that is over; each machine has a named result for these cases instead of
trusting the transport. Only a message that no correct peer sends raises ``ProtocolError``.

Source: arXiv:1506.08603, Lightweight Asynchronous Snapshots for Distributed Dataflows; Chandy and
Lamport, Distributed Snapshots (1985); for behaviour beyond the papers, Flink.
"""
