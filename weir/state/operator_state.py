"""State of a subtask rather than of a key: lists of items, and broadcast maps.

Items are JSON values or bytes. They are taken by value: an item is encoded when it is added and
decoded when it is read, so that user code cannot change the items of a snapshot, and a value that
JSON cannot hold is refused where it is added rather than when a checkpoint is written. (As in JSON,
a tuple comes back as a list and the keys of a dict as text.)

When parallelism changes, *split* items are dealt out among the new subtasks, item i to subtask
i mod n; of *union* state every subtask gets all items; *broadcast* state is the same everywhere and
every subtask gets one copy.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from weir.errors import ConfigError, CorruptStateError, SchemaError
from weir.graph.key_groups import Key, decode_key, encode_key
from weir.ids import StateHandle
from weir.state.backends.base import Held
from weir.state.codec import SlotKey, key_of_slot, slot_key
from weir.storage.writer import StoredSnapshotWriter, dump_items, load_items

Mode: TypeAlias = Literal["split", "union"]


class FrozenItems:
    """The items of one operator state as they were at a barrier: a part of a snapshot."""

    def __init__(self, name: str, mode: str, encoded: Sequence[bytes]) -> None:
        self.name = name
        self.mode = mode
        self._encoded = tuple(encoded)

    def write(self, writer: StoredSnapshotWriter) -> tuple[StateHandle, ...]:
        """Store the items; an empty list too, since "none left" differs from "never any"."""
        data = b"[" + b",".join(self._encoded) + b"]"
        return (writer.put("operator", self.name, data, mode=self.mode),)

    def release(self) -> None:
        """Nothing is shared."""


class OperatorListState:
    """A list of items that belongs to one subtask."""

    def __init__(self, name: str, mode: Mode = "split") -> None:
        if mode not in ("split", "union"):
            raise ConfigError(f"list state {name!r} is split or union, not {mode!r}")
        self.name = name
        self.mode = mode
        self._encoded: list[bytes] = []

    def get(self) -> list[Any]:
        """The items; changing them does not change the state."""
        return load_items(b"[" + b",".join(self._encoded) + b"]")

    def update(self, items: Iterable[Any]) -> None:
        """Replace all items.

        Raises:
            SchemaError: An item is neither bytes nor a JSON value.
        """
        self._encoded = [_encoded(self.name, item) for item in items]

    def add(self, item: Any) -> None:
        """Append an item."""
        self._encoded.append(_encoded(self.name, item))

    def add_all(self, items: Iterable[Any]) -> None:
        """Append several items."""
        self._encoded += [_encoded(self.name, item) for item in items]

    def clear(self) -> None:
        """Drop all items."""
        self._encoded = []

    def held(self) -> Held:
        """Its items. From any thread."""
        items = self._encoded
        return Held(len(items), sum(map(len, items)))

    def __len__(self) -> int:
        return len(self._encoded)

    def freeze(self) -> FrozenItems:
        """The items as they are now."""
        return FrozenItems(self.name, self.mode, self._encoded)

    def restore(self, data: bytes, share: tuple[int, int] | None = None) -> None:
        """Append stored items: of share ``(k, n)`` those at positions i with i mod n = k.

        Raises:
            CorruptStateError: The data is no list of items.
        """
        self.add_all(_share(load_items(data), share))


class BroadcastState:
    """A map that is the same in every subtask, because all of them apply the same changes."""

    mode: ClassVar[str] = "broadcast"

    def __init__(self, name: str) -> None:
        self.name = name
        self._encoded: dict[SlotKey, bytes] = {}

    def get(self, key: Key) -> Any:
        """The value under ``key``, or None; changing it does not change the state."""
        encoded = self._encoded.get(slot_key(key))
        return None if encoded is None else _decoded(encoded)

    def put(self, key: Key, value: Any) -> None:
        """Set the value under ``key``.

        Raises:
            KeyTypeError: The key has no canonical encoding.
            SchemaError: The value is neither bytes nor a JSON value.
        """
        self._encoded[slot_key(key)] = _encoded(self.name, value)

    def put_all(self, dict_value: Mapping[Key, Any]) -> None:
        """Set several values."""
        for key, value in dict_value.items():
            self.put(key, value)

    def remove(self, key: Key) -> None:
        """Remove the value under ``key``, if there is one."""
        self._encoded.pop(slot_key(key), None)

    def contains(self, key: Key) -> bool:
        """Whether there is a value under ``key``."""
        return slot_key(key) in self._encoded

    def items(self) -> Iterator[tuple[Key, Any]]:
        """All keys and values."""
        held = list(self._encoded.items())
        return ((key_of_slot(slot), _decoded(encoded)) for slot, encoded in held)

    def keys(self) -> Iterator[Key]:
        """All keys."""
        return map(key_of_slot, list(self._encoded))

    def values(self) -> Iterator[Any]:
        """All values."""
        return map(_decoded, list(self._encoded.values()))

    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        return not self._encoded

    def clear(self) -> None:
        """Remove all values."""
        self._encoded.clear()

    def __contains__(self, key: Key) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Key]:
        return self.keys()

    def held(self) -> Held:
        """Its entries. From any thread."""
        return Held.of_tables([self._encoded])

    def freeze(self) -> FrozenItems:
        """The map as it is now."""
        pairs = [
            b'["%b",%b]' % (encode_key(key_of_slot(slot)).hex().encode(), encoded)
            for slot, encoded in self._encoded.items()
        ]
        return FrozenItems(self.name, self.mode, pairs)

    def restore(self, data: bytes) -> None:
        """Take over a stored map.

        Raises:
            CorruptStateError: The data is no map.
        """
        try:
            for key, value in load_items(data):
                # The value is still in its stored form: only whole items are decoded by loading.
                self._encoded[slot_key(decode_key(bytes.fromhex(key)))] = _json(value)
        except (ValueError, TypeError) as cause:
            raise CorruptStateError(
                f"broadcast state {self.name!r} cannot be read: {cause}; restore from another "
                "checkpoint"
            ) from cause


def _share(items: list[Any], share: tuple[int, int] | None) -> list[Any]:
    return items if share is None else items[share[0] :: share[1]]


def _encoded(name: str, item: Any) -> bytes:
    if isinstance(item, bytes):
        return dump_items([item])[1:-1]
    if isinstance(item, dict) and item.keys() == {"base64"}:
        raise SchemaError(
            f"state {name!r}: a dict whose only key is 'base64' is the stored form of bytes; use "
            "another key, or put the bytes"
        )
    try:
        return _json(item)
    except (TypeError, ValueError) as cause:
        raise SchemaError(
            f"state {name!r} cannot hold {item!r}: {cause}; items are bytes, or None, bools, "
            "numbers, text, lists and dicts of these"
        ) from cause


def _json(item: Any) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


def _decoded(encoded: bytes) -> Any:
    return load_items(b"[" + encoded + b"]")[0]
