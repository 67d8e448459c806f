"""The catalog: the place of each checkpoint and savepoint, its name, and what can be restored."""
