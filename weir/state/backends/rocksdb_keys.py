"""The keys of state in RocksDB: the key group in two bytes, and the canonical form of the key."""

from typing import Final

from weir.graph.key_groups import TAG_INT, TAG_NONE, TAG_STR, decode_key, encode_key
from weir.state.codec import SlotKey, slot_key

GROUP_BYTES: Final = 2
_OWN_SLOTS: Final = {TAG_NONE, TAG_INT, TAG_STR}  # Keys that tables look up by the key itself.


def canonical(slot: SlotKey) -> bytes:
    """The canonical form of a key, which sorts all keys of a table in one order."""
    return slot if type(slot) is bytes else encode_key(slot)


def slot_of(stored: bytes) -> SlotKey:
    """The key as tables look it up, from its canonical form."""
    return slot_key(decode_key(stored)) if stored[0] in _OWN_SLOTS else stored
