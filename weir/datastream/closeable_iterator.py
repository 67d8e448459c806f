"""The iterator of ``execute_and_collect``."""

from collections.abc import Iterator
from typing import Any, Self


class CloseableIterator:
    """The records of ``execute_and_collect``."""

    def __init__(self, records: Iterator[Any]) -> None:
        self._records = records

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def next(self) -> Any:
        """The next record.

        Raises:
            StopIteration: There is none.
        """
        return next(self._records)

    def close(self) -> None:
        """Give up what was not read."""
        self._records = iter(())
