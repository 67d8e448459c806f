"""Who changed what: one entry for every change, never changed itself."""
