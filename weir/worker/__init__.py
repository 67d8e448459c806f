"""A worker: the process in a Spark slot that hosts subtasks.

- ``subtask``: the loop step of a chain; ``assembly`` builds subtasks, ``worker`` runs a slot's;
- ``ready_queue``: the subtasks that have work, and the timers of the others;
- ``gates``: input and output channels; ``partitioners``, ``chain_output``: the routes of output;
- ``snapshotter``: what is written of a snapshot, and its acknowledgement;
- ``alignment_clock``: times of each barrier;
- ``in_flight``: records under way that an unaligned snapshot keeps;
- ``slice_size``: rows per step; ``brief_slices``: the time for which there are fewer;
- ``inbox``, ``ports``: the loop's interfaces to its surroundings;
- ``metrics_reports``: reports of the subtasks' counters; ``failure_text``: the cause of a failure;
- ``process``, ``template``, ``lifeline``: the operating system's process, forked from a warm one;
- ``versions``: the installed versions, which driver and slots must share;
- ``stalls``, ``stacks``: detection of a stalled loop, and its stack;
- ``cpu_wait``: the time that the loop waited for a processor.
"""
