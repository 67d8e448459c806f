"""Stages under a key: state, reductions, running aggregates and timers."""

from dataclasses import replace

from tests.programs.generate.fragments import under_key
from tests.programs.generate.growing import Growing
from tests.programs.generate.state_idioms import state_idioms
from tests.programs.generate.stateless import map_each
from tests.programs.kinds import VALUES, field, position, record
from tests.programs.model import Order, Stream, Time


def keyed_map(growing: Growing, stream: Stream) -> None:
    """A map, flat map or filter with a counter in state."""
    number = growing.next_number()
    key, after = under_key(growing, stream)
    k, t = (field(stream.form, name) for name in ("k", "t"))
    kind = growing.pick(["Map", "FlatMap", "Filter"])
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
    growing.add(f"{made}s{number} = {key}.{method}(F{number}())", after, "keyed-map")


def accumulate(growing: Growing, stream: Stream) -> None:
    """A keyed process function with one kind of state."""
    number = growing.next_number()
    key, after = under_key(growing, stream)
    k, t, v = (field(stream.form, name) for name in ("k", "t", "v"))
    types = VALUES[stream.value].types or ("Types.PICKLED_BYTE_ARRAY()",)
    kind = growing.pick(types)
    if "FLOAT" in kind and growing.avoids("float32"):
        kind = "Types.DOUBLE()"
    made, result, value, more = growing.pick(
        [
            idiom
            for idiom in state_idioms(stream, kind, t, v)
            if len(growing.wanted(idiom[3])) == len(idiom[3])
        ]
    )
    made = made.replace("{tuple}", record("tuple", k, t, result))
    growing.add(
        f"class F{number}(KeyedProcessFunction):\n{made}s{number} = {key}.process(F{number}())",
        replace(after, name=f"s{number}", form="tuple", value=value),
        "keyed-process",
        *more,
    )


def reduce(growing: Growing, stream: Stream) -> None:
    """A running reduction."""
    number = growing.next_number()
    key, after = under_key(growing, stream)
    f = stream.form
    a, b = field(f, "v", "a"), field(f, "v", "b")
    tags: tuple[str, ...] = ()
    if stream.value in ("int", "text", "bytes", "big"):
        k, t = field(f, "k", "a"), field(f, "t", "b")
        made = f"def f{number}(a, b):\n    return {record(f, k, t, f'{a} + {b}')}\n"
    elif stream.value in ("ints", "nested") and not growing.avoids("in-place"):
        made = f"def f{number}(a, b):\n    {a}.extend({b})\n    return a\n"
        tags = ("in-place",)
    else:
        made = f"def f{number}(a, b):\n    return b\n"
    if stream.key in ("enum", "uuid") or stream.value in ("any", "numpy"):
        map_each(growing, stream)
        return
    if growing.flip():
        made = made.replace(f"def f{number}(", "    def reduce(self, ").replace(
            "\n    ", "\n        "
        )
        made = f"class F{number}(ReduceFunction):\n{made}".replace("        def", "    def")
        function = f"F{number}()"
    else:
        function = f"f{number}"
    growing.add(
        f"{made}s{number} = {key}.reduce({function})",
        replace(after, name=f"s{number}", is_typed=stream.is_typed),
        "reduce",
        *tags,
    )


def running(growing: Growing, stream: Stream) -> None:
    """``sum`` and its kin by position, after every record."""
    if stream.value != "int" or stream.key in ("enum", "uuid"):
        accumulate(growing, stream)
        return
    number = growing.next_number()
    k = field(stream.form, "k")
    _, after = under_key(growing, stream)
    kind = growing.pick(["sum", "min", "max", "min_by", "max_by"])
    growing.add(
        f"s{number} = {stream.name}.key_by(lambda r: {k}).{kind}({position(stream.form, 'v')})",
        replace(after, name=f"s{number}", is_typed=stream.is_typed),
        kind,
    )


def count(growing: Growing, stream: Stream) -> None:
    """``count`` per record."""
    number = growing.next_number()
    k = field(stream.form, "k")
    _, after = under_key(growing, stream)
    growing.add(
        f"s{number} = {stream.name}.key_by(lambda r: {k}).count().map(lambda p: (p[0], 0, p[1]))",
        replace(after, name=f"s{number}", form="tuple", value="int", time=Time.NONE),
        "count",
    )


def timers(growing: Growing, stream: Stream) -> None:
    """A keyed process function with timers that register and delete one another."""
    number = growing.next_number()
    _, after = under_key(growing, stream)
    k, t = (field(stream.form, name) for name in ("k", "t"))
    ahead = growing.pick([[1], [1, 2], [2, 1, 3]])
    deeds = {
        "delete-next": "service.delete_event_time_timer(at + 500)",
        "register-next": "service.register_event_time_timer(at + 500)",
        "register-again": "service.register_event_time_timer(at)",
        "register-later": "service.register_event_time_timer(at + 2_000)",
    }
    chosen = growing.pick(growing.wanted(deeds))
    bases = "".join(
        f"        ctx.timer_service().register_event_time_timer({t} // 500 * 500 + {500 * a - 1})\n"
        for a in ahead
    )
    growing.add(
        f"class F{number}(KeyedProcessFunction):\n"
        "    def open(self, ctx):\n"
        '        self.fired = ctx.get_state(ValueStateDescriptor("fired", Types.LONG()))\n'
        "    def process_element(self, r, ctx):\n"
        f"{bases}"
        f"        yield ({k}, {t}, 0)\n"
        "    def on_timer(self, at, ctx):\n"
        "        n = (self.fired.value() or 0) + 1\n        self.fired.update(n)\n"
        "        service = ctx.timer_service()\n"
        f"        if n % {growing.pick([2, 3])} == 1 and n < 12:\n            {deeds[chosen]}\n"
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
    )
