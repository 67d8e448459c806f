"""The list of jobs: filters, queries, rows and sparklines."""
