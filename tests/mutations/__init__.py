"""Mutations of Weir's own code: each is a bug planted in one line, and which test notices it.

``mutants`` lists them; ``python -m tests.mutations`` tries them and writes ``docs/mutations.md``.
"""
