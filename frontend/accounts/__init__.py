"""The page of one's own account, and for admins the pages of all accounts."""
