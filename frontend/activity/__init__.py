"""The page of activity: what happened to all jobs, the newest first."""
