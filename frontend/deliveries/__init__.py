"""The pages of endpoints and of the delivery log."""
