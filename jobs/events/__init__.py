"""Events of drivers as rows: attempts, plans, subtasks and their rates."""
