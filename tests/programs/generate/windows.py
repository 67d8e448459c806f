"""Windows of event time, with late records and every kind of window function."""

from dataclasses import replace

from tests.programs.generate.fragments import under_key
from tests.programs.generate.growing import Growing
from tests.programs.generate.stateless import map_each
from tests.programs.kinds import field, record
from tests.programs.model import Order, Stream, Time


def window(growing: Growing, stream: Stream) -> None:
    """A tumbling window of event time."""
    number = growing.next_number()
    _, after = under_key(growing, stream)
    f = stream.form
    k, v = field(f, "k"), field(f, "v")
    size = growing.pick([1_000, 2_000])
    offset = growing.pick([0, 500])
    text = f"{stream.name}.key_by(lambda r: {k})"
    text += f".window(TumblingEventTimeWindows.of({size}, {offset}))"
    side = ""
    tags: tuple[str, ...] = ()
    if stream.time is Time.EXACT and not stream.late_free:
        tags += ("late",)
        lateness = growing.pick([0, 500, 1_500])
        text += f".allowed_lateness({lateness})" if lateness else ""
        if growing.flip():
            late = growing.next_number()
            text += f'.side_output_late_data(OutputTag("late-{late}"))'
            side = f'\ns{late} = s{number}.get_side_output(OutputTag("late-{late}"))'
    in_order = stream.order is not Order.NONE
    values = f"[{field(f, 'v', 'x')} for x in elements]"
    if not in_order:
        values = f"sorted({values}, key=repr)"
    kinds = ["apply", "process", "aggregate"]
    if stream.value == "int":
        kinds.append("reduce")
    kind = growing.pick([kind for kind in kinds if not growing.avoids(f"window-{kind}")])
    value = "ints" if stream.value == "int" else "any"
    made = ""
    if stream.key in ("enum", "uuid") or stream.value == "numpy":  # Not for untyped state.
        map_each(growing, stream)
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
        if f == "list" and growing.may("changes-elements"):
            made = (
                made.replace("        yield", "        elements = list(elements)\n        yield")
                + "        for x in elements:\n            x.clear()\n"
            )
            tags += ("changes-elements",)
        text += f".process(F{number}())"
    elif kind == "aggregate":
        result = "acc" if in_order else "sorted(acc, key=repr)"
        adding = f"        acc.append({v})\n        return acc\n"
        if growing.avoids("in-place"):
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
    growing.add(f"{made}s{number} = {text}{side}", after, "window", f"window-{kind}", *tags)
    if side:
        growing.streams.append(late_stream(stream, late))


def late_stream(stream: Stream, number: int) -> Stream:
    """The records of a stream that came too late for a window of it."""
    return replace(
        stream,
        name=f"s{number}",
        order=Order.KEY,
        time=Time.NONE,
        parallelism=None,
        is_typed=False,
    )
