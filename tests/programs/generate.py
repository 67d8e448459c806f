"""Hypothesis strategies for programs.

A program grows stage by stage; each stage is one of those that give a defined result on the stream
it stands behind (``model``). ``avoid`` leaves idioms out, by tag.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.programs.kinds import FORMS, KEYS, SOURCE_KEYS, VALUES, field, literal, position, record
from tests.programs.model import Order, Output, Program, Stage, Stream, Time
from tests.programs.run import Variation

T = TypeVar("T")

SOURCES = frozenset({"collection", "generator", "vectorised", "sequence", "parquet"})
STAGES = frozenset(
    {"map", "flat_map", "filter", "split", "spread", "union", "keyed_map", "accumulate", "reduce"}
    | {"running", "count", "timers", "window", "batches", "columns", "failing"}
)


def all_but(*wanted: str) -> frozenset[str]:
    """What to avoid for programs that consist of these sources and stages only."""
    return (SOURCES | STAGES) - frozenset(wanted)


STEP_MS = 200
ROWS_MAX = 30


class Growing:
    """A program while it grows."""

    def __init__(self, draw: Callable[[Any], Any], avoid: frozenset[str], rows_min: int) -> None:
        self._draw = draw
        self._rows_min = rows_min
        self._avoid = avoid
        self._number = 0
        self.stages: list[Stage] = []
        self.streams: list[Stream] = []
        self._readers: dict[str, int] = {}

    # Drawing.

    def pick(self, options: Sequence[T]) -> T:
        """One of them; the first is the simplest."""
        picked: T = self._draw(st.sampled_from(options))
        return picked

    def flip(self) -> bool:
        """Whether; False is the simpler."""
        return bool(self._draw(st.booleans()))

    def may(self, tag: str) -> bool:
        """Whether an idiom is wanted and drawn."""
        return tag not in self._avoid and self.flip()

    def name(self) -> int:
        """The number of the next stream."""
        self._number += 1
        return self._number

    def add(self, text: str, stream: Stream, *tags: str) -> Stream:
        """A stage is written."""
        self.stages.append(Stage(text, frozenset(tags)))
        self.streams.append(stream)
        return stream

    # Sources.

    def source(self) -> None:
        """Write a source with its event time."""
        kinds = [self.collection, self.generator, self.vectorised, self.sequence, self.parquet]
        self.pick([kind for kind in kinds if kind.__name__ not in self._avoid])()

    def values(self) -> list[str]:
        """The kinds of values that a source may have."""
        left_out = {"numpy", "single"} if "float32" in self._avoid else {"numpy"}
        return [kind for kind in VALUES if kind not in left_out]

    def rows(self, form: str, key: str, value: str) -> tuple[str, int, int]:
        """Rows as text, how many they are, and how far their times go back."""
        drawn = self._draw(
            st.lists(
                st.tuples(KEYS[key].draw, st.integers(0, 6), VALUES[value].draw),
                min_size=max(self._rows_min, self.pick([1, 1, 6, 15])),
                max_size=ROWS_MAX,
            )
        )
        times = [i * STEP_MS + jitter * 300 for i, (_, jitter, _) in enumerate(drawn)]
        lines = [
            f"    {record(form, literal(k), str(t), literal(v))},\n"
            for t, (k, _, v) in zip(times, drawn, strict=True)
        ]
        highest, back = times[0], 0
        for time in times:
            highest = max(highest, time)
            back = max(back, highest - time)
        return f"[\n{''.join(lines)}]", len(drawn), back

    def timing(self, back: int, *, sequential: bool, assign: str) -> tuple[str, Time, bool]:
        """A watermark strategy, what it makes of event time, and whether no record is late."""
        kinds = [Time.NONE, Time.SAFE, Time.SAFE]
        kind = self.pick([*kinds, *[Time.EXACT] * 4] if sequential else kinds)
        if kind is Time.NONE:
            return "WatermarkStrategy.no_watermarks()", kind, True
        bound = back
        if kind is Time.EXACT and "late" not in self._avoid:
            bound = self.pick([back, 0, 500])
        text = f"WatermarkStrategy.for_bounded_out_of_orderness({bound}){assign}"
        if kind is Time.EXACT:
            text += ".with_resolution(500)"
        return text, kind, bound >= back

    def collection(self) -> None:
        """A list."""
        form, key, value = self.pick(FORMS), self.pick(SOURCE_KEYS), self.pick(self.values())
        rows, _, back = self.rows(form, key, value)
        plain = _assigner(form)
        strategy, time, late_free = self.timing(back, sequential=True, assign=plain)
        number = self.name()
        declared, form, tags = self.declaration(form, key, value, "typed-source")
        text = f"s{number} = env.from_collection({rows}{declared})"
        if time is not Time.NONE:
            # The declared type may have given the records another form.
            strategy = strategy.replace(plain, _assigner(form))
            text += f"\\\n    .assign_timestamps_and_watermarks({strategy}).set_parallelism(1)"
        self.add(
            text,
            Stream(
                name=f"s{number}",
                form=form,
                key=key,
                value=value,
                order=Order.TOTAL,
                time=time,
                late_free=late_free,
                parallelism=1,
                is_typed=bool(declared),
            ),
            "collection",
            *tags,
        )

    def generator(self) -> None:
        """A function of the index, over a list."""
        form, key, value = self.pick(FORMS), self.pick(SOURCE_KEYS), self.pick(self.values())
        rows, count, back = self.rows(form, key, value)
        number = self.name()
        declared, typed_form, tags = self.declaration(form, key, value, "typed-source")
        made = f"ROWS_{number} = {rows}\ndef g{number}(index):\n    return ROWS_{number}[index]\n"
        source = (
            f"DataGeneratorSource(g{number}, {count}{declared.replace(', ', ', type_info=', 1)})"
        )
        self.read(
            number, made, source, back, typed_form, key, value, bool(declared), "generator", *tags
        )

    def vectorised(self) -> None:
        """A function of an array of indexes."""
        number = self.name()
        step = self.pick([100, 700])
        made = (
            f"def g{number}(index):\n"
            f'    return pa.record_batch({{"k": index % 3, "t": index * {step}, "v": index - 5}})\n'
        )
        count = self._draw(st.integers(max(self._rows_min, self.pick([1, 12])), ROWS_MAX))
        source = f"DataGeneratorSource(g{number}, {count}, vectorised=True)"
        self.read(number, made, source, 0, "row", "int", "int", True, "vectorised")

    def sequence(self) -> None:
        """Numbers, made into records."""
        number, form = self.name(), self.pick(FORMS)
        last = self._draw(st.integers(self._rows_min - 1, ROWS_MAX))
        parallelism = self.pick([1, None])
        tuned = ".set_parallelism(1)" if parallelism else ""
        self.add(
            f"s{number} = env.from_source(NumberSequenceSource(0, {last}), "
            f'WatermarkStrategy.no_watermarks(), "numbers"){tuned}'
            f".map(lambda n: {record(form, 'n % 3', 'n * 100', 'n')}){tuned}",
            Stream(
                name=f"s{number}",
                form=form,
                key="int",
                value="int",
                order=Order.TOTAL if parallelism else Order.NONE,
                time=Time.NONE,
                parallelism=parallelism,
            ),
            "sequence",
        )

    def parquet(self) -> None:
        """Files with several row groups."""
        key, value = self.pick(["int", "text"]), self.pick(["int", "float", "text"])
        rows, _, back = self.rows("dict", key, value)
        number = self.name()
        split_by = self.pick(["row_group", "file"])
        made = (
            f"PATH_{number} = parquet_of({rows}, files={self.pick([1, 2])}, "
            f"group_rows={self.pick([3, 7])})\n"
        )
        source = f'ParquetSource(PATH_{number}, split_by="{split_by}")'
        self.read(number, made, source, back, "row", key, value, True, "parquet")

    def read(
        self,
        number: int,
        made: str,
        source: str,
        back: int,
        form: str,
        key: str,
        value: str,
        is_typed: bool,
        *tags: str,
    ) -> None:
        """Write a source that has splits."""
        parallelism = self.pick([1, None])
        assign, is_sequential = _assigner(form), parallelism == 1
        if tags[0] in ("vectorised", "parquet") and self.may("timestamp-column"):
            assign, tags = '.with_timestamp_column("t")', (*tags, "timestamp-column")
            # The row groups of files are read in the order of their lowest times then.
            is_sequential = is_sequential and tags[0] != "parquet"
        strategy, time, late_free = self.timing(back, sequential=is_sequential, assign=assign)
        tuned = ".set_parallelism(1)" if parallelism else ""
        self.add(
            f'{made}s{number} = env.from_source({source}, {strategy}, "source"){tuned}',
            Stream(
                name=f"s{number}",
                form=form,
                key=key,
                value=value,
                order=Order.TOTAL if is_sequential else Order.NONE,
                time=time,
                late_free=late_free,
                parallelism=parallelism,
                is_typed=is_typed,
            ),
            *tags,
        )

    def declaration(
        self, form: str, key: str, value: str, tag: str = "typed"
    ) -> tuple[str, str, tuple[str, ...]]:
        """A type as an argument, the form that it gives a record, and tags."""
        key_types, value_types = KEYS[key].types, VALUES[value].types
        if not key_types or not value_types or not self.may(tag):
            return "", form, ()
        kinds = f"[{self.pick(key_types)}, Types.LONG(), {self.pick(value_types)}]"
        tags = (tag, "float32") if "FLOAT" in kinds else (tag,)
        if form in ("dict", "row"):
            return f', Types.ROW_NAMED(["k", "t", "v"], {kinds})', "row", tags
        if self.flip():
            return f", Types.ROW({kinds})", "bare", tags
        return f", Types.TUPLE({kinds})", "tuple", tags

    # Stages.

    def stage(self) -> None:
        """Write one more stage behind a stream, or several ones."""
        unread = [s for s in self.streams if not self._readers.get(s.name)]
        options = [s for s in unread + self.streams if s.order is not Order.LAST]
        if not options:
            return
        stream = self.pick(options)
        self._readers[stream.name] = self._readers.get(stream.name, 0) + 1
        stages = [self.map, self.map, self.flat_map, self.filter, self.split, self.spread]
        if stream.order is not Order.NONE:
            stages += [self.keyed_map, self.reduce, self.running, self.count]
            stages += [self.accumulate] * 4
        if stream.time is not Time.NONE:
            stages += [self.window] * 4
        if stream.time is Time.EXACT and stream.late_free:
            # A late record's timer is in the past: it fires with the next watermark of any kind.
            stages += [self.timers] * 3
        kinds = {stream.key, stream.value}
        if stream.form in ("dict", "row") and kinds <= {"int", "text"}:
            stages += [self.batches, self.columns] * 2
        if len(self.streams) > 1:
            stages.append(self.union)
        stages.append(self.failing)
        if wanted := [stage for stage in stages if stage.__name__ not in self._avoid]:
            self.pick(wanted)(stream)

    def behind(self, stream: Stream) -> tuple[Stream, str]:
        """What an operator without a key gets of a stream, and how its parallelism is set."""
        parallelism = self.pick([stream.parallelism, None, 1])
        order, time = stream.order, stream.time
        if parallelism != stream.parallelism and parallelism is None:
            order = Order.NONE
            time = time if time is not Time.EXACT else Time.SAFE if stream.late_free else Time.NONE
        tuned = ".set_parallelism(1)" if parallelism else ""
        return replace(stream, order=order, time=time, parallelism=parallelism), tuned

    def keyed(self, stream: Stream) -> tuple[str, Stream, tuple[str, ...]]:
        """A ``key_by``, and the stream behind an operator of the key."""
        k = field(stream.form, "k")
        options = [f"lambda r: {k}", f"lambda r: ({k}, 1)"]
        if stream.order is Order.TOTAL:
            options.append("lambda r: 0")
        types = KEYS[stream.key].types
        if types:
            options.append(f"lambda r: {k}, key_type={self.pick(types)}")
        if stream.form in ("dict", "row") and "column-key" not in self._avoid:
            options += ['"k"', '["k"]']
        time = Time.NONE
        if stream.time is not Time.NONE and stream.late_free:
            time = Time.SAFE
        after = replace(stream, order=Order.KEY, time=time, parallelism=None, is_typed=False)
        return f"{stream.name}.key_by({self.pick(options)})", after, ()

    def body(self, stream: Stream) -> tuple[str, str, str, str, tuple[str, ...]]:
        """Statements and a result for one record ``r``: text, expression, form, kind and tags."""
        f = stream.form
        k, t, v = (field(f, name) for name in ("k", "t", "v"))
        changes = VALUES[stream.value].changes
        kind, change = self.pick(changes)
        change = _with(change, v)
        form = self.pick(FORMS)
        idioms = ["plain"]
        if f in ("list", "dict"):
            idioms.append("mutates-record")
        if stream.value == "ints":
            idioms.append("mutates-value")
        match self.pick([i for i in idioms if i not in self._avoid]):
            case "mutates-record":
                return f"{v} = {change}", "r", f, kind, ("mutates-input",)
            case "mutates-value":
                return f"{v}.append(7)", "r", f, "ints", ("mutates-input",)
        return "", record(form, k, t, change), form, kind, ()

    def map(self, stream: Stream) -> None:
        """One record from each."""
        number = self.name()
        after, tuned = self.behind(stream)
        shapes = ["function"]
        if stream.form == "list":
            shapes += ["same-buffer"]
        if stream.value == "ints":
            shapes += ["changed-later"]
        shape = self.pick([s for s in shapes if s not in self._avoid])
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
            statement, result, form, kind, tags = self.body(stream)
            declared, form, more = self.declaration(form, stream.key, kind)
            tags += more
            function = f"f{number}"
            made = f"def f{number}(r):\n"
            made += f"    {statement}\n" if statement else ""
            made += f"    return {result}\n"
        self.add(
            f"{made}s{number} = {stream.name}.map({function}{declared}){tuned}",
            replace(after, name=f"s{number}", form=form, value=kind, is_typed=bool(declared)),
            "map",
            *tags,
        )

    def flat_map(self, stream: Stream) -> None:
        """Any number of records from each."""
        number = self.name()
        after, tuned = self.behind(stream)
        statement, result, form, kind, tags = self.body(stream)
        declared, form, more = self.declaration(form, stream.key, kind)
        times = self.pick([1, 2])
        lines = "".join(f"    {line}\n" for line in (statement, f"yield {result}") * times if line)
        if times == 2 and statement:
            tags += ("aliased-record",)
        if tags and times == 2 and "aliased-record" in self._avoid:
            lines, tags = f"    {statement}\n    return [{result}]\n", tags[:1]
        if times == 2 and statement and stream.value != kind:
            # What the second change sees is what the first one made.
            lines = f"    {statement}\n    yield {result}\n"
        self.add(
            f"def f{number}(r):\n{lines}"
            f"s{number} = {stream.name}.flat_map(f{number}{declared}){tuned}",
            replace(after, name=f"s{number}", form=form, value=kind, is_typed=bool(declared)),
            "flat_map",
            *tags,
            *more,
        )

    def filter(self, stream: Stream) -> None:
        """Some of the records."""
        number = self.name()
        after, tuned = self.behind(stream)
        keeps = f"{field(stream.form, 't')} // 100 % {self.pick([2, 3])} != 1"
        self.add(
            f"s{number} = {stream.name}.filter(lambda r: {keeps}){tuned}",
            replace(after, name=f"s{number}"),
            "filter",
        )

    def split(self, stream: Stream) -> None:
        """Some records to a side output."""
        number, side = self.name(), self.name()
        after, tuned = self.behind(stream)
        t = field(stream.form, "t")
        tag = f'OutputTag("side-{side}")'
        shared = self.may("aliased-record")
        self.add(
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
        self.streams.append(replace(after, name=f"s{side}", is_typed=False))

    def spread(self, stream: Stream) -> None:
        """Another way to the next operator."""
        number = self.name()
        way = self.pick(
            ["rebalance()", "rescale()", "shuffle()", "global_()", "custom", "broadcast()"]
        )
        count = self.pick([1, 2, 3])
        k = field(stream.form, "t")
        if way == "custom":
            way = f"partition_custom(lambda key, n: key // 100 % n, lambda r: {k})"
        time = stream.time
        if time is Time.EXACT:
            time = Time.SAFE if stream.late_free else Time.NONE
        identity = record(stream.form, *(field(stream.form, name) for name in ("k", "t", "v")))
        self.add(
            f"s{number} = {stream.name}.{way}.map(lambda r: {identity}).set_parallelism({count})",
            # Its own parallelism is none that a following forward could rely on.
            replace(
                stream,
                name=f"s{number}",
                order=Order.NONE,
                time=time,
                parallelism=count if count != 1 else 1,
                is_typed=False,
            ),
            "partitioning",
        )

    def union(self, stream: Stream) -> None:
        """Two streams of one shape in one."""
        same = [
            s
            for s in self.streams
            if s.name != stream.name
            and (s.form, s.key, s.value) == (stream.form, stream.key, stream.value)
            and s.order is not Order.LAST
        ]
        if not same:
            self.map(stream)
            return
        other = self.pick(same)
        self._readers[other.name] = self._readers.get(other.name, 0) + 1
        number = self.name()
        is_timed = all(s.time is not Time.NONE and s.late_free for s in (stream, other))
        identity = record(stream.form, *(field(stream.form, name) for name in ("k", "t", "v")))
        self.add(
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

    # Under a key.

    def keyed_map(self, stream: Stream) -> None:
        """A map, flat map or filter with a counter in state."""
        number = self.name()
        key, after, tags = self.keyed(stream)
        k, t = (field(stream.form, name) for name in ("k", "t"))
        kind = self.pick(["Map", "FlatMap", "Filter"])
        head = (
            f"class F{number}({kind}Function):\n"
            "    def open(self, ctx):\n"
            '        self.seen = ctx.get_state(ValueStateDescriptor("seen", Types.LONG()))\n'
        )
        counting = "        n = (self.seen.value() or 0) + 1\n        self.seen.update(n)\n"
        if kind == "Filter":
            made = f"{head}    def filter(self, r):\n{counting}        return n % 3 != 2\n"
            after = replace(after, name=f"s{number}")
        else:
            result = record("tuple", k, t, "n")
            method = "map" if kind == "Map" else "flat_map"
            last = f"return {result}" if kind == "Map" else f"return [{result}] * (n % 3)"
            made = f"{head}    def {method}(self, r):\n{counting}        {last}\n"
            after = replace(after, name=f"s{number}", form="tuple", value="int")
        method = {"Map": "map", "FlatMap": "flat_map", "Filter": "filter"}[kind]
        self.add(f"{made}s{number} = {key}.{method}(F{number}())", after, "keyed-map", *tags)

    def accumulate(self, stream: Stream) -> None:
        """A keyed process function with one kind of state."""
        number = self.name()
        key, after, tags = self.keyed(stream)
        k, t, v = (field(stream.form, name) for name in ("k", "t", "v"))
        types = VALUES[stream.value].types or ("Types.PICKLED_BYTE_ARRAY()",)
        kind = self.pick(types)
        if "FLOAT" in kind and "float32" in self._avoid:
            kind = "Types.DOUBLE()"
        made, result, value, more = self.pick(
            [
                idiom
                for idiom in _state_idioms(stream, kind, t, v)
                if not set(idiom[3]) & self._avoid
            ]
        )
        if value == "same":
            value = stream.value
        made = made.replace("{tuple}", record("tuple", k, t, result))
        self.add(
            f"class F{number}(KeyedProcessFunction):\n{made}s{number} = {key}.process(F{number}())",
            replace(after, name=f"s{number}", form="tuple", value=value),
            "keyed-process",
            *tags,
            *more,
        )

    def reduce(self, stream: Stream) -> None:
        """A running reduction."""
        number = self.name()
        key, after, tags = self.keyed(stream)
        f = stream.form
        a, b = field(f, "v", "a"), field(f, "v", "b")
        if stream.value in ("int", "text", "bytes", "big"):
            k, t = field(f, "k", "a"), field(f, "t", "b")
            made = f"def f{number}(a, b):\n    return {record(f, k, t, f'{a} + {b}')}\n"
        elif stream.value in ("ints", "nested") and "in-place" not in self._avoid:
            made = f"def f{number}(a, b):\n    {a}.extend({b})\n    return a\n"
            tags += ("in-place",)
        else:
            made = f"def f{number}(a, b):\n    return b\n"
        if stream.key in ("enum", "uuid") or stream.value in ("any", "numpy"):
            self.map(stream)
            return
        if self.flip():
            made = made.replace(f"def f{number}(", "    def reduce(self, ").replace(
                "\n    ", "\n        "
            )
            made = f"class F{number}(ReduceFunction):\n{made}".replace("        def", "    def")
            function = f"F{number}()"
        else:
            function = f"f{number}"
        self.add(
            f"{made}s{number} = {key}.reduce({function})",
            replace(after, name=f"s{number}", is_typed=stream.is_typed),
            "reduce",
            *tags,
        )

    def running(self, stream: Stream) -> None:
        """``sum`` and its kin by position, after every record."""
        if stream.value != "int" or stream.key in ("enum", "uuid"):
            self.accumulate(stream)
            return
        number = self.name()
        k = field(stream.form, "k")
        _, after, tags = self.keyed(stream)
        kind = self.pick(["sum", "min", "max", "min_by", "max_by"])
        self.add(
            f"s{number} = {stream.name}.key_by(lambda r: {k}).{kind}({position(stream.form, 'v')})",
            replace(after, name=f"s{number}", is_typed=stream.is_typed),
            kind,
            *tags,
        )

    def count(self, stream: Stream) -> None:
        """``count`` per record."""
        number = self.name()
        k = field(stream.form, "k")
        _, after, tags = self.keyed(stream)
        self.add(
            f"s{number} = {stream.name}.key_by(lambda r: {k}).count()"
            ".map(lambda p: (p[0], 0, p[1]))",
            replace(after, name=f"s{number}", form="tuple", value="int", time=Time.NONE),
            "count",
            *tags,
        )

    def timers(self, stream: Stream) -> None:
        """A keyed process function with timers that register and delete one another."""
        number = self.name()
        _, after, tags = self.keyed(stream)
        k, t = (field(stream.form, name) for name in ("k", "t"))
        ahead = self.pick([[1], [1, 2], [2, 1, 3]])
        deeds = {
            "delete-next": "service.delete_event_time_timer(at + 500)",
            "register-next": "service.register_event_time_timer(at + 500)",
            "register-again": "service.register_event_time_timer(at)",
            "register-later": "service.register_event_time_timer(at + 2_000)",
        }
        chosen = self.pick([name for name in deeds if name not in self._avoid])
        bases = "".join(
            "        ctx.timer_service().register_event_time_timer("
            f"{t} // 500 * 500 + {500 * a - 1})\n"
            for a in ahead
        )
        self.add(
            f"class F{number}(KeyedProcessFunction):\n"
            "    def open(self, ctx):\n"
            '        self.fired = ctx.get_state(ValueStateDescriptor("fired", Types.LONG()))\n'
            "    def process_element(self, r, ctx):\n"
            f"{bases}"
            f"        yield ({k}, {t}, 0)\n"
            "    def on_timer(self, at, ctx):\n"
            "        n = (self.fired.value() or 0) + 1\n        self.fired.update(n)\n"
            "        service = ctx.timer_service()\n"
            f"        if n % {self.pick([2, 3])} == 1 and n < 12:\n            {deeds[chosen]}\n"
            "        yield (0, at, n)\n"
            f"s{number} = {stream.name}.key_by(lambda r: {k}).process(F{number}())",
            replace(
                after,
                name=f"s{number}",
                form="tuple",
                key="any",
                value="int",
                order=Order.NONE,
                time=Time.NONE,
            ),
            "timers",
            chosen,
            *tags,
        )

    def window(self, stream: Stream) -> None:
        """A tumbling window of event time."""
        number = self.name()
        _, after, tags = self.keyed(stream)
        f = stream.form
        k, v = field(f, "k"), field(f, "v")
        size = self.pick([1_000, 2_000])
        offset = self.pick([0, 500])
        text = f"{stream.name}.key_by(lambda r: {k})"
        text += f".window(TumblingEventTimeWindows.of({size}, {offset}))"
        side = ""
        if stream.time is Time.EXACT and not stream.late_free:
            tags += ("late",)
            lateness = self.pick([0, 500, 1_500])
            text += f".allowed_lateness({lateness})" if lateness else ""
            if self.flip():
                late = self.name()
                text += f'.side_output_late_data(OutputTag("late-{late}"))'
                side = f'\ns{late} = s{number}.get_side_output(OutputTag("late-{late}"))'
        in_order = stream.order is not Order.NONE
        values = f"[{field(f, 'v', 'x')} for x in elements]"
        if not in_order:
            values = f"sorted({values}, key=repr)"
        kinds = ["apply", "process", "aggregate"]
        if stream.value == "int":
            kinds.append("reduce")
        kind = self.pick([kind for kind in kinds if f"window-{kind}" not in self._avoid])
        value = "ints" if stream.value == "int" else "any"
        made = ""
        if stream.key in ("enum", "uuid") or stream.value == "numpy":  # Not for untyped state.
            self.map(stream)
            return
        form = "tuple"
        if kind == "apply":
            made = (
                f"class F{number}(WindowFunction):\n"
                "    def apply(self, key, window, elements):\n"
                f"        yield (key, window.start, {values})\n"
            )
            text += f".apply(F{number}())"
        elif kind == "process":
            made = (
                f"class F{number}(ProcessWindowFunction):\n"
                "    def process(self, key, context, elements):\n"
                f"        yield (key, context.window().end, {values})\n"
            )
            if f == "list" and self.may("changes-elements"):
                made = (
                    made.replace(
                        "        yield", "        elements = list(elements)\n        yield"
                    )
                    + "        for x in elements:\n            x.clear()\n"
                )
                tags += ("changes-elements",)
            text += f".process(F{number}())"
        elif kind == "aggregate":
            result = "acc" if in_order else "sorted(acc, key=repr)"
            adding = f"        acc.append({v})\n        return acc\n"
            if "in-place" in self._avoid:
                adding = f"        return acc + [{v}]\n"
            made = (
                f"class F{number}(AggregateFunction):\n"
                "    def create_accumulator(self):\n        return []\n"
                f"    def add(self, r, acc):\n{adding}"
                f"    def get_result(self, acc):\n        return {result}\n"
                "    def merge(self, one, other):\n        return one + other\n"
                f"class W{number}(WindowFunction):\n"
                "    def apply(self, key, window, elements):\n"
                "        for acc in elements:\n            yield (key, window.start, acc)\n"
            )
            text += f".aggregate(F{number}(), W{number}())"
            tags += ("in-place",)
        else:
            a, b = field(f, "v", "a"), field(f, "v", "b")
            times = f"max({field(f, 't', 'a')}, {field(f, 't', 'b')})"
            text += f".reduce(lambda a, b: {record(f, field(f, 'k', 'a'), times, f'{a} + {b}')})"
            value, form = "int", f
        after = replace(after, name=f"s{number}", form=form, value=value)
        self.add(f"{made}s{number} = {text}{side}", after, "window", f"window-{kind}", *tags)
        if side:
            self.streams.append(
                replace(
                    stream,
                    name=f"s{late}",
                    order=Order.KEY,
                    time=Time.NONE,
                    parallelism=None,
                    is_typed=False,
                )
            )

    # Columns.

    def batches(self, stream: Stream) -> None:
        """A function over record batches; the records have names."""
        number = self.name()
        after, tuned = self.behind(stream)
        kind = self.pick(["map", "filter", "flat_map", "process"])
        if kind == "map":
            made = f'def f{number}(b):\n    return b.set_column(1, "t", pc.add(b.column("t"), 0))\n'
            call = f"map_batches(f{number})"
        elif kind == "filter":
            made = f'def f{number}(b):\n    return pc.not_equal(b.column("k"), b.column("k")[0])\n'
            made = f'def f{number}(b):\n    return pc.less(b.column("t"), 1_500)\n'
            call = f"filter_batches(f{number})"
        elif kind == "flat_map":
            made = f"def f{number}(b):\n    return [b.slice(0, 0), b, b]\n"
            call = f"flat_map_batches(f{number})"
        else:
            made = (
                f"class F{number}(BatchProcessFunction):\n"
                "    def process_batch(self, b, ctx):\n"
                '        yield b.filter(pc.less(b.column("t"), 2_000))\n'
            )
            call = f"process_batches(F{number}())"
        form = stream.form if kind == "filter" and stream.form == "row" else "row"
        time = after.time if kind in ("map", "filter") else Time.NONE
        # A flat map repeats a slice as a whole.
        order = Order.NONE if kind == "flat_map" else after.order
        if kind == "filter" and stream.form == "dict":
            # Where all rows of a slice stay, it stays a slice of dicts.
            self.filter(stream)
            return
        self.add(
            f"{made}s{number} = {stream.name}.{call}{tuned}",
            replace(after, name=f"s{number}", form=form, time=time, order=order, is_typed=True),
            "batches",
            f"{kind}_batches",
        )

    def columns(self, stream: Stream) -> None:
        """Aggregates over columns, running or per window; the former end the stream."""
        number = self.name()
        _, after, _ = self.keyed(stream)
        specs = 'n=("*", "count"), low=("t", "min"), high=("t", "max")'
        if stream.value == "int":
            specs += ', total=("v", "sum"), mean=("v", "mean")'
        text = f'{stream.name}.key_by("k")'
        if stream.time is not Time.NONE and stream.late_free:
            self.add(
                f"s{number} = {text}.window(TumblingEventTimeWindows.of(1_000))"
                f".aggregate_batches({specs})"
                ".map(lambda r: (r.k, r.window_start, tuple(r)))",
                replace(after, name=f"s{number}", form="tuple", value="any", order=Order.KEY),
                "window-columns",
            )
            return
        call = self.pick([f"aggregate_batches({specs})", "count"])
        if call == "count":
            call = 'aggregate_batches(count=("*", "count"))'
        self.add(
            f"s{number} = {text}.{call}",
            replace(after, name=f"s{number}", form="row", order=Order.LAST, time=Time.NONE),
            "running-columns",
        )

    # What must fail.

    def failing(self, stream: Stream) -> None:
        """A stage that must fail for some records."""
        number = self.name()
        f = stream.form
        k, t = field(f, "k"), field(f, "t")
        looked_up = f"next(x for x in (0, 200, 400, 600) if x == {t})"
        misfit = KEYS[stream.key].misfit
        options = {
            "stop-iteration": [
                f"{stream.name}.map(lambda r: ({k}, {looked_up}, 0))",
                f"{stream.name}.filter(lambda r: {looked_up} >= 0)",
                f"{stream.name}.key_by(lambda r: {looked_up}).map(lambda r: ({k}, {t}, 0))",
                f"{stream.name}.assign_timestamps_and_watermarks(WatermarkStrategy"
                f".for_monotonous_timestamps().with_timestamp_assigner(lambda r, _: {looked_up}))"
                f".map(lambda r: ({k}, {t}, 0))",
            ],
        }
        if misfit:
            options["misfit"] = [
                f"{stream.name}.map(lambda r: {k}, {misfit}).map(lambda x: (0, 0, str(x)))",
                f"{stream.name}.key_by(lambda r: {k}, key_type={misfit})"
                f".reduce(lambda a, b: b).map(lambda r: ({k}, {t}, 0))",
            ]
        # In one subtask: each has a schema of its own.
        options["varying-fields"] = [
            f"{stream.name}.map(lambda r: {{'k': 1, 't': {t}}} if {t} % 400 else "
            f"{{'k': 1, 't': {t}, 'x': 1}}).set_parallelism(1)"
            ".map_batches(lambda b: b).set_parallelism(1).map(lambda r: (r.k, r.t, len(r)))"
        ]
        tags = [tag for tag in options if tag not in self._avoid]
        if not tags:
            self.map(stream)
            return
        tag = self.pick(tags)
        self.add(
            f"s{number} = {self.pick(options[tag])}",
            Stream(
                name=f"s{number}",
                form="tuple",
                key="any",
                value="any",
                order=Order.NONE,
                time=Time.NONE,
            ),
            tag,
        )

    def finish(self) -> Program:
        """The program; every stream that nothing reads gets a sink."""
        unread = [s for s in self.streams if not self._readers.get(s.name)]
        outputs = [Output(f"out-{s.name[1:]}", s.name, s.order, s.parallelism) for s in unread]
        return Program(tuple(self.stages), tuple(outputs))


def _state_idioms(
    stream: Stream, kind: str, t: str, v: str
) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Bodies of keyed process functions: text, value of the result, its kind, tags."""
    value = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_state(ValueStateDescriptor("s", {kind}))\n'
    )
    listed = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_list_state(ListStateDescriptor("s", {kind}))\n'
    )
    mapped = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_map_state(MapStateDescriptor("s", Types.LONG(), {kind}))\n'
    )
    lists = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_state(ValueStateDescriptor("s", Types.LIST({kind})))\n'
    )
    pair = (
        "    def open(self, ctx):\n"
        "        self.s = ctx.get_state(ValueStateDescriptor("
        '"s", Types.TUPLE([Types.LONG(), Types.LONG()])))\n'
    )
    process = "    def process_element(self, r, ctx):\n"
    idioms = [
        (
            f"{value}{process}        before = self.s.value()\n        self.s.update({v})\n"
            "        yield {tuple}\n",
            "before",
            "any",
            ("value-state", "typed-state"),
        ),
        (
            f"{listed}{process}        self.s.add({v})\n        yield {{tuple}}\n",
            "self.s.get()",
            "any",
            ("list-state", "typed-state"),
        ),
        (
            f"{lists}{process}        seen = self.s.value() or []\n        seen.append({v})\n"
            "        self.s.update(seen)\n        yield {tuple}\n",
            "seen",
            "any",
            ("aliased-state",),
        ),
        (
            f"{lists}{process}        seen = self.s.value() or []\n        seen.append({v})\n"
            "        self.s.update(seen)\n        yield {tuple}\n",
            "list(seen)",
            "any",
            ("typed-state",),
        ),
        (
            f"{lists}{process}        seen = self.s.value() or []\n        self.s.update(seen)\n"
            f"        seen.append({v})\n        self.s.update(seen + [{v}])\n"
            "        seen.clear()\n        yield {tuple}\n",
            "len(self.s.value())",
            "int",
            ("typed-state", "changed-after-put"),
        ),
        (
            f"{mapped}{process}        self.s.put({t} % 3, {v})\n        yield {{tuple}}\n",
            "sorted(self.s.items())[0]",
            "any",
            ("map-state", "typed-state"),
        ),
        (
            f"{mapped}{process}        key = {t} // 100 % 4\n"
            "        if self.s.contains(key):\n            self.s.remove(key)\n"
            f"        else:\n            self.s.put(key, {v})\n        yield {{tuple}}\n",
            "sorted(self.s.keys())",
            "ints",
            ("map-state",),
        ),
        (
            f"{pair}{process}        count = self.s.value() or [0, 0]\n"
            "        count = count if isinstance(count, list) else list(count)\n"
            "        count[0] += 1\n        count[1] += len(count)\n        self.s.update(count)\n"
            "        yield {tuple}\n",
            "tuple(count)",
            "any",
            ("tuple-state",),
        ),
        (
            # The list is in state from its first record on, and is changed there.
            f"{pair}{process}        count = self.s.value()\n"
            "        if not isinstance(count, list):\n"
            "            count = list(count or (0, 0))\n            self.s.update(count)\n"
            "        count[0] += 1\n        self.s.update(count)\n"
            "        yield {tuple}\n",
            "count[0]",
            "int",
            ("torn-state",),
        ),
        (
            f"{pair}{process}        self.s.update([{t}, 1])\n        yield {{tuple}}\n",
            "self.s.value()",
            "any",
            ("tuple-state", "typed-state"),
        ),
        (
            "    def open(self, ctx):\n"
            '        self.s = ctx.get_reducing_state(ReducingStateDescriptor("s", '
            "lambda a, b: a + b, Types.LIST(Types.LONG())))\n"
            f"{process}        self.s.add([{t}])\n        yield {{tuple}}\n",
            "self.s.get()",
            "ints",
            ("reducing-state", "aliased-state"),
        ),
        (
            "    def open(self, ctx):\n"
            "        class Gather(AggregateFunction):\n"
            "            def create_accumulator(self):\n                return []\n"
            "            def add(self, value, acc):\n"
            "                acc.append(value)\n                return acc\n"
            "            def get_result(self, acc):\n                return len(acc)\n"
            "            def merge(self, one, other):\n                return one + other\n"
            '        self.s = ctx.get_aggregating_state(AggregatingStateDescriptor("s", Gather(), '
            "Types.LIST(Types.LONG())))\n"
            f"{process}        self.s.add({t})\n        yield {{tuple}}\n",
            "self.s.get()",
            "int",
            ("aggregating-state", "in-place"),
        ),
        (
            f"{listed}{process}        kept = self.s.get()\n        if len(kept) > 3:\n"
            "            self.s.clear()\n            kept = []\n"
            f"        self.s.update(kept + [{v}])\n        yield {{tuple}}\n",
            "len(self.s.get())",
            "int",
            ("list-state",),
        ),
    ]
    nested = value.replace(kind, f"Types.MAP(Types.STRING(), Types.LIST({kind}))")
    named = value.replace(kind, f'Types.ROW_NAMED(["n", "v"], [Types.LONG(), {kind}])')
    idioms += [
        (
            f"{nested}{process}        kept = self.s.value() or {{}}\n"
            f'        kept.setdefault("a", []).append({v})\n        self.s.update(kept)\n'
            "        yield {tuple}\n",
            "kept",
            "any",
            ("aliased-state",),
        ),
        (
            f'{named}{process}        self.s.update({{"n": {t}, "v": {v}}})\n'
            "        yield {tuple}\n",
            "self.s.value()",
            "any",
            ("typed-state", "row-state"),
        ),
    ]
    if stream.value in ("int", "float"):
        single = value.replace(kind, "Types.FLOAT()")
        idioms.append(
            (
                f"{single}{process}        self.s.update({v} * 0.1)\n        yield {{tuple}}\n",
                "self.s.value()",
                "any",
                ("typed-state", "float32"),
            )
        )
    if stream.value == "single":
        idioms = [(a, b, c, (*d, "float32")) for a, b, c, d in idioms]
    return idioms


def _with(expression: str, value: str) -> str:
    """The expression of ``v`` with another one in its place."""
    return re.sub(r"\bv\b", lambda _: value, expression)


def _assigner(form: str) -> str:
    return f".with_timestamp_assigner(lambda r, _: {field(form, 't')})"


def _between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda at: round(at, 2))


@st.composite
def programs(
    draw: Callable[[Any], Any],
    avoid: frozenset[str] = frozenset(),
    *,
    stages_max: int = 5,
    rows_min: int = 1,
) -> Program:
    """Programs of one to three sources and some stages."""
    growing = Growing(draw, avoid, rows_min)
    for _ in range(draw(st.sampled_from([1, 1, 1, 1, 1, 2, 3]))):
        growing.source()
    for _ in range(draw(st.integers(1, stages_max))):
        growing.stage()
    return growing.finish()


@st.composite
def variations(
    draw: Callable[[Any], Any], kinds: Sequence[str] = ("calm", "calm", "slow", "kill", "stop")
) -> Variation:
    """What must not matter; of these kinds."""
    kind = draw(st.sampled_from(kinds))
    parallelism = draw(st.integers(1, 4))
    common: dict[str, Any] = {
        "parallelism": parallelism,
        "rows_max": draw(st.sampled_from([32_768, 1, 2, 5])),
        "chaining": not draw(st.booleans()),
        "encoded": draw(st.booleans()),
    }
    if kind == "calm":
        return Variation(**common)
    common |= {
        "seed": draw(st.integers(0, 99)),
        "rows_max": draw(st.sampled_from([1, 2, 5])),
        "wall_jumps": draw(st.booleans()),
        "lazy_snapshots": draw(st.booleans()),
        "checkpointing": draw(st.booleans()),
    }
    match kind:
        case "kill":
            common["kills"] = tuple(draw(st.lists(_between(0.0, 1.2), min_size=1, max_size=2)))
        case "late kill":  # Behind a checkpoint whose writing took long.
            common |= {"kills": (draw(_between(0.6, 1.2)),), "lazy_snapshots": True, "rows_max": 1}
        case "stop":
            common |= {"stop": draw(_between(0.0, 0.7)), "rescaled_to": draw(st.integers(1, 4))}
        case "rescale":
            others = [count for count in (1, 2, 3) if count != parallelism]
            common |= {
                "stop": draw(_between(0.0, 0.3)),
                "rescaled_to": draw(st.sampled_from(others)),
            }
        case "resized windows":
            size = draw(st.sampled_from([3_000, 500, 7_000]))
            common |= {"stop": draw(_between(0.0, 0.7)), "windows_ms": size}
    return Variation(**common)
