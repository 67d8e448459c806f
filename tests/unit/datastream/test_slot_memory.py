"""The setting of a slot's memory, by Flink's key and its units."""

from typing import Any

import pytest

from weir.common import Configuration
from weir.config import SLOT_MEMORY_BYTES_MIN, JobConfig
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import capturing
from weir.errors import ConfigError

KEY = "taskmanager.memory.process.size"


def configured(value: Any) -> int | None:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration({KEY: value}))
    env.from_collection([1]).print()
    with capturing() as capture:
        env.execute()
    return capture.jobs[0].config.slot_memory_bytes


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("400m", 400 << 20),
        ("2 gb", 2 << 30),
        ("2G", 2 << 30),
        ("1 tebibytes", 1 << 40),
        ("300000 k", 300_000 << 10),
        ("400000000", 400_000_000),
        (400_000_000, 400_000_000),
        (str(SLOT_MEMORY_BYTES_MIN), SLOT_MEMORY_BYTES_MIN),
    ],
)
def test_flink_s_key_takes_bytes_with_a_unit(value: Any, size: int) -> None:
    assert configured(value) == size


@pytest.mark.parametrize("value", ["", "much", "4.5g", "-1g", "4 pb", "400m 2"])
def test_another_text_is_refused_with_the_key_and_the_units(value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{KEY} cannot be .* with b, kb, mb, gb or tb"):
        configured(value)


@pytest.mark.parametrize("size", [0, 1, SLOT_MEMORY_BYTES_MIN - 1])
def test_less_than_an_idle_worker_takes_is_refused_with_the_least(size: int) -> None:
    with pytest.raises(ConfigError, match=r"at least 167,772,160, of which an idle worker"):
        JobConfig(slot_memory_bytes=size)


def test_without_the_setting_there_is_none() -> None:
    assert JobConfig().slot_memory_bytes is None
