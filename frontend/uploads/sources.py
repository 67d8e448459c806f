"""The text of an uploaded pipeline, as much of it as a page shows."""

from dataclasses import dataclass

from controlplane.base.errors import NotFound
from controlplane.base.logs import printable
from controlplane.base.threads import Unavailable
from jobs import uploads
from jobs.models import Artifact

SOURCE_BYTES_MAX = 512 << 10
LINE_CHARACTERS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Source:
    """Lines of a script, or why there are none."""

    lines: tuple[str, ...] = ()
    is_cut: bool = False  # It is longer than SOURCE_BYTES_MAX: this is its beginning.
    why_not: str = ""


def read(artifact: Artifact) -> Source:
    """The lines of an upload, which is no longer read than ``SOURCE_BYTES_MAX``."""
    try:
        data = uploads.beginning(artifact, SOURCE_BYTES_MAX + 1)
    except NotFound:
        return Source(
            why_not="The file is not on this server. Either it was deleted, or web and worker do "
            "not share the directory of uploads (WEIR_UPLOADS)."
        )
    except Unavailable as refusal:
        return Source(why_not=refusal.detail)
    except OSError as error:
        return Source(why_not=f"The file cannot be read: {error.strerror}.")
    text = data[:SOURCE_BYTES_MAX].decode(errors="replace").removesuffix("\n")
    return Source(tuple(map(_shown, text.split("\n"))), len(data) > SOURCE_BYTES_MAX)


def _shown(line: str) -> str:
    """The line with its invisible characters as escapes: such as those that turn text around."""
    text = "\t".join(map(printable, line.removesuffix("\r").split("\t")))
    if len(text) > LINE_CHARACTERS_MAX:
        text = f"{text[:LINE_CHARACTERS_MAX]}… ({len(text) - LINE_CHARACTERS_MAX:,} more)"
    return f"{text}\\r" if line.endswith("\r") else text
