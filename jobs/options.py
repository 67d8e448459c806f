"""A submission's overrides of its script's settings, as ``weir.managed.job_file`` takes them."""

import json
import posixpath
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

from weir.bounds import NUMBER_MAX
from weir.config import (
    SECRET_NAME_RULE,
    SETTINGS_OF_STRATEGY,
    CheckpointConfig,
    CheckpointingMode,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    is_secret_name,
)
from weir.errors import WeirError

PARAMETERS_BYTES_MAX = 64 << 10
RESTORE_LENGTH_MAX = 1_000
SECRETS_MAX = 32
FACTOR_MAX = 1_000_000  # As wide as weir.bounds.Factor.
_FACTORS = ("backoff_multiplier", "jitter")


def check_options(
    given: Mapping[str, Any], add_error: Callable[[str, str], None]
) -> dict[str, Any]:
    """The given options, each checked; ``add_error`` gets the problems by field."""
    if not isinstance(given, Mapping):
        add_error("options", "Give an object with options as members.")
        return {}
    for key in given.keys() - _OPTIONS.keys():
        known = ", ".join(sorted(_OPTIONS))
        hint = (
            "Give storage beside the options." if key == "storage" else f"The options are {known}."
        )
        add_error(f"options.{key}", f"There is no such option. {hint}")
    options: dict[str, Any] = {}
    for key, check_value in _OPTIONS.items():
        if given.get(key) is None:
            continue
        try:
            options[key] = check_value(given[key])
        except (WeirError, ValueError) as error:
            add_error(f"options.{key}", str(error))
    return options


def _whole(value: Any) -> int:
    if type(value) is not int or value > NUMBER_MAX:
        raise ValueError(f"Give a whole number of at most {NUMBER_MAX}.")
    return value


def _parallelism(value: Any) -> int:
    # JobConfig checks the range; 32 768 is its bound where the pipeline sets no max_parallelism.
    JobConfig(parallelism=_whole(value), max_parallelism=32_768)
    return int(value)


def _interval(value: Any) -> int:
    CheckpointConfig(interval_ms=_whole(value))
    return int(value)


def _timeout(value: Any) -> int:
    CheckpointConfig(timeout_ms=_whole(value))
    return int(value)


def _min_pause(value: Any) -> int:
    CheckpointConfig(min_pause_ms=_whole(value))
    return int(value)


def _retained(value: Any) -> int:
    CheckpointConfig(retained_max=_whole(value))
    return int(value)


def _restart(value: Any) -> dict[str, Any]:
    """A strategy by its kind, with some of the settings that it uses."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if type(kind) is not str or kind not in set(RestartStrategyKind):
        raise ValueError(f"Give an object whose kind is one of {', '.join(RestartStrategyKind)}.")
    used = SETTINGS_OF_STRATEGY[RestartStrategyKind(kind)]
    restart = {name: given for name, given in value.items() if given is not None}
    for name, given in restart.items():
        if name == "kind":
            continue
        if name not in used:
            takes = f"it takes {', '.join(used)}" if used else "it takes no settings"
            raise ValueError(f"The strategy {kind} has no {name}; {takes}.")
        if name in _FACTORS:
            if type(given) not in (int, float) or not 0 <= given <= FACTOR_MAX:
                raise ValueError(f"Give {name} as a number from 0 to {FACTOR_MAX}.")
        elif type(given) is not int or not 0 <= given <= NUMBER_MAX:
            raise ValueError(f"Give {name} as a whole number from 0 to {NUMBER_MAX}.")
    RestartConfig(**restart)
    return restart


def _mode(value: Any) -> str:
    if type(value) is not str or value not in set(CheckpointingMode):
        raise ValueError(f"Give one of {', '.join(CheckpointingMode)}.")
    return str(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("Give true or false.")
    return value


def _restore(value: Any) -> str:
    if value == "latest":
        raise ValueError(
            "A new job has no latest checkpoint. Name the checkpoint to start from, such as "
            "<storage>/<job>/chk-7; a job that is restarted restores its newest by itself."
        )
    return check_uri(
        value, "Name a checkpoint, such as <storage>/<job>/chk-7, or the directory of a savepoint."
    )


def check_uri(value: Any, problem: str) -> str:
    """The normalised form of a location valid on every machine: an absolute path, or a URI.

    Raises:
        ValueError: The value is neither; says ``problem``.
    """
    if type(value) is not str or not value.isprintable() or len(value) > RESTORE_LENGTH_MAX:
        raise ValueError(problem)
    if not PurePath(value).is_absolute() and not urlsplit(value).scheme:
        raise ValueError(f"{problem} A path has to be absolute.")
    if ".." in unquote(value).split("/"):
        raise ValueError(f"{problem} It must not contain '..'.")
    return local_path(value) or value.rstrip("/")


def local_path(uri: str) -> str | None:
    """The normalised path of a path or a ``file:`` URI; None for any other URI."""
    parts = urlsplit(uri)
    if parts.scheme and (parts.scheme != "file" or parts.netloc not in ("", "localhost")):
        return None
    path = unquote(parts.path) if parts.scheme else uri
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _parameters(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(
        type(k) is str and k and type(v) is str for k, v in value.items()
    ):
        raise ValueError("Give an object whose values are texts.")
    if len(json.dumps(dict(value))) > PARAMETERS_BYTES_MAX:
        raise ValueError(f"All parameters together may have at most {PARAMETERS_BYTES_MAX} bytes.")
    if any("\0" in text for pair in value.items() for text in pair):
        raise ValueError("Parameters must not hold NUL characters.")
    return dict(value)


def _secrets(value: Any) -> list[str]:
    if not isinstance(value, list | tuple) or any(type(name) is not str for name in value):
        raise ValueError("Give a list of the names of secrets.")
    if wrong := [name for name in value if not is_secret_name(name)]:
        raise ValueError(f"{wrong[0][:100]!r} is no name of a secret: {SECRET_NAME_RULE}.")
    names = sorted(set(value))
    if len(names) > SECRETS_MAX:
        raise ValueError(f"A job can have at most {SECRETS_MAX} secrets.")
    return names


_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "parallelism": _parallelism,
    "interval_ms": _interval,
    "mode": _mode,
    "timeout_ms": _timeout,
    "min_pause_ms": _min_pause,
    "retained_max": _retained,
    "restart": _restart,
    "restore": _restore,
    "claims": _flag,
    "parameters": _parameters,
    "secrets": _secrets,
    "allow_non_restored_state": _flag,
    "allow_pickled_state": _flag,
}
