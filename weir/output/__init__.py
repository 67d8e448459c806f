"""Files of sinks: committed, waiting for a checkpoint to commit them, withdrawn by a rollback."""
