"""A worker: the process in a Spark slot that hosts subtasks.

- ``subtask``: the loop step of a chain of operators; ``assembly`` builds it, ``worker`` runs some;
- ``gates``: input channels and their alignment; ``partitioners``, ``chain_output``: the way out;
- ``snapshotter``: the thread that writes snapshots; ``alignment_metrics``: times of each barrier;
- ``slice_size``: rows per step; ``inbox``, ``ports``: what the loop needs of its surroundings;
- ``process``, ``template``, ``lifeline``: the operating system's process, forked from a warm one;
- ``stalls``, ``stacks``: a loop that stands still, and where.
"""
