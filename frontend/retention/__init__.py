"""The page of retention: the rows and files that are kept, how many, and when they go."""
