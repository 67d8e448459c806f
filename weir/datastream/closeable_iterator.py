"""``CloseableIterator``: the iterator that ``execute_and_collect`` returns."""

from collections.abc import Iterator
from typing import Any, Self


class CloseableIterator:
    """The records of ``execute_and_collect``, in order; also a context manager."""

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
            StopIteration: All records were read, or the iterator is closed.
        """
        return next(self._records)

    def close(self) -> None:
        """Drop the records that were not read."""
        self._records = iter(())
