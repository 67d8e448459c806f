"""The page of a job's savepoints and their tree."""
