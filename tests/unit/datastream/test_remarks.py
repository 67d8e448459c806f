"""Remarks on pipelines that can run: made where the code leaves no doubt, and nowhere else."""

from types import ModuleType
from typing import Any

from weir.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)
from weir.datastream.checks.remarks import remarks

LATE = OutputTag("late")
tags = ModuleType("tags")
tags.LATE = LATE  # type: ignore[attr-defined]


def diverted(value: Any) -> Any:
    return LATE, value


class ByHelper(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield diverted(value)


class ByModule(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield tags.LATE, value


class ByField(KeyedProcessFunction):
    def __init__(self, tag: OutputTag) -> None:
        self.tag = tag

    def process_element(self, value: Any, ctx: Any) -> Any:
        return None

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield self.tag, timestamp


class ByName(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield OutputTag("late"), value


class Nowhere(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def remarks_on(build: Any) -> list[str]:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env.from_collection([1]))
    return remarks(env._new)


def late_output_of(function: Any) -> list[str]:
    def build(numbers: DataStream) -> None:
        made = numbers.process(function)
        made.print()
        made.get_side_output(OutputTag("late")).print()

    return remarks_on(build)


def test_a_tag_is_known_wherever_the_function_reaches_it() -> None:
    assert late_output_of(ByHelper()) == []
    assert late_output_of(ByModule()) == []
    assert late_output_of(ByName()) == []


def test_a_tag_in_a_field_that_a_timer_yields_to_is_known() -> None:
    def build(numbers: DataStream) -> None:
        made = numbers.key_by(lambda n: n).process(ByField(LATE))
        made.print()
        made.get_side_output(LATE).print()

    assert remarks_on(build) == []


def test_a_tag_that_a_function_cannot_reach_is_remarked_on_once() -> None:
    (remark,) = late_output_of(Nowhere())
    assert remark.startswith("'Process' (test_remarks.py:")
    assert remark.endswith("never yields to a tag of that name; it knows no OutputTag")


def test_the_side_output_of_bad_records_is_fed_by_weir() -> None:
    def build(numbers: DataStream) -> None:
        made = numbers.process(Nowhere()).on_error(side_output=LATE)
        made.print()
        made.get_side_output(LATE).print()

    assert remarks_on(build) == []


def test_a_function_that_returns_in_one_branch_is_meant() -> None:
    def half(value: int) -> Any:
        if value > 1:
            return None
        return [value]

    def build(numbers: DataStream) -> None:
        numbers.flat_map(half).print()

    assert remarks_on(build) == []


def test_a_default_that_is_empty_and_mutable_is_remarked_on_and_a_table_is_not() -> None:
    def count(value: int, seen: Any = {}) -> int:  # noqa: B006
        seen[value] = seen.get(value, 0) + 1
        return int(seen[value])

    def named(value: int, names: Any = {1: "one"}) -> Any:  # noqa: B006
        return names[value]

    def build(numbers: DataStream) -> None:
        numbers.map(count).map(named).print()

    (remark,) = remarks_on(build)
    assert "the default seen={} of count is one object for all calls" in remark


def test_a_stream_read_by_a_side_output_alone_is_read() -> None:
    def build(numbers: DataStream) -> None:
        numbers.process(ByName()).get_side_output(LATE).print()

    assert remarks_on(build) == []
