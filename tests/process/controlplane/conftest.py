"""The web process on the tests' database, started once for all who ask."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.embedded.postgres import Postgres
from controlplane.embedded.redis import Redis
from tests.migrated import is_made, migrate
from tests.process.controlplane.web import Web
from tests.services import database_url, running_postgres

GATEWAY_BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 1 << 16


@pytest.fixture(scope="session")
def web(
    django_db_setup: None, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Web]:
    """A web process with the session's PostgreSQL and Redis; its metrics are everybody's."""
    home = tmp_path_factory.mktemp("web")
    with Web(home / "web.log", environment(home, redis_server.url)) as process:
        yield process


@pytest.fixture
def start_web(django_db_setup: None, tmp_path: Path) -> Iterator[Callable[..., Web]]:
    """Starts a web process of the test's own: with another Redis, or to be ended."""
    with ExitStack() as stack:

        def start(redis_url: str, **more: str) -> Web:
            process = Web(tmp_path / "web.log", environment(tmp_path, redis_url) | more)
            return stack.enter_context(process)

        yield start


@pytest.fixture
def away_postgres(redis: Redis) -> Iterator[Postgres]:
    """A PostgreSQL of the test's own with Weir's tables, to be killed."""
    with running_postgres(migrated=True) as server:
        if not is_made():
            migrate(server.url)
        yield server


def environment(home: Path, redis_url: str) -> dict[str, str]:
    """The environment that the process is started with."""
    return {
        "DATABASE_URL": database_url(),
        "REDIS_URL": redis_url,
        "WEIR_HOME": str(home),
        "WEIR_METRICS_PUBLIC": "yes",
        "WEIR_GATEWAY_BODY_BYTES_MAX": str(GATEWAY_BYTES_MAX),
        "WEIR_BODY_BYTES_MAX": str(BODY_BYTES_MAX),
        "WEIR_POLLS_PER_JOB_MAX": "100",
    }
