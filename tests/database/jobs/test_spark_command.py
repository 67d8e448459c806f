import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from controlplane.base import clock
from jobs import uploads
from jobs.drivers import driver_files
from jobs.drivers.spark_command import (
    SparkCommand,
    is_shipped,
    properties_text,
    spark_command,
)
from jobs.models import Driver, Job
from tests.database.jobs.builders import driver_of, submitted
from weir.managed.job_file import read_job_file
from weir.spark.encryption import encryption_settings
from weir.spark_master import SparkMaster
from weir.spark_settings import ENCRYPTED, SETTINGS

pytestmark = pytest.mark.django_db

HERE = Path("/drivers/job/1")


def command_of(job: Job) -> SparkCommand:
    return spark_command(job, driver_of(job), HERE)


def flag(spark: SparkCommand, name: str) -> str:
    return spark.command[spark.command.index(name) + 1]


def conf(spark: SparkCommand) -> dict[str, str]:
    """The settings in the properties file, as far as none is written with an escape."""
    lines = [line.replace("\\", "") for line in spark.properties.splitlines()]
    return dict(line.split("=", 1) for line in lines if line)


def test_whole_command_line_of_a_local_driver(settings: Settings) -> None:
    settings.WEIR_SPARK_SUBMIT = "/opt/spark/bin/spark-submit"
    job = submitted(spark_master="local[3]")
    spark = command_of(job)
    assert spark.command[:7] == (
        "/opt/spark/bin/spark-submit",
        "--master",
        "local[3,1000]",
        "--deploy-mode",
        "client",
        "--name",
        job.pk,
    )
    assert flag(spark, "--properties-file") == "/drivers/job/1/spark.properties"
    script, job_file = spark.command[-2:]
    assert script.endswith("weir/spark/driver.py")
    assert job_file == "/drivers/job/1/job.json"
    assert spark.before == ()
    assert conf(spark)["spark.driver.host"] == "127.0.0.1"
    assert conf(spark)["spark.task.maxFailures"] == "1000"


@pytest.mark.parametrize(
    ("master", "given"),
    [
        ("local", "local[1,1000]"),
        ("local[2]", "local[2,1000]"),
        ("local[2,4]", "local[2,1000]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_master_is_given_with_retries(master: str, given: str) -> None:
    assert flag(command_of(submitted(spark_master=master)), "--master") == given


def test_every_slot_of_a_local_star_gets_a_thread() -> None:
    def threads(job: Job) -> int:
        master = flag(command_of(job), "--master")
        return int(master.removeprefix("local[").removesuffix(",1000]"))

    job = submitted(spark_master="local[*]")
    assert threads(job) >= max(32, os.cpu_count() or 1)
    assert threads(submitted(spark_master="local[*]", options={"parallelism": 1_000})) == 1_000
    job.slot_count = 500  # As an earlier driver planned it.
    assert threads(job) == 500


def test_library_mode_and_launcher_tell_spark_the_same() -> None:
    assert conf(command_of(submitted(spark_master="spark://host:7077"))) == SETTINGS


def test_spark_itself_is_authenticated_and_in_a_cluster_encrypted(settings: Settings) -> None:
    """As library mode has it; a standalone cluster has its settings on its own nodes."""
    settings.WEIR_SPARK_DEPLOY_MODE = "cluster"
    for master in ("local[2]", "yarn", "k8s://https://cluster", "spark://master:7077"):
        shown = conf(command_of(submitted(spark_master=master)))
        own = {name: text for name, text in shown.items() if name in ENCRYPTED}
        assert own == encryption_settings(SparkMaster.parse(master), has_secret=False), master


def test_settings_of_the_job_win_over_those_of_the_control_plane(settings: Settings) -> None:
    settings.WEIR_SPARK_CONF = {"spark.executor.memory": "1g", "spark.ui.enabled": "true"}
    job = submitted(spark_conf={"spark.executor.memory": "2g"})
    given = conf(command_of(job))
    assert (given["spark.executor.memory"], given["spark.ui.enabled"]) == ("2g", "true")


def test_environment_names_pythons_and_driver_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "SECRET_KEY_FILE", "WEIR_HOME"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    job = submitted()
    environment = command_of(job).environment
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert Path(environment["SPARK_HOME"], "bin", "spark-submit").is_file()
    assert environment["WEIR_DRIVER"] == f"{job.pk}/1"
    assert environment["LANG"] == "C.UTF-8"
    assert "secret" not in environment.values()


def test_environment_is_a_list_of_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """A secret comes under a name of which no list of forbidden names could know."""
    for name in ("STRIPE_KEY", "AWS_SECRET_ACCESS_KEY", "MY_TOKEN", "SPARK_SECRET", "TEAM_SETTING"):
        monkeypatch.setenv(name, f"the {name}")
    monkeypatch.setenv("SPARK_CONF_DIR", "/nowhere/conf")
    settings.WEIR_DRIVER_ENVIRONMENT = ["TEAM_SETTING"]
    environment = command_of(submitted()).environment
    assert [v for v in environment.values() if v.startswith("the ")] == ["the TEAM_SETTING"]
    assert environment["SPARK_CONF_DIR"] == "/nowhere/conf"


def test_settings_of_spark_are_not_on_the_command_line() -> None:
    job = submitted(spark_conf={"spark.hadoop.fs.s3a.secret.key": "hunter2"})
    spark = command_of(job)
    assert conf(spark)["spark.hadoop.fs.s3a.secret.key"] == "hunter2"
    assert not any("hunter2" in word for word in spark.command)
    assert "hunter2" not in repr(spark)


def test_defaults_of_spark_go_before_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A properties file takes their place, and of two lines with one key the last counts."""
    (tmp_path / "spark-defaults.conf").write_text("spark.authenticate true\nspark.ui.enabled yes")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    lines = command_of(submitted()).properties.splitlines()
    assert lines[:2] == ["spark.authenticate true", "spark.ui.enabled yes"]
    assert "spark.ui.enabled=false" in lines[2:]


def test_properties_are_written_as_java_reads_them() -> None:
    written = properties_text({"a b": " x=1:\\\n#!é😀", "plain": "local[2]"})
    assert written == ("a\\ b=\\ x\\=1\\:\\\\\\n\\#\\!\\u00e9\\ud83d\\ude00\nplain=local[2]\n")


def test_launching_imports_neither_pyspark_nor_the_runtime() -> None:
    """The launcher is a Django process; what it starts is another one."""
    code = (
        "import django, sys; django.setup(); from jobs.drivers import launcher, spark_command; "
        "spark_command._entry_script(); spark_command._spark_submit(); "
        "bad = {'pyspark', 'weir.spark', 'weir.worker', 'weir.jobmaster', 'numpy'}"
        " & set(sys.modules); "
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings.test"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)


def test_yarn_ships_job_file_and_script(settings: Settings) -> None:
    settings.WEIR_SPARK_DEPLOY_MODE = "cluster"
    job = submitted(spark_master="yarn")
    spark = command_of(job)
    assert flag(spark, "--deploy-mode") == "cluster"
    assert flag(spark, "--files") == f"/drivers/job/1/job.json,{job.pipeline_target}"
    assert spark.command[-1] == "job.json"
    assert conf(spark)["spark.yarn.maxAppAttempts"] == "1"
    told = driver_files.job_file(job, driver_of(job), "t", shipped=is_shipped(job))
    assert told["pipeline"] == {"kind": "script", "target": "pipeline.py"}


def test_kubernetes_mounts_the_job_file_as_a_secret(settings: Settings) -> None:
    settings.WEIR_SPARK_DEPLOY_MODE = "cluster"
    job = submitted(
        spark_master="k8s://https://api:6443", spark_conf={"spark.kubernetes.namespace": "streams"}
    )
    spark = command_of(job)
    secret = f"weir-{job.pk}-1"
    assert spark.before == (
        (
            "kubectl",
            "create",
            "secret",
            "generic",
            secret,
            "--from-file=job.json=/drivers/job/1/job.json",
            "--namespace=streams",
        ),
    )
    assert conf(spark)[f"spark.kubernetes.driver.secrets.{secret}"] == "/var/run/weir/1"
    assert spark.command[-2].startswith("local:///")
    assert spark.command[-1] == "/var/run/weir/1/job.json"


@pytest.mark.parametrize("master", ["spark://host:7077", "local[2]"])
def test_other_masters_have_no_cluster_mode(settings: Settings, master: str) -> None:
    settings.WEIR_SPARK_DEPLOY_MODE = "cluster"
    assert flag(command_of(submitted(spark_master=master)), "--deploy-mode") == "client"


def prepared(job: Job) -> tuple[Path, Driver]:
    driver = driver_of(job)
    directory = driver_files.prepare(job, driver, "a token", None, shipped=False)
    return directory / "job.json", driver


def test_job_file_is_what_the_driver_reads(settings: Settings) -> None:
    settings.WEIR_GATEWAY_URL = "https://weir.example"
    options: dict[str, Any] = {"parallelism": 4, "mode": "at_least_once", "parameters": {"a": "b"}}
    job = submitted(options=options)
    path, _ = prepared(job)
    read = read_job_file(path)
    assert (read.gateway, read.job_id, read.driver, read.token) == (
        "https://weir.example",
        job.pk,
        1,
        "a token",
    )
    assert read.pipeline.target == job.pipeline_target
    assert read.options.parallelism == 4
    assert read.options.storage == job.storage
    assert not read.allow_plain_http


def test_job_file_says_when_a_driver_ends_alone_only_if_it_does(settings: Settings) -> None:
    """A driver of an earlier version refuses a field that it does not know."""
    job = submitted()
    settings.WEIR_DRIVER_ALONE_MAX_S = 0
    assert "alone_max_s" not in driver_files.job_file(job, driver_of(job), "t", shipped=False)
    settings.WEIR_DRIVER_ALONE_MAX_S = 3_600
    path, _ = prepared(job)
    assert read_job_file(path).alone_max_s == 3_600


def test_job_file_has_the_url_of_the_pages_where_drivers_use_another(settings: Settings) -> None:
    job = submitted()
    settings.WEIR_URL = settings.WEIR_GATEWAY_URL = "https://weir.example"
    assert "control_plane" not in driver_files.job_file(job, driver_of(job), "t", shipped=False)
    settings.WEIR_GATEWAY_URL = "https://gateway.example"
    path, _ = prepared(job)
    read = read_job_file(path)
    assert (read.gateway, read.control_plane) == (settings.WEIR_GATEWAY_URL, settings.WEIR_URL)


def test_job_file_names_where_to_begin_until_the_job_has_begun() -> None:
    job = submitted(options={"restore": "/old/flights-1a2b3c4d/chk-7", "claims": True})
    driver = Driver(job=job, number=1)
    options = driver_files.job_file(job, driver, "t", shipped=False)["options"]
    assert options == {
        "storage": job.storage,
        "restore": "/old/flights-1a2b3c4d/chk-7",
        "rewinds_output": True,
        "claims": True,
        "origin_is_over": False,
    }
    job.restore_uri = ""
    options = driver_files.job_file(job, driver, "t", shipped=False)["options"]
    assert options == {"storage": job.storage}


@pytest.mark.parametrize(("status", "is_over"), [("running", False), ("canceled", True)])
def test_job_file_says_whether_the_origin_may_still_commit_its_output(
    status: str, is_over: bool
) -> None:
    job, origin = submitted(options={"restore": "/old/sp"}), submitted()
    ended_at = clock.now() if is_over else None
    Job.objects.filter(pk=origin.pk).update(status=status, ended_at=ended_at)
    job.restore_job = Job.objects.get(pk=origin.pk)
    options = driver_files.job_file(job, Driver(job=job, number=1), "t", shipped=False)["options"]
    assert options["origin_is_over"] is is_over


def test_job_file_is_for_its_owner_alone() -> None:
    path, _ = prepared(submitted())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_job_file_is_made_anew_even_where_a_link_lies(tmp_path: Path) -> None:
    """An earlier driver of the job, which runs as the launcher's user, has laid it out."""
    job = submitted()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    directory = driver_files.directory_of(job.pk, 1)
    directory.mkdir(parents=True)
    (directory / "job.json").symlink_to(elsewhere)
    path, _ = prepared(job)
    assert not path.is_symlink()
    assert elsewhere.read_text() == "mine"


def test_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    job = submitted()
    directory = driver_files.directory_of(job.pk, 1)
    directory.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError, match="remove it"):
        prepared(job)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_uploads_run_from_where_they_are_kept() -> None:
    artifact = uploads.store(None, "orders.py", [b"x = 1\n"])
    job = submitted(pipeline_kind="upload", pipeline_target="", artifact_digest=artifact.digest)
    path, _ = prepared(job)
    told = json.loads(path.read_text())["pipeline"]
    assert told == {"kind": "script", "target": str(uploads.path_of(artifact))}


def test_modules_are_named() -> None:
    job = submitted(pipeline_kind="module", pipeline_target="weir.examples.flights")
    path, _ = prepared(job)
    assert json.loads(path.read_text())["pipeline"] == {
        "kind": "module",
        "target": "weir.examples.flights",
    }


def test_log_is_read_in_bounded_pieces() -> None:
    _, driver = prepared(submitted())
    path = driver_files.log_path(driver)
    path.write_bytes(b"first\n" + b"x" * 20_000 + b"\nlast \xff words\n")
    assert driver_files.tail(driver) == "last � words\n"
    part = driver_files.read(driver, 0, 5)
    assert (part.text, part.next_offset, part.size) == ("first", 5, 20_020)
    assert driver_files.read(driver, 1 << 40).text == ""
    path.unlink()
    assert driver_files.tail(driver) == ""
