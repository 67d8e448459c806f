"""What happens to checkpoints when a driver is lost, and when its job ends or is wanted again."""
