"""The page that submits a job."""
