"""Windows: assigners, the operator per record, and the operator over columns."""
