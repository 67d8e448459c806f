"""The pipeline as a graph, before anything runs: pure values, standard library only.

``logical`` holds the graph as the user wrote it, ``physical`` the same laid out over subtasks and
channels, ``key_groups`` the assignment of keys to the subtasks that own them.
"""
