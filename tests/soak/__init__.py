"""The soak: random programs under random faults of every process, for as long as it is told.

A round is a seed. From it come some programs of the generator, which run in one job with a pipeline
of numbered records, and a schedule of faults. ``schedule`` draws the faults (pure), ``drawn`` the
programs; ``pipeline`` is the job, ``on_spark`` runs it by ``weir run``, ``on_plane`` submits it to
a control plane, whose operations are in its schedules as well; ``faults`` carries the schedule out
and waits for each recovery, ``verdict`` compares the output and lists the storage; ``results``
keeps a line for each round.

``python -m tests.soak`` (``make soak``) runs rounds; a finding does not end it.
"""
