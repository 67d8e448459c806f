"""Layout of a directed graph: positions of boxes and lines, from left to right. Pure.

Sugiyama's method in four plain steps (Sugiyama, Tagawa, Toda: *Methods for visual understanding of
hierarchical system structures*, 1981):

1. *Layers.* A box stands one layer behind the last of those that feed it: every line goes forward.
2. *Places for lines.* A line that passes a layer gets a place of its own there, so that it goes
   between the boxes and not over them.
3. *Order.* Within its layer everything goes to the mean of its neighbours, back and forth; the
   order with the fewest crossings is kept.
4. *Heights.* In that order everything moves as near to its neighbours as the gaps allow: least
   squares under "not above the one before", which pooling neighbours solves exactly.

The same graph is always drawn in the same way. (``grandalf`` does this as well; it is under the
GPL, and had its last release in 2023.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

ROUNDS = 8  # Of ordering and of moving; graphs of this size do not change after three or four.
BETWEEN_BOXES = 26.0
BETWEEN_LINES = 18.0
BETWEEN_LAYERS = 128.0  # A word has to fit on a line.
BETWEEN_LAYERS_MAX = 300.0

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A box with its size."""

    key: str
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Line:
    """From the right side of a box to the left side of another, at heights below their tops."""

    source: str
    target: str
    leaves_at: float
    enters_at: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of all boxes and lines.

    Shape: ``corners`` are the boxes' upper left ones; ``routes`` has an even number of points per
    line, in the lines' order: each odd step crosses from layer to layer, each even one passes one.
    """

    width: float
    height: float
    corners: Mapping[str, Point]
    routes: Sequence[Sequence[Point]]


@dataclass(slots=True)
class _Place:
    """A box in its layer, or where a line passes one."""

    layer: int
    height: float
    is_box: bool
    top: float = 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a line between two layers that follow each other."""

    left: int
    right: int
    leaves_at: float
    enters_at: float


def layout(boxes: Sequence[Box], lines: Sequence[Line], *, width: float = 0.0) -> Layout:
    """Draw a graph.

    Args:
        width: Layers keep apart, up to ``BETWEEN_LAYERS_MAX``, to be as wide as this together.

    Raises:
        graphlib.CycleError: It has a cycle; graphs of jobs have none.
        KeyError: A line names a box that is not there.
    """
    layers_of = _layers(boxes, lines)
    places = [_Place(layers_of[box.key], box.height, is_box=True) for box in boxes]
    number = {box.key: at for at, box in enumerate(boxes)}
    pieces, ways = _passing(lines, number, places)
    layers: list[list[int]] = [[] for _ in range(max(layers_of.values(), default=-1) + 1)]
    for at, place in enumerate(places):
        layers[place.layer].append(at)
    neighbours = _neighbours(pieces, len(places))
    layers = _ordered(layers, pieces, neighbours)
    _move(layers, places, neighbours)

    widths = [0.0] * len(layers)
    for box in boxes:
        widths[layers_of[box.key]] = max(widths[layers_of[box.key]], box.width)
    room = (width - sum(widths)) / max(len(layers) - 1, 1)
    apart = min(max(room, BETWEEN_LAYERS), BETWEEN_LAYERS_MAX)
    lefts = [sum(widths[:n]) + apart * n for n in range(len(layers))]
    lowest = min((place.top for place in places), default=0.0)
    corners = {
        box.key: (lefts[layers_of[box.key]], places[at].top - lowest)
        for at, box in enumerate(boxes)
    }
    routes = []
    for line, way in zip(lines, ways, strict=True):
        x, y = corners[line.source]
        width = boxes[number[line.source]].width
        points = [(x + width, y + line.leaves_at)]
        for at in way:
            middle = places[at].top - lowest + places[at].height / 2
            left = lefts[places[at].layer]
            points += [(left, middle), (left + widths[places[at].layer], middle)]
        x, y = corners[line.target]
        routes.append([*points, (x, y + line.enters_at)])
    return Layout(
        width=lefts[-1] + widths[-1] if layers else 0.0,
        height=max((place.top - lowest + place.height for place in places), default=0.0),
        corners=corners,
        routes=routes,
    )


def _layers(boxes: Sequence[Box], lines: Sequence[Line]) -> dict[str, int]:
    feeds: dict[str, set[str]] = {box.key: set() for box in boxes}
    for line in lines:
        feeds[line.target].add(line.source)
    layers: dict[str, int] = {}
    for key in TopologicalSorter(feeds).static_order():
        layers[key] = max((layers[source] + 1 for source in feeds[key]), default=0)
    return layers


def _passing(
    lines: Sequence[Line], number: Mapping[str, int], places: list[_Place]
) -> tuple[list[_Piece], list[list[int]]]:
    """Cut the lines at the layers that they pass; ``places`` gets one more place for each."""
    pieces: list[_Piece] = []
    ways: list[list[int]] = []
    for line in lines:
        source, target = number[line.source], number[line.target]
        way = []
        before, leaves_at = source, line.leaves_at
        for layer in range(places[source].layer + 1, places[target].layer):
            places.append(_Place(layer, BETWEEN_LINES, is_box=False))
            here = len(places) - 1
            way.append(here)
            pieces.append(_Piece(before, here, leaves_at, BETWEEN_LINES / 2))
            before, leaves_at = here, BETWEEN_LINES / 2
        pieces.append(_Piece(before, target, leaves_at, line.enters_at))
        ways.append(way)
    return pieces, ways


_Neighbours = tuple[list[list[_Piece]], list[list[_Piece]]]


def _neighbours(pieces: Sequence[_Piece], count: int) -> _Neighbours:
    """The pieces of lines on the left and on the right of each place."""
    left_of: list[list[_Piece]] = [[] for _ in range(count)]
    right_of: list[list[_Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        left_of[piece.right].append(piece)
        right_of[piece.left].append(piece)
    return left_of, right_of


def _ordered(
    layers: list[list[int]], pieces: Sequence[_Piece], neighbours: _Neighbours
) -> list[list[int]]:
    """The layers in the order with the fewest crossings of all rounds."""
    left_of, right_of = neighbours
    best, fewest = layers, _all_crossings(layers, pieces)
    for round_number in range(ROUNDS):
        if not fewest:
            break
        goes_right = round_number % 2 == 0
        layers = [list(layer) for layer in layers]
        rank = {at: float(n) for layer in layers for n, at in enumerate(layer)}
        for layer in layers if goes_right else reversed(layers):
            means = {
                at: _mean(
                    # Within a box the height at which a line leaves or enters counts as well.
                    [rank[p.left] + p.leaves_at * 1e-4 for p in left_of[at]]
                    if goes_right
                    else [rank[p.right] + p.enters_at * 1e-4 for p in right_of[at]],
                    otherwise=rank[at],
                )
                for at in layer
            }
            layer.sort(key=lambda at: (means[at], rank[at]))
            rank |= {at: float(n) for n, at in enumerate(layer)}
        crossings = _all_crossings(layers, pieces)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _mean(values: Sequence[float], *, otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _all_crossings(layers: Sequence[Sequence[int]], pieces: Sequence[_Piece]) -> int:
    rank = {at: n for layer in layers for n, at in enumerate(layer)}
    layer_of = {at: n for n, layer in enumerate(layers) for at in layer}
    ends: list[list[tuple[float, float]]] = [[] for _ in layers]
    for piece in pieces:
        leaves = rank[piece.left] + piece.leaves_at * 1e-4
        ends[layer_of[piece.left]].append((leaves, rank[piece.right] + piece.enters_at * 1e-4))
    return sum(_crossing(sorted(between)) for between in ends)


def _crossing(ends: Sequence[tuple[float, float]]) -> int:
    """The number of crossing pairs of lines, sorted by their beginnings; compares all pairs."""
    return sum(
        ends[a][0] < ends[b][0] and ends[a][1] > ends[b][1]
        for b in range(len(ends))
        for a in range(b)
    )


def _move(layers: Sequence[Sequence[int]], places: list[_Place], neighbours: _Neighbours) -> None:
    """Give every place its height, in the order of its layer."""
    left_of, right_of = neighbours
    for layer in layers:
        _settle(layer, places, [0.0] * len(layer))
    for round_number in range(ROUNDS):
        goes_right = round_number % 2 == 0
        for layer in layers if goes_right else reversed(layers):
            wanted = []
            for at in layer:
                place = places[at]
                from_left = [places[p.left].top + p.leaves_at - p.enters_at for p in left_of[at]]
                from_right = [places[p.right].top + p.enters_at - p.leaves_at for p in right_of[at]]
                near = (from_left or from_right) if goes_right else (from_right or from_left)
                wanted.append(_mean(near, otherwise=place.top))
            _settle(layer, places, wanted)


def _settle(layer: Sequence[int], places: list[_Place], wanted: Sequence[float]) -> None:
    """Set the tops as near to the wanted ones as the gaps allow, by least squares (pooling)."""
    offsets = []  # Of each top in a packed layer: without them, only the order has to be kept.
    offset = 0.0
    for before, at in zip([None, *layer[:-1]], layer, strict=True):
        if before is not None:
            are_boxes = places[before].is_box and places[at].is_box
            offset += places[before].height + (BETWEEN_BOXES if are_boxes else BETWEEN_LINES / 2)
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # Sum and count of what moves together.
    for top, offset in zip(wanted, offsets, strict=True):
        pools.append((top - offset, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, count = pools.pop()
            pools[-1] = (pools[-1][0] + total, pools[-1][1] + count)
    settled = [total / count for total, count in pools for _ in range(count)]
    for at, top, offset in zip(layer, settled, offsets, strict=True):
        places[at].top = top + offset
