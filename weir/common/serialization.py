"""``Encoder``: the bytes of a record in a text file."""

import codecs
from abc import abstractmethod

from weir.errors import ConfigError


class Encoder:
    """Turns a record into the bytes that ``FileSink`` writes; a user's own defines ``encode``."""

    @abstractmethod
    def encode(self, value: object) -> bytes:
        """The bytes of ``value``, with what separates it from the next record."""

    @classmethod
    def simple_string_encoder(cls, charset_name: str = "UTF-8") -> "Encoder":
        """A line of ``str(value)`` for each record.

        Raises:
            ConfigError: Python has no such charset.
        """
        return SimpleStringEncoder(charset_name)


class SimpleStringEncoder(Encoder):
    """Writes ``str(value)`` and a line break."""

    def __init__(self, charset_name: str = "UTF-8") -> None:
        try:
            codecs.lookup(charset_name)
        except LookupError as error:
            raise ConfigError(f"{charset_name!r} is no charset; give for example UTF-8") from error
        self.charset_name = charset_name

    def encode(self, value: object) -> bytes:
        return f"{value}\n".encode(self.charset_name)
