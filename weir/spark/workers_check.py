"""The checks of ``weir doctor`` on the workers of a cluster: a small Spark job that reports.

The job has as many tasks as the cluster has cores, so that each worker gets some. Reports are
compared with this machine: the same Python and packages, the driver's port and the storage in
reach, the clock near.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext, cloudpickle

from weir.channels.hosts import listen
from weir.errors import ConfigError, SlotError, StorageError
from weir.spark import worker_probe
from weir.spark.submit import IN_PROCESS, open_session, reachable_host
from weir.spark.worker_python import unfit_python
from weir.storage.local import LocalStore
from weir.storage.store import store_for
from weir.tools.doctor import Finding, skew, trial_directory

PACKAGES = ("weir-streaming", "pyarrow", "numpy", "cloudpickle", "msgspec", "pyspark")
WAIT_S = 60.0  # For a cluster that has no free cores.
LOOK_S = 1.0
GROUP = "weir-doctor"


def check_workers(master: str, storage: str | None) -> Iterator[Finding]:
    """The findings on the workers of ``master``; none for the master in-process."""
    if master == IN_PROCESS:
        return
    try:
        spark, owned = open_session(master, 1, "weir doctor")
    except Exception as error:  # Spark's own classes, and what its JVM raised.
        yield Finding(
            "workers", f"Spark cannot be started: {_first_line(error)}", "repair what it names"
        )
        return
    try:
        with _driver_directory(storage) as directory:
            yield from _findings(spark, directory)
    finally:
        if owned:
            spark.stop()


def compared(reports: Sequence[dict[str, Any]], begun_ns: int, ended_ns: int) -> Iterator[Finding]:
    """The findings on what workers reported between two times of this machine."""
    hosts = Counter(report["host"] for report in reports)
    told = ", ".join(f"{host} ({count})" for host, count in sorted(hosts.items()))
    yield Finding("workers", f"reports from {told}")
    own = worker_probe.versions(PACKAGES)
    yield _differing(
        "workers' packages",
        own,
        [(report["host"], report["packages"]) for report in reports],
        "install this machine's versions in the Python that the workers start "
        "(spark.pyspark.python)",
    )
    yield _problems(
        "workers' way here",
        [(report["host"], report["driver"]) for report in reports],
        "all reach a port of this driver",
        "open the ports of this machine for the workers, or set spark.driver.host to an address "
        "that they reach",
    )
    yield _problems(
        "workers' storage",
        [(report["host"], report["storage"]) for report in reports],
        "all write where this machine reads",
        "mount the same directory on all machines, writable by the user that workers run as",
    )
    for host, behind_ms in _clocks(reports, begun_ns, ended_ns):
        yield skew(f"clock of {host}", behind_ms)


def _findings(spark: SparkContext, directory: str | None) -> Iterator[Finding]:
    host = reachable_host(spark)
    with listen(host, backlog=1_024) as server:
        address = (host, server.getsockname()[1])
        cloudpickle.register_pickle_by_value(worker_probe)  # type: ignore[no-untyped-call]
        try:
            begun_ns = time.time_ns()
            report = worker_probe.probe(PACKAGES, address, directory)
            count = max(2, spark.defaultParallelism)
            reports = _in_time(
                spark,
                lambda: spark.parallelize(range(count), count).mapPartitions(report).collect(),
            )
            ended_ns = time.time_ns()
        except (Py4JError, TimeoutError, SlotError) as error:
            yield _failed(error)
            return
        finally:
            cloudpickle.unregister_pickle_by_value(worker_probe)  # type: ignore[no-untyped-call]
    yield from compared(reports, begun_ns, ended_ns)


def _in_time(spark: SparkContext, collect: Callable[[], list[Any]]) -> list[Any]:
    """The result of a Spark job.

    Raises:
        SlotError: The workers' Python cannot run tasks.
        TimeoutError: The cluster gave it no core in time.
        Py4JError: It failed.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            spark.setJobGroup(GROUP, "weir doctor", interruptOnCancel=True)
            outcome.append(collect())
        except Py4JError as error:
            outcome.append(error)

    thread = Thread(target=run, name="weir-doctor", daemon=True)
    thread.start()
    deadline, unfit = time.monotonic() + WAIT_S, ""
    while thread.is_alive() and not unfit and time.monotonic() < deadline:
        thread.join(LOOK_S)
        unfit = unfit_python(spark, GROUP)
    if thread.is_alive():
        spark.cancelJobGroup(GROUP)
        thread.join(WAIT_S)
        if unfit:
            raise SlotError(unfit)
        raise TimeoutError(f"no worker took a task in {WAIT_S:.0f} s")
    (result,) = outcome
    if isinstance(result, Py4JError):
        raise result
    reports: list[Any] = result
    return reports


def _failed(error: Exception) -> Finding:
    if isinstance(error, SlotError):
        problem, _, advice = str(error).partition(": ")
        return Finding("workers' Python", problem, advice)
    advice = "see the master's page for free cores, and the workers' logs"
    return Finding("workers", _first_line(error), advice)


def _differing(
    name: str,
    own: dict[str, str],
    reports: Sequence[tuple[str, dict[str, str]]],
    advice: str,
) -> Finding:
    others = {
        f"{host} has {package} {version}, this machine {own[package]}"
        for host, versions in reports
        for package, version in versions.items()
        if version != own[package]
    }
    if others:
        return Finding(name, "; ".join(sorted(others)), advice)
    return Finding(name, "the same as here")


def _problems(name: str, reports: Sequence[tuple[str, str]], all_well: str, advice: str) -> Finding:
    problems = {f"{host}: {problem}" for host, problem in reports if problem}
    if problems:
        return Finding(name, "; ".join(sorted(problems)), advice)
    return Finding(name, all_well)


def _clocks(
    reports: Sequence[dict[str, Any]], begun_ns: int, ended_ns: int
) -> Iterator[tuple[str, float]]:
    """The time by which each host's clock is behind, beyond what the length of the job explains."""
    for host in sorted({report["host"] for report in reports}):
        times = [report["time_ns"] for report in reports if report["host"] == host]
        behind_ns = max(0, begun_ns - min(times)) - max(0, max(times) - ended_ns)
        yield host, behind_ns / 1e6


@contextmanager
def _driver_directory(storage: str | None) -> Iterator[str | None]:
    """A directory in the storage with a file of this machine's, for workers to find."""
    try:
        store = None if storage is None else store_for(storage)
    except ConfigError:  # The check of the storage itself tells it, and the StorageError below.
        store = None
    if not isinstance(store, LocalStore):
        yield None
        return
    with trial_directory(store) as directory:
        try:
            store.put(f"{directory}/driver", b"weir doctor")
        except StorageError:
            yield None
        else:
            yield str(Path(store.root, directory))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(": ")]
    return (causes or lines or [type(error).__name__])[0].removeprefix(": ")[:300]
