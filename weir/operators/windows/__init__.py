"""Windows: assigners, the operator per record, and the one on columns."""
