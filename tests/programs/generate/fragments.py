"""Text that several stages share: a declared type, a key, and the stream behind an operator."""

from dataclasses import replace

from tests.programs.generate.growing import Growing
from tests.programs.kinds import KEYS, VALUES, field
from tests.programs.model import Order, Stream, Time


def declaration(
    growing: Growing, form: str, key: str, value: str, tag: str = "typed"
) -> tuple[str, str, tuple[str, ...]]:
    """A type as an argument, the form that it gives a record, and tags."""
    key_types, value_types = KEYS[key].types, VALUES[value].types
    if not key_types or not value_types or not growing.may(tag):
        return "", form, ()
    kinds = f"[{growing.pick(key_types)}, Types.LONG(), {growing.pick(value_types)}]"
    tags = (tag, "float32") if "FLOAT" in kinds else (tag,)
    if form in ("dict", "row"):
        return f', Types.ROW_NAMED(["k", "t", "v"], {kinds})', "row", tags
    if growing.flip():
        return f", Types.ROW({kinds})", "bare", tags
    return f", Types.TUPLE({kinds})", "tuple", tags


def behind(growing: Growing, stream: Stream) -> tuple[Stream, str]:
    """The stream that an operator without a key sees, and how its parallelism is set."""
    parallelism = growing.pick([stream.parallelism, None, 1])
    order, time = stream.order, stream.time
    if parallelism != stream.parallelism and parallelism is None:
        order = Order.NONE
        time = time if time is not Time.EXACT else Time.SAFE if stream.late_free else Time.NONE
    tuned = ".set_parallelism(1)" if parallelism else ""
    return replace(stream, order=order, time=time, parallelism=parallelism), tuned


def under_key(growing: Growing, stream: Stream) -> tuple[str, Stream]:
    """A ``key_by``, and the stream behind an operator of the key."""
    k = field(stream.form, "k")
    options = [f"lambda r: {k}", f"lambda r: ({k}, 1)"]
    if stream.order is Order.TOTAL:
        options.append("lambda r: 0")
    types = KEYS[stream.key].types
    if types:
        options.append(f"lambda r: {k}, key_type={growing.pick(types)}")
    if stream.form in ("dict", "row") and not growing.avoids("column-key"):
        options += ['"k"', '["k"]']
    time = Time.NONE
    if stream.time is not Time.NONE and stream.late_free:
        time = Time.SAFE
    after = replace(stream, order=Order.KEY, time=time, parallelism=None, is_typed=False)
    return f"{stream.name}.key_by({growing.pick(options)})", after
