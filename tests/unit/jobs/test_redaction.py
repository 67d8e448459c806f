"""Settings as they are shown: values of secrets are hidden, names of secrets are not."""

from jobs.redaction import HIDDEN, shown


def test_values_are_hidden_by_their_names_and_the_names_of_secrets_are_shown() -> None:
    options = {
        "parameters": {"password": "hunter2", "output": "/data", "secrets": "hunter2"},
        "secrets": ["WAREHOUSE_PASSWORD"],
    }
    assert shown("", options) == {
        "parameters": {"password": HIDDEN, "output": "/data", "secrets": HIDDEN},
        "secrets": ["WAREHOUSE_PASSWORD"],
    }
    assert shown("options.secrets", ["A"]) == ["A"]
    assert shown("client_secrets", ["hunter2"]) == [HIDDEN]
