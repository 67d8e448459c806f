"""Sources with their event time: collections, generators, numbers and files."""

from hypothesis import strategies as st

from tests.programs.generate.fragments import declaration
from tests.programs.generate.growing import Growing
from tests.programs.kinds import FORMS, KEYS, SOURCE_KEYS, VALUES, field, literal, record
from tests.programs.model import Order, Stream, Time

STEP_MS = 200
ROWS_MAX = 30


def collection(growing: Growing) -> None:
    """A list."""
    form, key, value = (
        growing.pick(FORMS),
        growing.pick(SOURCE_KEYS),
        growing.pick(_value_kinds(growing)),
    )
    lines, _, back = _rows(growing, form, key, value)
    plain = _assigner(form)
    strategy, time, late_free = _timing(growing, back, sequential=True, assign=plain)
    number = growing.next_number()
    declared, form, tags = declaration(growing, form, key, value, "typed-source")
    text = f"s{number} = env.from_collection({lines}{declared})"
    if time is not Time.NONE:
        # The declared type may have given the records another form.
        strategy = strategy.replace(plain, _assigner(form))
        text += f"\\\n    .assign_timestamps_and_watermarks({strategy}).set_parallelism(1)"
    growing.add(
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


def generator(growing: Growing) -> None:
    """A function of the index, over a list."""
    form, key, value = (
        growing.pick(FORMS),
        growing.pick(SOURCE_KEYS),
        growing.pick(_value_kinds(growing)),
    )
    lines, count, back = _rows(growing, form, key, value)
    number = growing.next_number()
    declared, typed_form, tags = declaration(growing, form, key, value, "typed-source")
    made = f"ROWS_{number} = {lines}\ndef g{number}(index):\n    return ROWS_{number}[index]\n"
    source = f"DataGeneratorSource(g{number}, {count}{declared.replace(', ', ', type_info=', 1)})"
    _read(
        growing,
        number,
        made,
        source,
        back,
        typed_form,
        key,
        value,
        bool(declared),
        "generator",
        *tags,
    )


def vectorised(growing: Growing) -> None:
    """A function of an array of indexes."""
    number = growing.next_number()
    step = growing.pick([100, 700])
    made = (
        f"def g{number}(index):\n"
        f'    return pa.record_batch({{"k": index % 3, "t": index * {step}, "v": index - 5}})\n'
    )
    count = growing.draw(st.integers(max(growing.rows_min, growing.pick([1, 12])), ROWS_MAX))
    source = f"DataGeneratorSource(g{number}, {count}, vectorised=True)"
    _read(growing, number, made, source, 0, "row", "int", "int", True, "vectorised")


def sequence(growing: Growing) -> None:
    """Numbers, made into records."""
    number, form = growing.next_number(), growing.pick(FORMS)
    last = growing.draw(st.integers(growing.rows_min - 1, ROWS_MAX))
    parallelism = growing.pick([1, None])
    tuned = ".set_parallelism(1)" if parallelism else ""
    growing.add(
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


def parquet(growing: Growing) -> None:
    """Files with several row groups."""
    key, value = growing.pick(["int", "text"]), growing.pick(["int", "float", "text"])
    lines, _, back = _rows(growing, "dict", key, value)
    number = growing.next_number()
    split_by = growing.pick(["row_group", "file"])
    made = (
        f"PATH_{number} = parquet_of({lines}, files={growing.pick([1, 2])}, "
        f"group_rows={growing.pick([3, 7])})\n"
    )
    source = f'ParquetSource(PATH_{number}, split_by="{split_by}")'
    _read(growing, number, made, source, back, "row", key, value, True, "parquet")


def _read(
    growing: Growing,
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
    parallelism = growing.pick([1, None])
    assign, is_sequential = _assigner(form), parallelism == 1
    if tags[0] in ("vectorised", "parquet") and growing.may("timestamp-column"):
        assign, tags = '.with_timestamp_column("t")', (*tags, "timestamp-column")
        # The row groups of files are read in the order of their lowest times then.
        is_sequential = is_sequential and tags[0] != "parquet"
    strategy, time, late_free = _timing(growing, back, sequential=is_sequential, assign=assign)
    tuned = ".set_parallelism(1)" if parallelism else ""
    growing.add(
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


def _value_kinds(growing: Growing) -> list[str]:
    """The kinds of values that a source may have."""
    left_out = {"numpy", "single"} if growing.avoids("float32") else {"numpy"}
    return [kind for kind in VALUES if kind not in left_out]


def _rows(growing: Growing, form: str, key: str, value: str) -> tuple[str, int, int]:
    """Rows as text, how many they are, and how far their times go back."""
    drawn = growing.draw(
        st.lists(
            st.tuples(KEYS[key].draw, st.integers(0, 6), VALUES[value].draw),
            min_size=max(growing.rows_min, growing.pick([1, 1, 6, 15])),
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


def _timing(
    growing: Growing, back: int, *, sequential: bool, assign: str
) -> tuple[str, Time, bool]:
    """A watermark strategy, what it makes of event time, and whether no record is late."""
    kinds = [Time.NONE, Time.SAFE, Time.SAFE]
    kind = growing.pick([*kinds, *[Time.EXACT] * 4] if sequential else kinds)
    if kind is Time.NONE:
        return "WatermarkStrategy.no_watermarks()", kind, True
    bound = back
    if kind is Time.EXACT and not growing.avoids("late"):
        bound = growing.pick([back, 0, 500])
    text = f"WatermarkStrategy.for_bounded_out_of_orderness({bound}){assign}"
    if kind is Time.EXACT:
        text += ".with_resolution(500)"
    return text, kind, bound >= back


def _assigner(form: str) -> str:
    return f".with_timestamp_assigner(lambda r, _: {field(form, 't')})"
