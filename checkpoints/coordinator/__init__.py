"""The shell around ``weir.protocol.coordinator``: its state is a row, its commands the outbox.

- ``shell``: load, step, save, enqueue, under the job's lock;
- ``read_model``: the rows that readers see, from the events the coordinator folds;
- ``bulk_insert``: acknowledgements and alignments, thousands in one statement;
- ``operation_steps``: the coordinator's part of operations of several steps;
- ``countdowns``: ticks at exact times.
"""
