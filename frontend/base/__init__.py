"""The base of all pages: access, addresses, words for statuses, warnings, cached verdicts."""
