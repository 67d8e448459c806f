"""The errors for names that a stream does not have: what was meant, and where it is."""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from weir.common.pyflink_names import MissingAttributeError, PyFlinkNames
from weir.errors import GraphError

_AFTER_KEY_BY = ("reduce", "sum", "min", "max", "min_by", "max_by", "count", "window")
_AFTER_WINDOW = ("aggregate", "apply", "allowed_lateness", "side_output_late_data")


class NoSuchMethodError(GraphError, AttributeError):
    """A name that no method of a stream has."""


class OtherNames(PyFlinkNames):
    """A stream whose missing names tell what was meant, PyFlink's what to write instead."""

    if not TYPE_CHECKING:  # A type checker shall know the attributes that there are.

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except MissingAttributeError:
                raise
            except AttributeError:
                raise missing_name(type(self), name) from None


def missing_name(owner: type, name: str) -> AttributeError:
    """The error for an attribute that an object of ``owner`` does not have."""
    if name.startswith("_"):
        return AttributeError(f"{owner.__name__!r} object has no attribute {name!r}")
    return NoSuchMethodError(f"{_said(owner, name)}{_advice(owner, name)}")


def _said(owner: type, name: str) -> str:
    noun = {"DataStreamSink": "a sink", "WindowedStream": "a windowed stream"}
    return f"{noun.get(owner.__name__, 'a stream')} has no {name}"


def _advice(owner: type, name: str) -> str:
    if owner.__name__ == "DataStreamSink":
        return (
            ": nothing follows a sink. Keep the stream in a variable, and call its methods before "
            "print or sink_to"
        )
    if owner.__name__ == "DataStream" and name in _AFTER_KEY_BY:
        return f": it works per key, so call key_by before it, stream.key_by(...).{name}(...)"
    if owner.__name__ != "WindowedStream" and name in _AFTER_WINDOW:
        return f": it belongs to windows, stream.key_by(...).window(...).{name}(...)"
    if owner.__name__ == "WindowedStream" and name in ("print", "sink_to", "map", "filter"):
        return (
            ": say first what becomes of each window, with reduce, aggregate, process or "
            "aggregate_batches"
        )
    names = [each for each in dir(owner) if not each.startswith("_")]
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    near = [snake] if snake in names else get_close_matches(snake, names, 1, 0.7)
    return f": did you mean {near[0]}?" if near else ""
