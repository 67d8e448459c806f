"""The pages that confirm an operation before it begins, and that show its progress."""
