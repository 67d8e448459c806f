"""The REST API of checkpoints, savepoints and the operations on them."""
