"""Who may do what: users with one of three roles, and tokens for programs."""
