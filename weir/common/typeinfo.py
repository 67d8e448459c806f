"""``Types``: the types of records, keys and state.

A type defines how Python values are stored in an Arrow column and read back, whether they can be
changed in place, and how to copy them if so. It also *normalises*: where the type is declared, a
value becomes what the column would give back, so that a record is the same whether it was stored in
between or not. Names and meaning are PyFlink's. ``None`` fits every type. Types without an Arrow
counterpart of unlimited size (``BIG_INT``, ``BIG_DEC``) are stored as decimal text, so that no
digit is lost. ``PICKLED_BYTE_ARRAY`` is the only type that stores pickles, on the user's explicit
declaration; reading such state back runs code from the file, so restoring it needs the user's
consent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from weir.common.types.base import TypeInformation, Wire
from weir.common.types.basic import BASIC, PICKLED
from weir.common.types.composite import ListTypeInfo, MapTypeInfo, RowTypeInfo
from weir.common.types.expiring import ExpiringTypeInfo
from weir.errors import SchemaError

__all__ = [
    "ListTypeInfo",
    "MapTypeInfo",
    "RowTypeInfo",
    "TypeInformation",
    "Types",
    "Wire",
    "type_from_wire",
]

_PRIMITIVE = frozenset({"BYTE", "BOOLEAN", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR"})


class Types:
    """The types a pipeline can declare, under PyFlink's names."""

    @staticmethod
    def STRING() -> TypeInformation:
        """Text: ``str``."""
        return BASIC["STRING"]

    @staticmethod
    def BYTE() -> TypeInformation:
        """``int`` of 8 bits."""
        return BASIC["BYTE"]

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """``bool``."""
        return BASIC["BOOLEAN"]

    @staticmethod
    def SHORT() -> TypeInformation:
        """``int`` of 16 bits."""
        return BASIC["SHORT"]

    @staticmethod
    def INT() -> TypeInformation:
        """``int`` of 32 bits."""
        return BASIC["INT"]

    @staticmethod
    def LONG() -> TypeInformation:
        """``int`` of 64 bits."""
        return BASIC["LONG"]

    @staticmethod
    def FLOAT() -> TypeInformation:
        """``float``, stored with 32 bits."""
        return BASIC["FLOAT"]

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """``float``."""
        return BASIC["DOUBLE"]

    @staticmethod
    def CHAR() -> TypeInformation:
        """``str`` of one character."""
        return BASIC["CHAR"]

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """``int`` of any size."""
        return BASIC["BIG_INT"]

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """``Decimal`` of any size."""
        return BASIC["BIG_DEC"]

    @staticmethod
    def INSTANT() -> TypeInformation:
        """A point in time: ``datetime`` with a zone; comes back in UTC."""
        return BASIC["INSTANT"]

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """``date``."""
        return BASIC["SQL_DATE"]

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """``time`` without a zone."""
        return BASIC["SQL_TIME"]

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """``datetime`` without a zone."""
        return BASIC["SQL_TIMESTAMP"]

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any object, as a pickle. Restoring such state must be allowed by a flag."""
        return PICKLED

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """``Row`` of unnamed fields."""
        return RowTypeInfo(tuple(field_types))

    @staticmethod
    def ROW_NAMED(
        field_names: Sequence[str],
        field_types: Sequence[TypeInformation],
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> RowTypeInfo:
        """``Row`` of named fields; ``defaults``, by name, are for rows restored without them."""
        return RowTypeInfo(tuple(field_types), tuple(field_names), defaults=dict(defaults or {}))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """``tuple`` of fixed length."""
        return RowTypeInfo(tuple(field_types), is_tuple=True)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list`` of numbers or bools without None; ``bytes`` when the element is ``BYTE``."""
        if element_type.to_wire() == "BYTE":
            return BASIC["BYTES"]
        if element_type.to_wire() not in _PRIMITIVE:
            raise SchemaError(f"{element_type} is not primitive; use Types.OBJECT_ARRAY")
        return ListTypeInfo(element_type, "PRIMITIVE_ARRAY")

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list`` of a basic type, None allowed."""
        if element_type.to_wire() not in BASIC:
            raise SchemaError(f"{element_type} is not basic; use Types.OBJECT_ARRAY")
        return ListTypeInfo(element_type, "BASIC_ARRAY")

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list`` of any type, None allowed."""
        return ListTypeInfo(element_type, "OBJECT_ARRAY")

    @staticmethod
    def MAP(key_type: TypeInformation, value_type: TypeInformation) -> TypeInformation:
        """``dict``."""
        return MapTypeInfo(key_type, value_type)

    @staticmethod
    def LIST(element_type: TypeInformation) -> TypeInformation:
        """``list`` of any type."""
        return ListTypeInfo(element_type)


def type_from_wire(wire: Wire) -> TypeInformation:
    """The type that ``to_wire`` wrote.

    Raises:
        SchemaError: ``wire`` is no type, or one of a newer version of Weir.
    """
    match wire:
        case "PICKLED_BYTE_ARRAY":
            return PICKLED
        case "DYNAMIC":
            from weir.common.types.dynamic import DYNAMIC  # It imports this module.

            return DYNAMIC
        case str(name) if name in BASIC:
            return BASIC[name]
        case ["ROW", list(kinds)]:
            return RowTypeInfo(tuple(map(type_from_wire, kinds)))
        case ["ROW_NAMED", list(names), list(kinds)]:
            return RowTypeInfo(tuple(map(type_from_wire, kinds)), tuple(names))
        case ["TUPLE", list(kinds)]:
            return RowTypeInfo(tuple(map(type_from_wire, kinds)), is_tuple=True)
        case ["EXPIRING", str(domain), value]:
            return ExpiringTypeInfo(type_from_wire(value), domain)
        case ["MAP", key, value]:
            return MapTypeInfo(type_from_wire(key), type_from_wire(value))
        case ["LIST" | "PRIMITIVE_ARRAY" | "BASIC_ARRAY" | "OBJECT_ARRAY" as name, element]:
            return ListTypeInfo(type_from_wire(element), name)
        case _:
            raise SchemaError(f"{wire!r} is no type of this version of Weir")
