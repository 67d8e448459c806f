"""``OutputTag``: the name of a side output."""

from dataclasses import dataclass

from weir.common.typeinfo import TypeInformation
from weir.errors import GraphError


@dataclass(frozen=True, slots=True)
class OutputTag:
    """The name of a side output and, where records should become columns, their type.

    A process function sends a record there with ``yield tag, record``.
    """

    tag_id: str
    type_info: TypeInformation | None = None

    def __post_init__(self) -> None:
        if not self.tag_id:
            raise GraphError("an output tag needs a name")
