"""Answers to inspections of a running subtask: where its time goes, which records pass it."""
