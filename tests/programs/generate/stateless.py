"""Stages without a key: maps and filters, side outputs, partitioning and unions."""

import re
from dataclasses import replace

from tests.programs.generate.fragments import behind, declaration
from tests.programs.generate.growing import Growing
from tests.programs.kinds import FORMS, VALUES, field, record
from tests.programs.model import Order, Stream, Time


def map_each(growing: Growing, stream: Stream) -> None:
    """One record from each."""
    number = growing.next_number()
    after, tuned = behind(growing, stream)
    shapes = ["function"]
    tags: tuple[str, ...]
    if stream.form == "list":
        shapes += ["same-buffer"]
    if stream.value == "ints":
        shapes += ["changed-later"]
    shape = growing.pick(growing.wanted(shapes))
    if shape == "same-buffer":
        made = (
            f"class F{number}(MapFunction):\n"
            "    def open(self, ctx):\n        self.buffer = []\n"
            "    def map(self, r):\n        self.buffer[:] = r\n        return self.buffer\n"
        )
        declared, form, tags = "", stream.form, ("aliased-record",)
        kind, function = stream.value, f"F{number}()"
    elif shape == "changed-later":
        made = (
            f"class F{number}(MapFunction):\n"
            "    def open(self, ctx):\n        self.last = None\n"
            "    def map(self, r):\n"
            "        if self.last is not None:\n"
            f"            {field(stream.form, 'v', 'self.last')}.append(99)\n"
            "        self.last = r\n        return r\n"
        )
        declared, form, tags = "", stream.form, ("aliased-record",)
        kind, function = stream.value, f"F{number}()"
    else:
        statement, result, form, kind, tags = _changed(growing, stream)
        declared, form, more = declaration(growing, form, stream.key, kind)
        tags += more
        function = f"f{number}"
        made = f"def f{number}(r):\n"
        made += f"    {statement}\n" if statement else ""
        made += f"    return {result}\n"
    growing.add(
        f"{made}s{number} = {stream.name}.map({function}{declared}){tuned}",
        replace(after, name=f"s{number}", form=form, value=kind, is_typed=bool(declared)),
        "map",
        *tags,
    )


def flat_map(growing: Growing, stream: Stream) -> None:
    """Any number of records from each."""
    number = growing.next_number()
    after, tuned = behind(growing, stream)
    statement, result, form, kind, tags = _changed(growing, stream)
    declared, form, more = declaration(growing, form, stream.key, kind)
    times = growing.pick([1, 2])
    lines = "".join(f"    {line}\n" for line in (statement, f"yield {result}") * times if line)
    if times == 2 and statement:
        tags += ("aliased-record",)
    if tags and times == 2 and growing.avoids("aliased-record"):
        lines, tags = f"    {statement}\n    return [{result}]\n", tags[:1]
    if times == 2 and statement and stream.value != kind:
        # What the second change sees is what the first one made.
        lines = f"    {statement}\n    yield {result}\n"
    growing.add(
        f"def f{number}(r):\n{lines}s{number} = {stream.name}.flat_map(f{number}{declared}){tuned}",
        replace(after, name=f"s{number}", form=form, value=kind, is_typed=bool(declared)),
        "flat_map",
        *tags,
        *more,
    )


def keep_some(growing: Growing, stream: Stream) -> None:
    """Some of the records."""
    number = growing.next_number()
    after, tuned = behind(growing, stream)
    keeps = f"{field(stream.form, 't')} // 100 % {growing.pick([2, 3])} != 1"
    growing.add(
        f"s{number} = {stream.name}.filter(lambda r: {keeps}){tuned}",
        replace(after, name=f"s{number}"),
        "filter",
    )


def split(growing: Growing, stream: Stream) -> None:
    """Some records to a side output."""
    number, side = growing.next_number(), growing.next_number()
    after, tuned = behind(growing, stream)
    t = field(stream.form, "t")
    tag = f'OutputTag("side-{side}")'
    shared = growing.may("aliased-record")
    growing.add(
        f"class F{number}(ProcessFunction):\n"
        "    def process_element(self, r, ctx):\n"
        f"        if {t} // 100 % 2:\n            yield {tag}, r\n"
        + ("        yield r\n" if shared else "        else:\n            yield r\n")
        + f"s{number} = {stream.name}.process(F{number}()){tuned}\n"
        f"s{side} = s{number}.get_side_output({tag})",
        replace(after, name=f"s{number}", is_typed=False),
        "process",
        "side-output",
        *(("aliased-record",) if shared else ()),
    )
    growing.streams.append(replace(after, name=f"s{side}", is_typed=False))


def spread(growing: Growing, stream: Stream) -> None:
    """Another way to the next operator."""
    number = growing.next_number()
    way = growing.pick(
        ["rebalance()", "rescale()", "shuffle()", "global_()", "custom", "broadcast()"]
    )
    count = growing.pick([1, 2, 3])
    k = field(stream.form, "t")
    if way == "custom":
        way = f"partition_custom(lambda key, n: key // 100 % n, lambda r: {k})"
    time = stream.time
    if time is Time.EXACT:
        time = Time.SAFE if stream.late_free else Time.NONE
    identity = record(stream.form, *(field(stream.form, name) for name in ("k", "t", "v")))
    growing.add(
        f"s{number} = {stream.name}.{way}.map(lambda r: {identity}).set_parallelism({count})",
        # Its own parallelism is none that a following forward could rely on.
        replace(
            stream,
            name=f"s{number}",
            order=Order.NONE,
            time=time,
            parallelism=count,
            is_typed=False,
        ),
        "partitioning",
    )


def union(growing: Growing, stream: Stream) -> None:
    """Two streams of one shape in one."""
    same = [
        s
        for s in growing.streams
        if s.name != stream.name
        and (s.form, s.key, s.value) == (stream.form, stream.key, stream.value)
        and s.order is not Order.LAST
    ]
    if not same:
        map_each(growing, stream)
        return
    other = growing.pick(same)
    growing.reads(other)
    number = growing.next_number()
    is_timed = all(s.time is not Time.NONE and s.late_free for s in (stream, other))
    identity = record(stream.form, *(field(stream.form, name) for name in ("k", "t", "v")))
    growing.add(
        f"s{number} = {stream.name}.union({other.name}).map(lambda r: {identity})",
        replace(
            stream,
            name=f"s{number}",
            order=Order.NONE,
            time=Time.SAFE if is_timed else Time.NONE,
            parallelism=None,
            is_typed=False,
        ),
        "union",
    )


def _changed(growing: Growing, stream: Stream) -> tuple[str, str, str, str, tuple[str, ...]]:
    """Statements and a result for one record ``r``: text, expression, form, kind and tags."""
    f = stream.form
    k, t, v = (field(f, name) for name in ("k", "t", "v"))
    changes = VALUES[stream.value].changes
    kind, change = growing.pick(changes)
    change = _with(change, v)
    form = growing.pick(FORMS)
    idioms = ["plain"]
    if f in ("list", "dict"):
        idioms.append("mutates-record")
    if stream.value == "ints":
        idioms.append("mutates-value")
    match growing.pick(growing.wanted(idioms)):
        case "mutates-record":
            return f"{v} = {change}", "r", f, kind, ("mutates-input",)
        case "mutates-value":
            return f"{v}.append(7)", "r", f, "ints", ("mutates-input",)
    return "", record(form, k, t, change), form, kind, ()


def _with(expression: str, value: str) -> str:
    """The expression of ``v`` with another one in its place."""
    return re.sub(r"\bv\b", lambda _: value, expression)
