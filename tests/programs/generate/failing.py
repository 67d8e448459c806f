"""Stages that must fail for some records."""

from tests.programs.generate.growing import Growing
from tests.programs.generate.stateless import map_each
from tests.programs.kinds import KEYS, field
from tests.programs.model import Order, Stream, Time


def failing(growing: Growing, stream: Stream) -> None:
    """A stage that must fail for some records."""
    number = growing.next_number()
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
    tags = growing.wanted(options)
    if not tags:
        map_each(growing, stream)
        return
    tag = growing.pick(tags)
    growing.add(
        f"s{number} = {growing.pick(options[tag])}",
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
