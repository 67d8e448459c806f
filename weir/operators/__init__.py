"""Operators: what one subtask does with the batches, watermarks and time it is given.

``base`` holds the contract, ``batch`` the records. Every other module is one family: ``stateless``,
``keyed`` (per record, with state and timers), ``aggregates`` (running, columnar), ``windows`` (per
record) and ``window_aggregates`` (columnar), ``watermarks``, sources and sinks. ``functions`` has
the classes a user derives from; ``keys`` finds the key of a record again.

Operators are made by factories, small dataclasses that travel to the slots pickled; an operator
lives in one subtask of one attempt.
"""
