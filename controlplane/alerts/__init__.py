"""Alerts: rules on what Weir knows, the alerts that they fire, and silences.

::

    rows of jobs and checkpoints
        │  every few seconds, a fixed number of queries          reading, history
        ▼
    facts of each job ──► judgement of each kind of rule         kinds: pure
                               │ holds, or not
                               ▼
    watch: inactive ► pending ► firing ► resolved                machine: pure, every decision
                               │ fired, resolved
                               ▼
    alert, and its notice in the same transaction                alerting ──► deliveries.outbox

**One evaluator at a time** (an advisory lock), on an ordinary worker, and no lock that a checkpoint
takes. Its state is rows: its place among the events of jobs, and a watch for each condition that
holds. What a process keeps in memory only spares it from judging the same facts twice.

**A bad rule** is set aside with its cause, until it is changed; the others go on.

**Silences** hold notices back, not alerts.
"""
