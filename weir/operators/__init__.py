"""Operators: the work of one subtask on batches, watermarks and time.

``base`` holds the contract. Other modules are one family each: ``stateless``, ``keyed`` (per
record, with state and timers), ``aggregates`` (running, columnar), ``windows/`` (both ways),
``watermarks``, ``sources/`` and ``sinks/``. ``functions`` has the classes that users derive from;
``keys`` computes the key of a record, in the same way at sender and receiver.

Operators are made by factories, small dataclasses that travel to the slots pickled; an operator
lives in one subtask of one attempt.
"""
