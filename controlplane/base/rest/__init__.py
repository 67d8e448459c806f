"""Checks of requests that all views of the API share: their query, and what they change."""
