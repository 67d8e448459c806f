"""Accounts: users with one of three roles, and tokens for programs."""
