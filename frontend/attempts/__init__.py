"""The page of a job's attempts: each outage, its parts and its cause."""
