"""Settings from the environment are read strictly: refused by name rather than guessed."""

import base64
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from controlplane.base import env

NAME = "WEIR_TEST_VALUE"


def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "seven")
    assert env.text(NAME) == "seven"
    assert env.text(NAME, "eight") == "seven"


KEY = bytes(range(32))
ENCODED = base64.urlsafe_b64encode(KEY)


@pytest.mark.parametrize(
    "given",
    [
        KEY.hex(),
        ENCODED.decode(),
        ENCODED.decode().rstrip("="),
        base64.b64encode(KEY).decode(),
    ],
)
def test_a_key_is_read_in_hexadecimal_and_in_base64(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(NAME, f"{given}, {bytes(32).hex()}")
    assert env.keys(NAME) == [ENCODED, base64.urlsafe_b64encode(bytes(32))]


@pytest.mark.parametrize("given", ["short", "x" * 43 + "!", "zz" * 32, "ü" * 43, KEY.hex()[:-2]])
def test_a_malformed_key_is_refused_by_its_place_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(NAME, f"{KEY.hex()},{given}")
    with pytest.raises(ImproperlyConfigured, match=f"key 2 of {NAME} does not have 32") as refused:
        env.keys(NAME)
    assert given not in str(refused.value)


def test_the_default_stands_in_for_a_missing_variable() -> None:
    assert env.text(NAME, "eight") == "eight"
    assert env.integer(NAME, 8) == 8
    assert env.flag(NAME, True) is True
    assert env.words(NAME, "a, b,,") == ["a", "b"]


def test_a_required_variable_is_missed_by_name() -> None:
    with pytest.raises(ImproperlyConfigured, match=f"set {NAME}, or {NAME}_FILE"):
        env.text(NAME)


def test_a_required_variable_must_not_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "")
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} is empty"):
        env.text(NAME)
    assert env.text(NAME, "default") == ""


def test_a_file_holds_the_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    monkeypatch.setenv(f"{NAME}_FILE", str(file))
    assert env.text(NAME) == "from a file"


def test_variable_and_file_together_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NAME, "one")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))
    with pytest.raises(ImproperlyConfigured, match="both set"):
        env.text(NAME)


def test_a_file_that_cannot_be_read_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(ImproperlyConfigured, match=rf"{NAME}_FILE=.*nowhere cannot be read"):
        env.text(NAME)


def test_a_binary_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv(f"{NAME}_FILE", str(file))
    with pytest.raises(ImproperlyConfigured, match="cannot be read"):
        env.text(NAME)


@pytest.mark.parametrize("given", ["seven", "7.5", "", "0x7"])
def test_a_malformed_number_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(NAME, given)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}='{given}' is not a whole number"):
        env.integer(NAME, 8)


def test_a_number_below_its_least_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "4")
    assert env.integer(NAME, 8, least=4) == 4
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}=4 is too small; give at least 5"):
        env.integer(NAME, 8, least=5)


def test_a_number_above_its_most_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "4")
    assert env.integer(NAME, 1, most=4) == 4
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}=4 is too large; give at most 3"):
        env.integer(NAME, 1, most=3)


@pytest.mark.parametrize(("given", "value"), [("YES", True), ("1", True), ("off", False)])
def test_yes_and_no_have_several_words(
    monkeypatch: pytest.MonkeyPatch, given: str, value: bool
) -> None:
    monkeypatch.setenv(NAME, given)
    assert env.flag(NAME, not value) is value


def test_neither_yes_nor_no_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "perhaps")
    with pytest.raises(ImproperlyConfigured, match="is neither yes nor no"):
        env.flag(NAME, True)


def test_a_word_that_is_no_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.choice(NAME, "tls", ("tls", "none")) == "tls"
    monkeypatch.setenv(NAME, "none")
    assert env.choice(NAME, "tls", ("tls", "none")) == "none"
    monkeypatch.setenv(NAME, "ssl")
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}='ssl' is none of tls, none"):
        env.choice(NAME, "tls", ("tls", "none"))


@pytest.mark.parametrize(
    "given",
    ["", "nonsense", "mysql://u:hunter2@h/d", "postgres://u:hunter2@h:port/d", "postgres://h/"],
)
def test_a_url_of_no_database_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(NAME, given)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME} is no URL of PostgreSQL; give") as told:
        env.database(NAME, "postgres://weir@127.0.0.1/weir")
    assert "hunter2" not in str(told.value)


def test_a_database_is_read_with_connections_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "postgres://u:p%40ss@h:5433/d")
    read = env.database(NAME)
    assert (read["HOST"], read["PORT"], read["NAME"], read["PASSWORD"]) == ("h", 5433, "d", "p@ss")
    assert read["CONN_MAX_AGE"] is None


def test_a_database_is_reached_as_its_url_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL's demands on a connection, encryption above all, are not overridden."""
    ours = {"connect_timeout": 5, "application_name": "weir", "options": "-c lock_timeout=15s"}
    monkeypatch.setenv(
        NAME, "postgres://u@h/d?sslmode=verify-full&sslrootcert=/ca.pem&connect_timeout=9"
    )
    assert env.database(NAME, parameters=ours)["OPTIONS"] == ours | {
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "connect_timeout": 9,
    }
    monkeypatch.setenv(NAME, "postgres://u@h/d?options=-c%20search_path%3Dweir")
    assert env.database(NAME, parameters=ours)["OPTIONS"] == ours | {
        "options": "-c lock_timeout=15s -c search_path=weir"
    }
    monkeypatch.setenv(NAME, "postgres://u@a,b/d?target_session_attrs=read-write")
    two = env.database(NAME, parameters=ours)
    assert (two["HOST"], two["OPTIONS"]["target_session_attrs"]) == ("a,b", "read-write")
    monkeypatch.setenv(NAME, "postgres://u@h/d")
    assert env.database(NAME, parameters=ours)["OPTIONS"] == ours


def test_an_unknown_parameter_of_a_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "postgres://u:hunter2@h/d?sslmod=require")
    with pytest.raises(ImproperlyConfigured, match=f'{NAME}: .*"sslmod"') as told:
        env.database(NAME)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("redis://:p@h:1/0", "redis://:p@h:1/0"),
        ("rediss://:p@h:1/0", "rediss://:p@h:1/0?ssl_cert_reqs=required"),
        ("rediss://h?ssl_ca_certs=/a", "rediss://h?ssl_ca_certs=/a&ssl_cert_reqs=required"),
        ("rediss://h?ssl_cert_reqs=none", "rediss://h?ssl_cert_reqs=none"),
    ],
)
def test_the_certificate_of_a_redis_is_verified_unless_its_url_says_not_to(
    monkeypatch: pytest.MonkeyPatch, given: str, read: str
) -> None:
    monkeypatch.setenv(NAME, given)
    assert env.redis(NAME) == read


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("http://:hunter2@h", "is no URL of Redis; give redis://"),
        ("redis://", "is no URL of Redis; give redis://"),
        ("hunter2", "is no URL of Redis; give redis://"),
        (
            "rediss://:hunter2@h?ssl_cert_reqs=CERT_REQUIRED",
            "'CERT_REQUIRED' is not one of required, optional, none",
        ),
    ],
)
def test_a_url_of_no_redis_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch, given: str, said: str
) -> None:
    monkeypatch.setenv(NAME, given)
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}.*{said}") as told:
        env.redis(NAME)
    assert "hunter2" not in str(told.value)
