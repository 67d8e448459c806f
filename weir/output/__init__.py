"""Files of sinks: committed, waiting for another job's checkpoint, withdrawn by a rollback."""
