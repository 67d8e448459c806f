"""The operator graph of a job, and its picture: rows -> boxes, lines and texts with their places.

A *chain* acknowledges as one, so a chain is a box, and its operators are rows in it; an edge
between two chains is a line. Barriers and rates are not in here but in ``state``: the picture is
drawn once, and the changing state is applied to it. Pure, except that rows are Django's.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frontend.graph.layout import Box, Line, Point, layout
from jobs.models import Edge, Operator

Json = dict[str, Any]

# Units: pixels of the picture. One of few layers grows with its card; wider ones scroll.
CARD_WIDTH = 1_190.0  # Inside a card on a wide screen.
MARGIN = 14.0
WIDTH = 232.0
PADDING = 13.0
HEAD = 36.0  # The row of the chain's head.
ROW = 21.0  # Of each other operator.
FOOT = 113.0  # Barrier, rates, two lines of load, and watermark.
LANE = 13.0  # Between a chain's branches.
GATE = 21.0  # Between the places where several inputs enter.
ROWS_MAX = 12  # Operators of a chain; a longer one shows the number of the others.

HEAD_CHARACTERS = 19  # Letters of usual width that fit into the box beside the role.
ROW_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class Member:
    """One operator of a chain."""

    uid: str
    name: str
    role: str  # "source", "sink" or nothing.


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that run in one subtask, the head first, each after the one that feeds it."""

    uid: str  # Of its head.
    parallelism: int
    members: tuple[Member, ...]
    parents: tuple[int, ...]  # Of each member but the head: the row that feeds it.

    @property
    def role(self) -> str:
        """The roles of its operators: ``"source"``, ``"source, sink"`` …"""
        return ", ".join(dict.fromkeys(member.role for member in self.members if member.role))


@dataclass(frozen=True, slots=True)
class Link:
    """An edge between two chains: the input gate ``gate`` of the chain ``target``."""

    position: int  # As in the graph.
    source: str  # The sending chain.
    operator: str  # The sending operator in that chain.
    target: str
    gate: int
    partitioning: str
    side_tag: str

    @property
    def name(self) -> str:
        """The name of the edge: its ends and its partitioning."""
        side = f", side output {self.side_tag}" if self.side_tag else ""
        return f"{self.operator} → {self.target} ({self.partitioning}{side})"


@dataclass(frozen=True)
class Graph:
    """The chains in topological order, and the edges between them."""

    chains: tuple[Chain, ...]
    links: tuple[Link, ...]

    @cached_property
    def revision(self) -> str:
        """A hash of the graph: a page with another revision fetches the picture again."""
        text = repr((self.chains, self.links))
        return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def inputs(self) -> Mapping[str, tuple[Link, ...]]:
        """The input gates of each chain, in their order."""
        return {
            chain.uid: tuple(link for link in self.links if link.target == chain.uid)
            for chain in self.chains
        }

    @cached_property
    def feeding(self) -> frozenset[str]:
        """The chains that send to others."""
        return frozenset(link.source for link in self.links)


def build_graph(operators: Sequence[Operator], edges: Sequence[Edge]) -> Graph:
    """The graph of a job's rows; operators in topological order, edges by their position."""
    members: dict[str, list[Operator]] = {}
    for row in operators:
        members.setdefault(row.chain, []).append(row)
    chain_of = {row.uid: row.chain for row in operators}
    known = [edge for edge in edges if edge.source in chain_of and edge.target in chain_of]
    inner: dict[str, str] = {  # Behind its head a chain's operator has one input.
        edge.target: edge.source
        for edge in known
        if chain_of[edge.source] == chain_of[edge.target] and edge.target != chain_of[edge.target]
    }
    links = []
    gates: dict[str, int] = {}
    for edge in sorted(known, key=lambda edge: edge.position):
        if edge.target in inner:
            continue
        target = chain_of[edge.target]
        gates[target] = gates.get(target, -1) + 1
        links.append(
            Link(
                position=edge.position,
                source=chain_of[edge.source],
                operator=edge.source,
                target=target,
                gate=gates[target],
                partitioning=edge.partitioning,
                side_tag=edge.side_tag or "",
            )
        )
    return Graph(
        chains=tuple(_chain(head, rows, inner) for head, rows in members.items()),
        links=tuple(links),
    )


def _chain(head: str, rows: Sequence[Operator], inner: Mapping[str, str]) -> Chain:
    """The chain with its operators depth first: the first successor stands right below."""
    by_uid = {row.uid: row for row in rows}
    children: dict[str, list[str]] = {}
    for row in rows:
        if row.uid != head:
            children.setdefault(inner.get(row.uid, head), []).append(row.uid)
    order: list[str] = []
    waiting = [head]
    while waiting:
        uid = waiting.pop()
        order.append(uid)
        waiting += reversed(children.get(uid, ()))
    at = {uid: n for n, uid in enumerate(order)}
    return Chain(
        uid=head,
        parallelism=max(row.parallelism for row in rows),
        members=tuple(_member(by_uid[uid]) for uid in order if uid in by_uid),
        parents=tuple(at[inner.get(uid, head)] for uid in order[1:]),
    )


def _member(row: Operator) -> Member:
    role = "source" if row.is_source else "sink" if row.is_sink else ""
    return Member(row.uid, row.name, role)


def picture(graph: Graph, state: Json) -> Json | None:
    """The picture for the template: boxes and lines with places, and with the state.

    None before there is a graph. ``graph.js`` changes the picture as ``_chain_shown`` does.
    """
    if not graph.chains:
        return None
    shapes = {chain.uid: _Shape(chain) for chain in graph.chains}
    lines = [
        Line(
            link.source,
            link.target,
            leaves_at=shapes[link.source].leaves_at(link.operator),
            enters_at=_enters_at(link, graph, shapes[link.target]),
        )
        for link in graph.links
    ]
    boxes = [Box(uid, WIDTH, shape.height) for uid, shape in shapes.items()]
    drawn = layout(boxes, lines, width=CARD_WIDTH - 2 * MARGIN)
    chains = {chain["uid"]: chain for chain in state["chains"]}
    links = {link["key"]: link for link in state["links"]}
    return {
        "revision": graph.revision,
        "width": round(drawn.width + 2 * MARGIN),
        "height": round(drawn.height + 2 * MARGIN),
        "layers": len({left for left, _ in drawn.corners.values()}),
        "chains": [
            shapes[chain.uid].drawn(drawn.corners[chain.uid]) | _chain_shown(chains[chain.uid])
            for chain in graph.chains
        ],
        "links": [
            _way(route) | {"key": str(link.position), "state": links[str(link.position)]}
            for link, route in zip(graph.links, drawn.routes, strict=True)
        ],
    }


def _chain_shown(state: Json) -> Json:
    inner = WIDTH - 2 * PADDING
    return {
        "state": state,
        "fill": _round(state["fraction"] * WIDTH),
        "busy_width": _round(state["busy"] * inner),
        "peak": _round(state["busiest"] * inner),
        "pressed_width": _round(state["back_pressured"] * inner),
    }


def _enters_at(link: Link, graph: Graph, shape: "_Shape") -> float:
    count = len(graph.inputs[link.target])
    gap = min(GATE, (shape.height - 2 * PADDING) / max(count - 1, 1))
    return HEAD / 2 + gap * link.gate


class _Shape:
    """A chain as a box: its height and the places of its rows."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        count = len(chain.members)
        self._shown = count if count <= ROWS_MAX else ROWS_MAX - 1
        rows = min(count, ROWS_MAX)
        self.divider = HEAD + ROW * (rows - 1) + (4 if rows > 1 else 0)
        self.height = self.divider + FOOT

    def leaves_at(self, uid: str) -> float:
        """The middle of an operator's row."""
        at = next(n for n, member in enumerate(self.chain.members) if member.uid == uid)
        return self._middle(min(at, ROWS_MAX - 1))

    @staticmethod
    def _middle(row: int) -> float:
        return HEAD / 2 if row == 0 else HEAD + ROW * (row - 0.5)

    def drawn(self, corner: Point) -> Json:
        """The box for the template; places inside are relative to the box."""
        chain, lanes = self.chain, self._lanes()
        left = PADDING + 6
        rows = [
            {
                "uid": member.uid,
                "name": member.name,
                "text": _cut(member.uid, ROW_CHARACTERS if at else HEAD_CHARACTERS, lanes[at]),
                "role": member.role,
                "is_head": at == 0,
                "dot_x": _round(left + LANE * lanes[at] - 3),
                "x": _round(left + LANE * lanes[at] + 7),
                "y": _round(self._middle(at)),
            }
            for at, member in enumerate(chain.members[: self._shown])
        ]
        hidden = [member.uid for member in chain.members[self._shown :]]
        return {
            "uid": chain.uid,
            "parallelism": chain.parallelism,
            "x": _round(corner[0] + MARGIN),
            "y": _round(corner[1] + MARGIN),
            "width": WIDTH,
            "height": self.height,
            "inner": WIDTH - 2 * PADDING,
            "right": WIDTH - PADDING,
            "divider": self.divider,
            "rows": rows,
            "joints": self._joints(lanes, left - 3),
            "more": {
                "text": f"and {len(hidden):,} more operators",
                "names": ", ".join(hidden),
                "y": self._middle(ROWS_MAX - 1),
            }
            if hidden
            else None,
        }

    def _lanes(self) -> list[int]:
        """The indentation of each row: the last branch goes on below its parent."""
        lanes = [0]
        last = {parent: at for at, parent in enumerate(self.chain.parents, start=1)}
        for at, parent in enumerate(self.chain.parents, start=1):
            lanes.append(lanes[parent] + (last[parent] != at))
        return lanes

    def _joints(self, lanes: Sequence[int], left: float) -> str:
        """The lines between the rows of a chain, as one path."""
        parts = []
        for at, parent in enumerate(self.chain.parents, start=1):
            if at >= self._shown:
                break
            x, y = left + LANE * lanes[parent], self._middle(parent) + 4
            end = self._middle(at)
            if lanes[at] == lanes[parent]:
                parts.append(f"M{x:g} {y:g}V{end - 4:g}")
            else:
                parts.append(f"M{x:g} {y:g}V{end:g}H{left + LANE * lanes[at] - 4:g}")
        return "".join(parts)


def _way(route: Sequence[Point]) -> Json:
    """A line's path, and a point on its last step for the label of a late barrier."""
    points = [(x + MARGIN, y + MARGIN) for x, y in route]
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for at in range(0, len(points), 2):
        (x, y), (u, v) = points[at], points[at + 1]
        if at:
            parts.append(f"L{x:.1f} {y:.1f}")
        middle = (x + u) / 2
        parts.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {v:.1f} {u:.1f} {v:.1f}")
    (x, y), (u, v) = points[-2:]
    return {
        "path": "".join(parts),
        "x": _round(x + (u - x) * LABEL_ACROSS),
        "y": _round(y + (v - y) * LABEL_DOWN),
    }


# The place of a line's label, 0.6 of the way along its last curve: near its end, where lines that
# begin together have parted.
LABEL_ACROSS = 0.58
LABEL_DOWN = 0.65


def _cut(text: str, characters: int, lane: int) -> str:
    most = max(6, characters - 2 * lane)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _round(value: float) -> float:
    return round(value, 1)
