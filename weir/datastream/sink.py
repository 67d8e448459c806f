"""``DataStreamSink``: the end of a stream, as ``print`` and ``sink_to`` return it."""

from typing import Self

from weir.common.missing_names import MissingNames
from weir.datastream.checks.arguments import check_parallelism, check_text
from weir.datastream.transformation import Transformation
from weir.graph.logical import Chaining


class DataStreamSink(MissingNames):
    """A sink at the end of a stream, to be named and tuned."""

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    def __repr__(self) -> str:
        return f"<DataStreamSink {self._transformation.label}>"

    def name(self, name: str) -> Self:
        """Name the sink, for display only."""
        check_text(name, "name")
        self._transformation.name = name
        return self

    def uid(self, uid: str) -> Self:
        """Set the sink's id, under which a restore finds its state."""
        check_text(uid, "uid")
        self._transformation.uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Give the sink a parallelism of its own, at least 1."""
        check_parallelism(parallelism, "set_parallelism")
        self._transformation.parallelism = parallelism
        return self

    def disable_chaining(self) -> Self:
        """Give the sink subtasks of its own, not chained with its input."""
        self._transformation.chaining = Chaining.NEVER
        return self
