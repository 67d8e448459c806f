"""The pages about Weir itself: configuration, logs and the audit log."""
