"""The cores that a job takes of a standalone cluster."""

import pytest

from weir.spark.submit import cores_max


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
