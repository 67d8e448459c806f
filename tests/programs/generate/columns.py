"""Stages over columns: functions of record batches, and aggregates by name."""

from dataclasses import replace

from tests.programs.generate.fragments import behind, under_key
from tests.programs.generate.growing import Growing
from tests.programs.generate.stateless import keep_some
from tests.programs.generate.windows import late_stream
from tests.programs.model import Order, Stream, Time


def batches(growing: Growing, stream: Stream) -> None:
    """A function over record batches; the records have names."""
    number = growing.next_number()
    after, tuned = behind(growing, stream)
    kind = growing.pick(["map", "filter", "flat_map", "process"])
    if kind == "map":
        made = f'def f{number}(b):\n    return b.set_column(1, "t", pc.add(b.column("t"), 0))\n'
        call = f"map_batches(f{number})"
    elif kind == "filter":
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
        keep_some(growing, stream)
        return
    growing.add(
        f"{made}s{number} = {stream.name}.{call}{tuned}",
        replace(after, name=f"s{number}", form=form, time=time, order=order, is_typed=True),
        "batches",
        f"{kind}_batches",
    )


def by_name(growing: Growing, stream: Stream) -> None:
    """A map that names its columns, or a filter that is an expression over some.

    A Parquet source decodes no column that nothing names, and leaves out row groups that an
    expression rules out by their statistics.
    """
    number = growing.next_number()
    after, tuned = behind(growing, stream)
    if growing.flip():
        if stream.form == "dict":  # Where all rows of a slice stay, it stays a slice of dicts.
            keep_some(growing, stream)
            return
        keeps = growing.pick(
            [
                'pc.field("t") < 1_500',
                '(pc.field("t") >= 500) & (pc.field("t") != 1_000)',
                '~(pc.field("t") > 2_000) | (pc.field("t") == 2_500)',
            ]
        )
        growing.add(
            f"s{number} = {stream.name}.filter({keeps}){tuned}",
            replace(after, name=f"s{number}"),
            "expression",
        )
        return
    if growing.flip():
        columns, value, kind_of_value = '["t", "k"]', 'b.column("t")', "int"
    else:
        columns, value, kind_of_value = '["v", "k", "t"]', 'b.column("v")', stream.value
    made = (
        f"def f{number}(b):\n"
        f"    assert b.schema.names == {columns}\n"
        f'    return pa.record_batch({{"k": b.column("k"), "t": b.column("t"), "v": {value}}})\n'
    )
    growing.add(
        f"{made}s{number} = {stream.name}.map_batches(f{number}, columns={columns}){tuned}",
        replace(after, name=f"s{number}", form="row", value=kind_of_value, is_typed=True),
        "named-columns",
    )


def columns(growing: Growing, stream: Stream) -> None:
    """Aggregates over columns, running or per window; the former end the stream."""
    number = growing.next_number()
    _, after = under_key(growing, stream)
    specs = 'n=("*", "count"), low=("t", "min"), high=("t", "max")'
    if stream.value == "int":
        specs += ', total=("v", "sum"), mean=("v", "mean")'
    text = f'{stream.name}.key_by("k")'
    suits_windows = stream.time is Time.EXACT or (stream.time is not Time.NONE and stream.late_free)
    if suits_windows and not growing.avoids("window-columns"):
        text += ".window(TumblingEventTimeWindows.of(1_000))"
        is_late = not stream.late_free
        late = growing.next_number() if is_late and growing.flip() else None
        side = ""
        if late is not None:
            text += f'.side_output_late_data(OutputTag("late-{late}"))'
            side = f'\ns{late} = w{number}.get_side_output(OutputTag("late-{late}"))'
        growing.add(
            f"w{number} = {text}.aggregate_batches({specs})\n"
            f"s{number} = w{number}.map(lambda r: (r.k, r.window_start, tuple(r))){side}",
            replace(after, name=f"s{number}", form="tuple", value="any", order=Order.KEY),
            "window-columns",
            *(["late"] if is_late else []),
        )
        if late is not None:
            growing.streams.append(late_stream(stream, late))
        return
    call = growing.pick([f"aggregate_batches({specs})", "count"])
    if call == "count":
        call = 'aggregate_batches(count=("*", "count"))'
    growing.add(
        f"s{number} = {text}.{call}",
        replace(after, name=f"s{number}", form="row", order=Order.LAST, time=Time.NONE),
        "running-columns",
    )
