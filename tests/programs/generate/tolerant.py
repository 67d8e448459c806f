"""Stages whose functions raise on some records, behind changes that must leave no trace."""

from dataclasses import replace

from tests.programs.generate.fragments import behind, under_key
from tests.programs.generate.growing import Growing
from tests.programs.kinds import field, record
from tests.programs.model import Order, Stream, Time


def tolerant(growing: Growing, stream: Stream) -> None:
    """A function that raises, with a policy for bad records."""
    shapes = ["map", "flat_map", "filter", "process"]
    if stream.order is not Order.NONE:
        shapes += ["keyed"] * 3
        if stream.time is Time.EXACT and stream.late_free:
            shapes += ["timers"] * 3
    shape = growing.pick(shapes)
    if shape in ("keyed", "timers"):
        _under_key(growing, stream, has_timers=shape == "timers")
        return
    number, side = growing.next_number(), growing.next_number()
    after, tuned = behind(growing, stream)
    f = stream.form
    k, t, v = (field(f, name) for name in ("k", "t", "v"))
    raising = _raising(growing, stream)
    spoilt = f"    if {t} // 100 % 2:\n        {v} = None\n" if f in ("list", "dict") else ""
    identity = record(f, k, t, v)
    match shape:
        case "flat_map":
            body = f"    yield {identity}\n{raising}{spoilt}    yield {identity}\n"
        case "filter":
            body = f"{raising}    return {t} // 100 % 3 != 2\n"
        case "process":
            made = f"    yield {identity}\n    yield OutputTag('never'), r\n{raising}"
            body = "".join(f"    {line}\n" for line in made.splitlines())
        case _:
            body = f"{spoilt}{raising}    return {identity}\n"
    made = f"def f{number}(r):\n{body}"
    function = f"f{number}"
    if shape == "process":
        head = f"class F{number}(ProcessFunction):\n    def process_element(self, r, ctx):\n"
        made, function = head + body, f"F{number}()"
    diverts = growing.flip()
    tag = f'OutputTag("bad-{side}")'
    policy = f"side_output={tag}" if diverts else '"skip", limit=100_000'
    made += f"s{number} = {stream.name}.{shape}({function}){tuned}.on_error({policy})"
    if diverts:
        read = "lambda bad: (bad.error, int(bad.message), 1)"
        made += f"\ns{side} = s{number}.get_side_output({tag}).map({read}){tuned}"
    is_typed = stream.is_typed and shape == "filter"
    growing.add(made, replace(after, name=f"s{number}", is_typed=is_typed), "tolerant", shape)
    if diverts:
        growing.streams.append(
            replace(
                after,
                name=f"s{side}",
                form="tuple",
                key="text",
                value="int",
                order=after.order if after.order is Order.TOTAL else Order.NONE,
                is_typed=False,
            )
        )


def _under_key(growing: Growing, stream: Stream, *, has_timers: bool) -> None:
    number = growing.next_number()
    key, after = under_key(growing, stream)
    k, t = (field(stream.form, name) for name in ("k", "t"))
    raising = "".join(f"    {line}\n" for line in _raising(growing, stream).splitlines())
    timers = on_timer = ""
    if has_timers:
        timers = (
            "        service = ctx.timer_service()\n"
            f"        service.register_event_time_timer({t} // 500 * 500 + 499)\n"
            f"        service.delete_event_time_timer({t} // 500 * 500 + 999)\n"
            f"        service.register_event_time_timer({t} // 500 * 500 + 1_499)\n"
        )
        on_timer = (
            "    def on_timer(self, at, ctx):\n"
            "        n = (self.count.value() or 0) + 1\n        self.count.update(n)\n"
            "        yield (0, at, n)\n"
        )
        after = replace(after, key="any", order=Order.NONE, time=Time.NONE)
    growing.add(
        f"class F{number}(KeyedProcessFunction):\n"
        "    def open(self, ctx):\n"
        '        self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))\n'
        '        self.seen = ctx.get_list_state(ListStateDescriptor("seen", Types.LONG()))\n'
        '        self.by = ctx.get_map_state(MapStateDescriptor("by", *[Types.LONG()] * 2))\n'
        "    def process_element(self, r, ctx):\n"
        "        n = (self.count.value() or 0) + 1\n        self.count.update(n)\n"
        f"        self.seen.add(n)\n        self.by.put({t} % 300, n)\n"
        f"{timers}        yield ({k}, {t}, n)\n{raising}"
        f"        if n % 4 == 3:\n            self.seen.clear()\n"
        f"        yield ({k}, {t}, sum(self.seen.get()) + len(list(self.by.items())))\n"
        f'{on_timer}s{number} = {key}.process(F{number}()).on_error("skip")',
        replace(after, name=f"s{number}", form="tuple", value="int"),
        "tolerant",
        "tolerant-timers" if has_timers else "tolerant-state",
    )


def _raising(growing: Growing, stream: Stream) -> str:
    t = field(stream.form, "t")
    error = growing.pick(["ValueError(str({t}))", "KeyError({t})", "RecursionError({t})"])
    raised = error.format(t=t)
    return f"    if {t} // 100 % {growing.pick([2, 3])} == 1:\n        raise {raised}\n"
