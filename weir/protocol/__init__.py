"""How a consistent snapshot of a running dataflow comes about, decided without any I/O.

A *barrier* with the checkpoint's id is injected at the sources and flows with the records. A
subtask that has seen it on all inputs saves its state and passes it on; what it saved is therefore
exactly the effect of the records before the barrier, and all such states together are a consistent
cut through the stream. Putting them back and rewinding the sources to their positions in the same
cut repeats every record after it and none before it.

Two machines decide everything:

- A *barrier handler* per subtask says which inputs to block and when to save (``alignment``,
  ``unaligned``).
- One *coordinator* per job says when to trigger, who still has to acknowledge, when a checkpoint
  counts, and what may be deleted (``coordinator``, with its questions in files of their own:
  ``scheduling``, ``failures``, ``retention``). What its answer looks like is in ``pending`` and
  ``messages``.

After a failure ``restarts`` says whether and when to try again, and ``restore`` lays the state of a
completed checkpoint onto the subtasks of the next attempt.

Nothing here knows a socket, a clock, a thread or a random number: time and randomness are
arguments, I/O is a command whose outcome comes back as an event. Messages may be repeated, delayed
or come from an attempt that is over; each machine names what it then does instead of trusting the
transport. Only what no correct peer can send raises ``ProtocolError``.

Source: arXiv:1506.08603, Lightweight Asynchronous Snapshots for Distributed Dataflows; Chandy and
Lamport, Distributed Snapshots (1985); for behaviour beyond the papers, Flink.
"""
