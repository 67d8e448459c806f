"""The base of the commands of ``manage.py``."""
