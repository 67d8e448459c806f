"""Retention of rows and files: nothing that the control plane writes grows for ever.

``rules`` is the table: for every kind of row its age and number, as settings, and the rows that
stay however old they are. A new kind of row is one more line there. ``KEPT`` beside it names the
models without a rule, each with its reason; a test knows a model that is in neither.

A look (``rows.look``) comes every half minute from Celery's queue for storage and takes a few
seconds at most. Rows go in small batches, each a transaction of its own that takes only rows which
no other transaction holds (SKIP LOCKED), so it neither waits nor lets others wait for long. A
failure of one rule is logged and shown, and does not stop the others.

Files: uploads that no job uses go with their rows, from the machine of the worker; directories of
drivers whose rows are gone, and the oldest parts of large logs, by the launcher of their machine
(``files``). Retention of checkpoints' files is another matter: ``checkpoints.retention``.

``Tally`` counts what was removed, for ``/metrics`` and the page *Retention*.
"""
