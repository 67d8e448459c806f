"""Lines of text files as a source, under PyFlink's ``FileSource``: a position is a byte offset.

A split is one file, which must not change meanwhile: every split carries the size and modification
time of its file, checked whenever the file is opened.
"""

import codecs
import os
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from typing import Any, NoReturn, Self

from weir.common.batch import Batch
from weir.common.typeinfo import Types
from weir.errors import ConfigError, SchemaError
from weir.operators.sources.input_files import check_unchanged, identity, list_files
from weir.operators.sources.split_source import Source, SplitReader


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """The form of the records in a file: lines of text.

    Raises:
        ConfigError: Python has no such charset, or it has another line break than ASCII.
    """

    charset_name: str = "UTF-8"

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.charset_name)
        except LookupError as error:
            raise ConfigError(
                f"{self.charset_name!r} is no charset; give for example UTF-8"
            ) from error
        if "\n".encode(self.charset_name) != b"\n":
            raise ConfigError(
                f"files in {self.charset_name} cannot be cut into lines; convert them to UTF-8"
            )

    @classmethod
    def text_line_format(cls, charset_name: str = "UTF-8") -> Self:
        """Each line is a record, a ``str`` without its line break."""
        return cls(charset_name)


class FileSource(Source):
    """The lines of text files, or of all files below directories, or of globs.

    ``FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths).build()``, as in
    PyFlink; ``build`` may be left out. Names that start with ``_`` or ``.`` below a directory are
    left out. A path must mean the same files on every machine of the cluster.

    Raises:
        ConfigError: No path is given, or ``stream_format`` is no ``StreamFormat``.
    """

    type_info = Types.STRING()

    def __init__(
        self,
        stream_format: StreamFormat,
        *paths: str | os.PathLike[str],
        rows_per_second: float | None = None,
    ) -> None:
        super().__init__(rows_per_second)
        if not isinstance(stream_format, StreamFormat):
            raise ConfigError(
                "FileSource takes StreamFormat.text_line_format(), not "
                f"{stream_format!r}; Parquet files are read by ParquetSource"
            )
        if not paths:
            raise ConfigError("FileSource needs the path of a text file, directory or glob")
        self.stream_format = stream_format
        self.paths = [os.path.abspath(path) for path in paths]  # Executors run elsewhere.

    @classmethod
    def for_record_stream_format(
        cls, stream_format: StreamFormat, *paths: str | os.PathLike[str]
    ) -> Self:
        """The records of these files.

        Raises:
            ConfigError: No path is given, or ``stream_format`` is no ``StreamFormat``.
        """
        return cls(stream_format, *paths)

    @classmethod
    def for_bulk_file_format(cls, bulk_format: object, *paths: str) -> NoReturn:
        """Refused: columnar files are read by ``ParquetSource``.

        Raises:
            ConfigError: Always; the message says what to read them with.
        """
        raise ConfigError(
            "FileSource has no bulk formats; read Parquet files with "
            "weir.datastream.connectors.ParquetSource(path)"
        )

    def process_static_file_set(self) -> Self:
        """Read the files that there are when the job first starts, and end: the only way here."""
        return self

    def monitor_continuously(self, discovery_interval: object) -> NoReturn:
        """Refused: files that come later are not read.

        Raises:
            ConfigError: Always; the message says what to do instead.
        """
        raise ConfigError(
            "FileSource reads the files that there are when the job first starts; leave "
            "monitor_continuously out, and start the script for new files, or write a Source of "
            "your own (weir.datastream.connectors.Source)"
        )

    def build(self) -> Self:
        """The source itself."""
        return self

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        files = [file for path in self.paths for file in list_files(path, "text", "")]
        return [identity(file) for file in dict.fromkeys(files)]

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        # Before opening, for a message that names the cause, and after, because only an open file
        # can no longer be replaced.
        check_unchanged(split)
        file = open(split["path"], "rb")  # noqa: SIM115 - the reader closes it.
        try:
            check_unchanged(split)
            file.seek(position or 0)
        except BaseException:
            file.close()
            raise
        return _LineReader(file, self.stream_format.charset_name)


class _LineReader(SplitReader):
    def __init__(self, file: BufferedReader, charset: str) -> None:
        self._file = file
        self._charset = charset

    @property
    def position(self) -> int:
        return self._file.tell()

    def read(self, rows_max: int) -> Batch | None:
        start = self._file.tell()
        lines = list(islice(iter(self._file.readline, b""), rows_max))
        if not lines:
            return None
        try:
            texts = b"".join(lines).decode(self._charset)
        except UnicodeDecodeError as error:
            raise SchemaError(
                f"{self._file.name} is not text in {self._charset}: {error.reason} at byte "
                f"{start + error.start}; give its charset to StreamFormat.text_line_format()"
            ) from error
        records = [line.removesuffix("\r") for line in texts.removesuffix("\n").split("\n")]
        return Batch.of_rows(records, FileSource.type_info)

    def close(self) -> None:
        self._file.close()
