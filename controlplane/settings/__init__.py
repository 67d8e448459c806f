"""Django's settings: ``base``, and what development, production and tests change in it."""
