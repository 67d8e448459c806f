"""The classes behind ``Types``: one module for their contract, one for each kind."""
