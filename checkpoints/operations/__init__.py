"""Operations that users ask for: checkpoint, savepoint, stop, rollback, rescale, fork, preview."""
