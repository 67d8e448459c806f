"""The pages about Weir itself: configuration, logs, the audit log and the server."""
