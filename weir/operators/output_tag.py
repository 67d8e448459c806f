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
        if not isinstance(self.tag_id, str) or not self.tag_id:
            raise GraphError("an output tag needs a name, such as OutputTag('late')")
        if self.type_info is not None and not isinstance(self.type_info, TypeInformation):
            raise GraphError(
                f"OutputTag({self.tag_id!r}) takes a type such as Types.STRING(), not "
                f"{self.type_info!r}"
            )
