"""The page of a job's slots: their hosts, their load, and the subtasks in each."""
