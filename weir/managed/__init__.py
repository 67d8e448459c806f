"""A driver that the control plane started: its job file, its log, and its gateway client."""
