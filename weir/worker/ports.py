"""The ports of a worker: its inbox, transport, reporter and snapshot thread.

Everything that reaches a worker's loop from another thread or machine is an item in its *inbox*;
everything that leaves goes through its *transport* (to other subtasks) or its *reporter* (to the
job master). A simulation replaces all of them. The loop thread alone touches subtasks, gates and
credit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from weir.ids import ChannelId
from weir.protocol.deployment import WorkerCommand, WorkerReport
from weir.protocol.elements import Element
from weir.protocol.messages import Report, SubtaskCommand


@dataclass(frozen=True, slots=True)
class ElementArrived:
    """An element came in on a channel, in the channel's order."""

    channel: ChannelId
    element: Element


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """The receiver of an outgoing channel allows this many more bytes."""

    channel: ChannelId
    size: int


@dataclass(frozen=True, slots=True)
class CommandArrived:
    """A command of the job master came in."""

    command: SubtaskCommand | WorkerCommand


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """A data connection of this attempt broke; the attempt cannot go on."""

    peer: str
    cause: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function to run on the loop, by which the snapshot thread returns its outcome."""

    function: Callable[[], None]


InboxItem: TypeAlias = ElementArrived | CreditGranted | CommandArrived | ConnectionBroken | Call


class Inbox(Protocol):
    """The queue of items that other threads leave for the loop."""

    def put(self, item: InboxItem) -> None:
        """Add an item and wake the loop; callable from any thread."""


class Transport(Protocol):
    """Carries elements to other subtasks; order is kept per channel. Never blocks."""

    def send(self, channel: ChannelId, element: Element) -> None:
        """Queue an element for the receiver of an outgoing channel."""

    def grant(self, channel: ChannelId, size: int) -> None:
        """Allow the sender of an incoming channel this many more bytes."""


class Reporter(Protocol):
    """Carries reports to the job master, in order. Never blocks."""

    def report(self, report: Report | WorkerReport) -> None:
        """Queue a report."""


class SnapshotThread(Protocol):
    """Runs the asynchronous parts of snapshots, one after the other."""

    def submit(self, work: Callable[[], Any]) -> None:
        """Queue work, which never raises: it returns its outcome by an inbox ``Call``."""
