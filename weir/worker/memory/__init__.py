"""The memory of a worker process: its cgroup's limit, what it holds, its end above a limit.

The limit itself is the job master's to tell (``weir.protocol.slot_memory``).
"""
