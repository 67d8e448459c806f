"""The API of endpoints and deliveries."""
