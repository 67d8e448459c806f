"""State backends: the tables in which one operator subtask keeps its state per key.

``base`` is the seam. ``heap`` keeps Python objects in dictionaries, ``rocksdb`` keeps what changed
last in dictionaries and the rest in a local RocksDB. Functions, snapshots and restores know the
seam alone, and a snapshot has one form, so that it restores into either. ``choice`` opens the one
that a job is configured with. The columns of tables lie in memory with ``heap``, with ``rocksdb``
in files mapped into it (``mapped``); timers lie in memory with each of them.
"""
