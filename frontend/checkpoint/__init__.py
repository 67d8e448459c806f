"""The pages of a checkpoint: barrier progress, alignment, sizes, manifest and positions."""
