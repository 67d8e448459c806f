"""Text files as a sink, exactly once, under PyFlink's ``FileSink``; see ``file_sink_operator``.

::

    <path>/part-<operator>-<subtask>-<checkpoint>-<counter>.<attempt>.<mark><suffix>    committed

A checkpoint closes the files that are being written, as Flink's ``on_checkpoint_rolling_policy``
does: no part of a file shows before the checkpoint that covers it.
"""

import os
import re
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, Self

from weir.common.abstract import check_complete
from weir.common.batch import Batch
from weir.common.serialization import Encoder
from weir.errors import ConfigError, SchemaError, UserError
from weir.ids import AttemptNumber, CheckpointId
from weir.operators.base import Operator
from weir.operators.sinks.file_sink_operator import DirectorySink, FileSinkOperator
from weir.operators.sinks.part_files import PartFile, create
from weir.operators.user_code import named, short_repr
from weir.output.output_files import CommittedName, TextWriter, mark_of

PART_PREFIX = "part"  # A rewind and the sweep know output by it.
PART_SIZE = 128 << 20  # As in Flink's default policy.
BUFFER_BYTES = 1 << 20  # Written at a time.
_SUFFIX = re.compile(r"(\.\w+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class RollingPolicy:
    """The size at which a file is closed and another begun; each checkpoint closes files as well.

    Units: ``part_size`` in bytes.

    Raises:
        ConfigError: The size is less than 1.
    """

    part_size: int | None = PART_SIZE  # None: checkpoints alone close files.

    def __post_init__(self) -> None:
        if self.part_size is not None and self.part_size < 1:
            raise ConfigError(f"part_size is {self.part_size}; it must be at least 1 byte")

    @classmethod
    def default_rolling_policy(
        cls,
        part_size: int = PART_SIZE,
        rollover_interval: int = 60_000,
        inactivity_interval: int = 60_000,
    ) -> Self:
        """Close a file at ``part_size`` bytes.

        The two intervals are PyFlink's, for files that stay open over checkpoints; Weir's do not.
        """
        return cls(part_size)

    @classmethod
    def on_checkpoint_rolling_policy(cls) -> Self:
        """Close files at checkpoints only."""
        return cls(None)


@dataclass(frozen=True, slots=True)
class OutputFileConfig:
    """The end of the names of files.

    Raises:
        ConfigError: The prefix is not ``part``, or the suffix none like ``.txt``.
    """

    part_prefix: str = PART_PREFIX
    part_suffix: str = ""

    def __post_init__(self) -> None:
        if self.part_prefix != PART_PREFIX:
            raise ConfigError(
                f"the prefix of files is {PART_PREFIX!r} and cannot be {self.part_prefix!r}: a "
                "rollback finds a job's output by it. Leave with_part_prefix out; with_part_suffix "
                "works, and each sink may have a directory of its own"
            )
        if not _SUFFIX.fullmatch(self.part_suffix):
            raise ConfigError(
                f"the suffix of files is {self.part_suffix!r}; it must be empty, or dots each "
                "followed by letters, digits or _, such as .txt"
            )

    @classmethod
    def builder(cls) -> "OutputFileConfigBuilder":
        """A builder of it, as in PyFlink."""
        return OutputFileConfigBuilder()


class OutputFileConfigBuilder:
    """Builds an ``OutputFileConfig``."""

    def __init__(self) -> None:
        self._prefix, self._suffix = PART_PREFIX, ""

    def with_part_prefix(self, prefix: str) -> Self:
        """Set the prefix, which can only be ``part``."""
        self._prefix = prefix
        return self

    def with_part_suffix(self, suffix: str) -> Self:
        """Set the suffix, such as ``.txt``."""
        self._suffix = suffix
        return self

    def build(self) -> OutputFileConfig:
        """The configuration.

        Raises:
            ConfigError: The prefix is not ``part``, or the suffix none like ``.txt``.
        """
        return OutputFileConfig(self._prefix, self._suffix)


@dataclass(frozen=True, slots=True)
class BucketAssigner:
    """The directory below the sink's for each record; Weir has only the sink's own."""

    @classmethod
    def base_path_bucket_assigner(cls) -> Self:
        """All files lie in the sink's directory; the default here, unlike in PyFlink."""
        return cls()

    @classmethod
    def date_time_bucket_assigner(
        cls, format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> NoReturn:
        """Refused: files are not sorted into directories.

        Raises:
            ConfigError: Always; the message says what to do instead.
        """
        raise ConfigError(
            "FileSink has no directories by time: leave with_bucket_assigner out, and all files "
            "lie in the sink's directory; or write the time as a field of the record"
        )


class FileSink(DirectorySink):
    """Writes each record once, encoded, into files in the directory ``path``.

    ``FileSink.for_row_format(path, Encoder.simple_string_encoder()).build()``, as in PyFlink;
    ``build`` may be left out. A job that starts without a restore refuses a directory that holds
    files of its operator already: it could not tell them from its own.
    """

    def __init__(self, path: str | os.PathLike[str], encoder: Encoder) -> None:
        if not isinstance(encoder, Encoder):
            raise ConfigError(
                "FileSink takes an Encoder such as Encoder.simple_string_encoder(), not "
                f"{encoder!r}"
            )
        check_complete(encoder)
        super().__init__(path)
        self.encoder = encoder
        self.rolling = RollingPolicy()
        self.files = OutputFileConfig()

    @classmethod
    def for_row_format(cls, base_path: str | os.PathLike[str], encoder: Encoder) -> Self:
        """A sink of one encoded record after the other.

        Raises:
            ConfigError: ``encoder`` is no ``Encoder``.
        """
        return cls(base_path, encoder)

    @classmethod
    def for_bulk_format(cls, base_path: str, writer_factory: object) -> NoReturn:
        """Refused: Weir's columnar files are ``ParquetSink``'s.

        Raises:
            ConfigError: Always; the message says what to write instead.
        """
        raise ConfigError(
            "FileSink has no bulk formats; write Parquet with "
            f"weir.datastream.connectors.ParquetSink({os.fspath(base_path)!r})"
        )

    def with_rolling_policy(self, rolling_policy: RollingPolicy) -> Self:
        """The same sink, whose files are closed by this policy."""
        if not isinstance(rolling_policy, RollingPolicy):
            raise ConfigError(f"with_rolling_policy takes a RollingPolicy, not {rolling_policy!r}")
        made = copy(self)
        made.rolling = rolling_policy
        return made

    def with_output_file_config(self, output_file_config: OutputFileConfig) -> Self:
        """The same sink, whose files are named so."""
        if not isinstance(output_file_config, OutputFileConfig):
            raise ConfigError(
                f"with_output_file_config takes an OutputFileConfig, not {output_file_config!r}"
            )
        made = copy(self)
        made.files = output_file_config
        return made

    def with_bucket_assigner(self, bucket_assigner: BucketAssigner) -> Self:
        """The same sink: its only bucket is its directory."""
        if not isinstance(bucket_assigner, BucketAssigner):
            raise ConfigError(
                f"with_bucket_assigner takes a BucketAssigner, not {bucket_assigner!r}"
            )
        return self

    def build(self) -> Self:
        """The sink itself."""
        return self

    def create_operator_factory(self) -> Callable[[], Operator]:
        return partial(
            TextSinkOperator,
            self.path,
            self.encoder,
            self.rolling.part_size,
            self.files.part_suffix,
        )


class TextSinkOperator(FileSinkOperator["TextPartFile"]):
    """Writes and commits one subtask's share of the output."""

    extension = ".text"

    def __init__(self, path: str, encoder: Encoder, part_size: int | None, suffix: str) -> None:
        super().__init__(path)
        self._encoder = encoder
        self._part_size = part_size
        self._suffix = suffix

    def on_batch(self, batch: Batch, input_index: int) -> None:
        for record in batch.rows:
            data = self._encoded(record)
            if self._current is None:
                self._current = TextPartFile(self.new_path())
            self._current.write(data)
            if self._part_size is not None and self._current.size >= self._part_size:
                self.roll()

    def final_name(self, checkpoint_id: CheckpointId, counter: int) -> CommittedName:
        subtask = self.ctx.subtask
        writer = TextWriter(self.ctx.attempt, mark_of(self.ctx.job_id), self._suffix)
        return CommittedName(subtask.operator, subtask.index, checkpoint_id, counter, writer)

    def writer_of(
        self, path: Path, name: CommittedName, *, by_default: bool
    ) -> AttemptNumber | None:
        writer = name.writer
        is_own = writer is not None and writer.mark == mark_of(self.ctx.job_id)
        return writer.attempt if writer is not None and is_own else None

    def is_whole(self, path: Path) -> bool:
        path.stat()
        return True  # The end of a text file does not tell; a rewind keeps what it may need.

    def _encoded(self, record: object) -> bytes:
        try:
            data = self._encoder.encode(record)
        except UserError:
            raise
        except Exception as error:
            raise SchemaError(
                f"{self.ctx.label} cannot encode {short_repr(record)} with "
                f"{type(self._encoder).__name__}: {named(error)}"
            ) from error
        if not isinstance(data, bytes):
            raise SchemaError(
                f"{self.ctx.label}: {type(self._encoder).__name__}.encode() returned "
                f"{short_repr(data)} for {short_repr(record)}; it must return bytes"
            )
        return data


class TextPartFile(PartFile):
    """A file of encoded records while it is written; it is open only for as long as a write."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.size = 0  # In bytes.
        self._buffer = bytearray()
        create(path, lambda path: path.write_bytes(b""))

    def write(self, data: bytes) -> None:
        """Add a record."""
        self._buffer += data
        self.rows += 1
        self.size += len(data)
        if len(self._buffer) >= BUFFER_BYTES:
            self.complete()

    def complete(self) -> None:
        if self._buffer:
            with self.path.open("ab") as file:
                file.write(self._buffer)
            self._buffer.clear()

    def abandon(self) -> None:
        self._buffer.clear()
        self.path.unlink(missing_ok=True)
