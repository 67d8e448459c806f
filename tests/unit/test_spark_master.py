import pytest

from weir.spark_master import MasterKind, SparkMaster


@pytest.mark.parametrize(
    ("name", "kind", "cores"),
    [
        ("local", MasterKind.LOCAL, 1),
        ("local[3]", MasterKind.LOCAL, 3),
        ("local[3,1000]", MasterKind.LOCAL, 3),
        ("local[3, 1000]", MasterKind.LOCAL, 3),
        ("local-cluster[2,3,1024]", MasterKind.LOCAL_CLUSTER, 6),
        ("local-cluster[ 2, 3, 1024 ]", MasterKind.LOCAL_CLUSTER, 6),
        ("spark://host:7077", MasterKind.STANDALONE, None),
        ("spark://a:7077,b:7077", MasterKind.STANDALONE, None),
        ("yarn", MasterKind.YARN, None),
        ("k8s://https://host:443", MasterKind.KUBERNETES, None),
    ],
)
def test_kind_and_cores_are_read_off_the_name(
    name: str, kind: MasterKind, cores: int | None
) -> None:
    master = SparkMaster.parse(name)
    assert (master.name, master.kind, master.cores) == (name, kind, cores)
    is_local = kind in (MasterKind.LOCAL, MasterKind.LOCAL_CLUSTER)
    assert master.is_on_this_machine is is_local


@pytest.mark.parametrize(
    "name",
    [
        *("in-process", "local2", "local[0]", "local[x]", "local[2", "local[2] ", "localhost:7077"),
        *("local-cluster[2]", "spark:7077", "spark://", "spark://a b", "yarn-client", "k8s", ""),
    ],
)
def test_what_spark_does_not_know_is_no_master(name: str) -> None:
    assert SparkMaster.parse(name).kind is MasterKind.OTHER


def test_all_cores_of_the_machine_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert SparkMaster.parse("local[*]").cores == 7


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("local", "local[1,1000]"),
        ("local[2]", "local[2,1000]"),
        ("local[2,4]", "local[2,1000]"),
        ("local[*]", "local[*,1000]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("yarn", "yarn"),
    ],
)
def test_local_tasks_are_retried(name: str, given: str) -> None:
    assert SparkMaster.parse(name).with_retries() == given


def test_a_local_master_of_all_cores_can_be_given_more_threads() -> None:
    assert SparkMaster.parse("local[*]").with_retries(500) == "local[500,1000]"
    assert SparkMaster.parse("local[2]").with_retries(500) == "local[2,1000]"
