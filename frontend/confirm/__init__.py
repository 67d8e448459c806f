"""The pages that ask before an operation begins, and that show how far it is."""
