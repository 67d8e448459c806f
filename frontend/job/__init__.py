"""The page of a job: its snapshot, its history, its figures."""
