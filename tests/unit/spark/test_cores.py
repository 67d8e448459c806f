import re
import socket

import pytest

from weir.errors import ConfigError, SlotError
from weir.spark import cores
from weir.spark.cores import await_master, check_cores, checked_master, cores_max


@pytest.mark.parametrize("master", ["in-proces", "local2", "yarn-client", "k8s"])
def test_a_master_that_spark_does_not_know_is_refused_with_those_there_are(master: str) -> None:
    with pytest.raises(
        ConfigError, match=f"'{re.escape(master)}' is no master: give in-process, local"
    ):
        checked_master(master)


def test_a_job_with_more_slots_than_cores_is_refused_with_both_numbers() -> None:
    with pytest.raises(SlotError) as refused:
        check_cores("local[2,1000]", 3)
    assert str(refused.value) == (
        "the job needs 3 slots, one for each subtask of its widest operator, and local[2] runs 2 "
        "tasks at a time: start it with --master local[3], or lower the parallelism to 2"
    )


@pytest.mark.parametrize("master", ["local[3]", "local[4]", "spark://host:7077", "plugin://own"])
def test_a_job_that_fits_or_whose_cores_are_unknown_passes(master: str) -> None:
    check_cores(master, 3)


def test_a_master_that_does_not_answer_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "MASTER_WAIT_S", 0.0)
    with pytest.raises(SlotError) as refused:
        await_master("spark://127.0.0.1:1")
    assert str(refused.value) == (
        "127.0.0.1:1 cannot be reached: [Errno 111] Connection refused; start the master, or name "
        "it as its page does"
    )


def test_a_master_that_is_being_restarted_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as master:
        master.bind(("127.0.0.1", 0))
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            master.listen()

        monkeypatch.setattr(cores.time, "sleep", pause)
        await_master(f"spark://127.0.0.1:{master.getsockname()[1]}")
    assert len(pauses) == 1


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://127.0.0.1:1"])
def test_no_other_master_is_awaited(master: str) -> None:
    await_master(master)


@pytest.mark.parametrize(
    ("slots", "conf", "cores"),
    [
        (3, {}, 3),
        (3, {"spark.task.cpus": "2"}, 6),
        (3, {"spark.executor.cores": "2"}, 4),
        (4, {"spark.executor.cores": "2"}, 4),
        (3, {"spark.task.cpus": "2", "spark.executor.cores": "4"}, 8),
        (3, {"spark.task.cpus": "", "spark.executor.cores": "?"}, 3),
        (3, {"spark.executor.cores": "0"}, 3),
    ],
)
def test_job_takes_the_cores_of_its_slots(slots: int, conf: dict[str, str], cores: int) -> None:
    master = checked_master("spark://a:7077,b:7077")
    assert cores_max(master, slots, conf.get) == {"spark.cores.max": str(cores)}


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "yarn", "k8s://a"])
def test_other_masters_get_no_limit(master: str) -> None:
    assert cores_max(checked_master(master), 3) == {}


def test_session_without_a_job_takes_all_cores() -> None:
    assert cores_max(checked_master("spark://a:7077"), 0) == {}
