"""What a pipeline is, before anything runs: pure values, standard library only.

``logical`` holds the graph as the user wrote it, ``physical`` the same laid out over subtasks and
channels, ``key_groups`` the way from a key to the subtask that owns it.
"""
