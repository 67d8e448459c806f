"""The audit log: one entry for every change, never changed itself, and chained by digests."""
