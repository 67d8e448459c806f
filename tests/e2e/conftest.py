"""One control plane for all end-to-end tests, and a look at what it leaves."""

import uuid
from collections.abc import Iterator

import pytest

from tests.e2e.plane import Plane
from tests.services import reachable_directory
from tests.spark.harness import SESSION, processes_of, wait_until_gone

# Short, so that a silent driver is noticed while a test watches; the checkpoint timeout is the
# pipeline's own.
ENVIRONMENT = {
    "WEIR_DRIVER_TIMEOUT_MS": "8000",
    "WEIR_LOG_LEVEL": "INFO",
    # With a checkpoint every 300 ms the usual few would be gone before anybody went back to one.
    "WEIR_RETAINED_CHECKPOINTS": "300",
}


@pytest.fixture(scope="package")  # Its threads and processes are of no use to other packages.
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Everything embedded, services restarted when they die."""
    name = uuid.uuid4().hex
    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SESSION, name)
        patch.setenv("SPARK_LOCAL_DIRS", str(scratch))
        options = f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData -XX:+UseSerialGC"
        patch.setenv("JDK_JAVA_OPTIONS", options)
        with reachable_directory() as home:
            plane = Plane.start(home / "home", ENVIRONMENT)
            try:
                yield plane
            finally:
                plane.stack.stop()
                plane.stack.postgres.remove()
    wait_until_gone(lambda: processes_of(name))
