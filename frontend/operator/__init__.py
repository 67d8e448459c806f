"""The page of an operator: its subtasks, and its load over time."""
