"""The REST API of jobs, their operations, attempts, subtasks and uploads."""
