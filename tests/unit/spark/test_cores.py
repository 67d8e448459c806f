import re

import pytest

from weir.errors import ConfigError, SlotError
from weir.spark.cores import check_cores, check_master, cores_max, cores_of


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3,1000]", 3),
        ("local-cluster[2, 3, 1024]", 6),
        ("spark://host:7077", None),
        ("spark://a:7077,b:7077", None),
        ("yarn", None),
        ("k8s://https://host:443", None),
    ],
)
def test_the_cores_of_a_master_are_read_off_its_name(master: str, cores: int | None) -> None:
    assert cores_of(master) == cores
    check_master(master)


@pytest.mark.parametrize(
    "master",
    ["in-proces", "local2", "local[x]", "localhost:7077", "spark:7077", "yarn-client", "k8s"],
)
def test_a_master_that_spark_does_not_know_is_refused_with_those_there_are(master: str) -> None:
    with pytest.raises(
        ConfigError, match=f"'{re.escape(master)}' is no master: give in-process, local"
    ):
        check_master(master)


def test_all_cores_of_the_machine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert cores_of("local[*]") == 7


def test_a_job_with_more_slots_than_cores_is_refused_with_both_numbers() -> None:
    with pytest.raises(SlotError) as refused:
        check_cores("local[2,1000]", 3)
    assert str(refused.value) == (
        "the job needs 3 slots, one for each subtask of its widest operator, and local[2] runs 2 "
        "tasks at a time: start it with --master local[3], or lower the parallelism to 2"
    )


@pytest.mark.parametrize("master", ["local[3]", "local[4]", "spark://host:7077"])
def test_a_job_that_fits_or_whose_cores_are_unknown_passes(master: str) -> None:
    check_cores(master, 3)


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
    assert cores_max("spark://a:7077,b:7077", slots, conf.get) == {"spark.cores.max": str(cores)}


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "yarn", "k8s://a"])
def test_other_masters_get_no_limit(master: str) -> None:
    assert cores_max(master, 3) == {}


def test_session_without_a_job_takes_all_cores() -> None:
    assert cores_max("spark://a:7077", 0) == {}
