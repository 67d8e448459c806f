"""State of operators: frozen at a barrier, written while the stream runs on.

*Keyed state* (``backend``, ``keyed``, ``columns``, ``timers``) belongs to a key and moves with its
key group when a job is rescaled. Values per key lie in memory or on local disk (``backends``), and
may have a time-to-live (``ttl``, ``expiry``, ``expiring``). *Operator state* (``operator_state``)
belongs to a subtask. Restored state may have other types than the program declares now;
``evolution`` converts or refuses it. Records under way at an unaligned checkpoint belong to an
exchange (``channel_state``).

A snapshot has two halves. **Freezing** happens on the loop thread between two records and costs
O(key groups) or O(chunks), never O(keys): the frozen view shares all data with the live state, and
the first change of a shared part copies that part alone. **Writing** (``snapshot``) happens on the
snapshot thread from the frozen view, in small pieces, so that the loop never waits long for the
interpreter lock. ``release`` ends the sharing once the view is written or dropped; like freezing it
is called on the loop thread.
"""
