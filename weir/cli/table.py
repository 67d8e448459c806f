"""The picture of a job as a table for the terminal: a header, a row per chain of operators."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir.cli import formats
from weir.cli.job_view import ChainPicture, CheckpointPicture, Picture
from weir.protocol.lifecycle import JobStatus

_STATUS_STYLES = {
    JobStatus.RUNNING: "bold green",
    JobStatus.FINISHED: "bold green",
    JobStatus.FAILED: "bold red",
    JobStatus.FAILING: "bold red",
    JobStatus.RESTARTING: "bold yellow",
    JobStatus.CANCELLING: "bold yellow",
    JobStatus.CANCELED: "bold yellow",
}


COLUMN_GAP = 3  # Between columns: their padding and the box.
NAME_WIDTH_MIN = 10


@dataclass(frozen=True, slots=True)
class Column:
    """A column, shown in terminals of at least ``from_width`` columns."""

    title: str
    cell: Callable[[ChainPicture, float], str]
    from_width: int = 0
    is_shown: Callable[[ChainPicture], bool] = lambda chain: True  # With any such chain.


def _time(of: Callable[[ChainPicture], float | None]) -> Callable[[ChainPicture, float], str]:
    def cell(chain: ChainPicture, now_ms: float) -> str:
        value = of(chain)
        return "-" if value is None else formats.duration(value)

    return cell


def _share(of: Callable[[ChainPicture], float | None]) -> Callable[[ChainPicture, float], str]:
    def cell(chain: ChainPicture, now_ms: float) -> str:
        value = of(chain)
        return "-" if value is None else formats.share(value)

    return cell


def _running(chain: ChainPicture, now_ms: float) -> str:
    if chain.ended == chain.parallelism:
        return "ended"
    text = f"{chain.running}/{chain.parallelism}"
    if chain.ended:
        text += f" ({chain.ended} ended)"
    return f"{text} ({chain.failed} failed)" if chain.failed else text


def _acknowledged(chain: ChainPicture, now_ms: float) -> str:
    return "-" if chain.acknowledged is None else f"{chain.acknowledged}/{chain.expected}"


def _state(chain: ChainPicture, now_ms: float) -> str:
    return "-" if chain.state_size is None else formats.size(chain.state_size)


def _records(chain: ChainPicture, now_ms: float) -> str:
    return "-" if chain.records_per_s is None else formats.rate(chain.records_per_s)


def _bad(chain: ChainPicture, now_ms: float) -> str:
    return f"{chain.bad_records:,}" if chain.bad_records else "-"


def _watermark(chain: ChainPicture, now_ms: float) -> str:
    return formats.watermark(chain.watermark_ms, now_ms)


COLUMNS = (
    Column("running", _running),
    Column("acked", _acknowledged),
    Column("start delay", _time(lambda c: c.start_delay_ms), 100),
    Column("alignment", _time(lambda c: c.alignment_ms)),
    Column("sync", _time(lambda c: c.sync_ms), 110),
    Column("async", _time(lambda c: c.async_ms), 90),
    Column("state", _state),
    Column("records", _records),
    Column("bad", _bad, 80, is_shown=lambda c: c.bad_records > 0),
    Column("busy", _share(lambda c: c.busy), 80),
    Column("back-pr.", _share(lambda c: c.back_pressured), 120),
    Column("watermark", _watermark, 140),
)


def render(picture: Picture, width: int) -> RenderableType:
    """The whole picture, in a terminal of ``width`` columns."""
    table = chain_table(picture, width)
    parts: list[RenderableType] = [_header(picture), _checkpoints(picture), table]
    if picture.last is not None and picture.last.slowest is not None:
        parts.append(_slowest(picture.last))
    return Group(*parts)


def chain_table(picture: Picture, width: int) -> Table:
    """A row per chain, with the columns there is room for."""
    columns = [
        column
        for column in COLUMNS
        if width >= column.from_width and any(map(column.is_shown, picture.chains))
    ]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    rows = [[column.cell(chain, picture.now_ms) for column in columns] for chain in picture.chains]
    widths = [
        max([len(column.title), *(len(row[i]) for row in rows)]) for i, column in enumerate(columns)
    ]
    # Figures keep their width; the operators' names get the rest.
    left = width - sum(widths) - COLUMN_GAP * len(columns)
    longest = max((len(chain.name) for chain in picture.chains), default=0)
    name_width = max(NAME_WIDTH_MIN, min(left, longest))
    table.add_column("operators", overflow="ellipsis", no_wrap=True, width=name_width)
    for column, column_width in zip(columns, widths, strict=True):
        table.add_column(column.title, justify="right", no_wrap=True, min_width=column_width)
    for chain, row in zip(picture.chains, rows, strict=True):
        table.add_row(Text(chain.name), *map(Text, row), style="red" if chain.failed else "")
    return table


def _header(picture: Picture) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(picture.name, "bold").append(f" ({picture.job_id})  ")
    text.append(picture.status.value, _STATUS_STYLES.get(picture.status, "bold"))
    text.append(f"  attempt {picture.attempt}  up {formats.duration(picture.uptime_ms)}")
    recoveries = formats.counted(picture.recovery_count, "recovery", "recoveries")
    text.append(f"  {recoveries}", "yellow" if picture.recovery_count else "")
    return text


def _checkpoints(picture: Picture) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"checkpoints: {picture.completed_count:,} completed, ")
    text.append(f"{picture.failed_count:,} failed", "yellow" if picture.failed_count else "")
    text.append(f", {picture.aborted_count:,} aborted" if picture.aborted_count else "")
    if (last := picture.last) is not None:
        text.append(
            f"; last {last.checkpoint_id}, {formats.duration(last.age_ms)} ago, "
            f"took {formats.duration(last.elapsed_ms)}, {formats.size(last.state_size)}"
        )
    if (now := picture.under_way) is not None:
        text.append(
            f"; {now.checkpoint_id} under way: {now.acknowledged}/{now.expected}, "
            f"{formats.duration(now.elapsed_ms)}",
            "cyan",
        )
    return text


def _slowest(last: CheckpointPicture) -> Text:
    slowest = last.slowest
    assert slowest is not None
    return Text(
        f"slowest channel of checkpoint {last.checkpoint_id}: {slowest.receiver} from "
        f"{slowest.upstream}, {formats.duration(slowest.arrived_ms)} after the first barrier; "
        f"others were blocked up to {formats.duration(slowest.blocked_ms)}",
        no_wrap=True,
        overflow="ellipsis",
    )
