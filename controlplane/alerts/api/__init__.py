"""The API of rules, alerts and silences."""
