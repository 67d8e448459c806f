"""The pages of alerts, rules and silences, and the alerts of a job."""
