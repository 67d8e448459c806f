"""The library of all apps: time, errors, problem documents, logs, threads, pagination."""
