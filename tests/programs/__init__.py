"""Random user programs over the whole public API, run by Weir and by a plain model of it.

``model`` is a program as data, ``generate`` draws one from the ``kinds`` of values, a module for
each kind of source and stage, and ``source_text`` is its Python source. That source is what runs:
``build`` makes a job of it, and ``oracle`` stands in for ``weir.datastream`` and evaluates it
record by record. ``run`` executes the job under variations that must not matter (slices,
parallelism, encoding, kills, savepoints, clocks), ``check`` compares.

``python -m tests.programs`` draws programs for as long as it is told.
"""
