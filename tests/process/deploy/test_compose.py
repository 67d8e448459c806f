"""The compose file, the images it builds and the settings it needs fit together and hold no secret.

Nothing is built here: what can be known from the files is checked against the code they start.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
import yaml
from django.core.management import get_commands
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.celery import app
from controlplane.embedded.redis import bundled_server
from controlplane.embedded.server import free_port
from tests.waiting import wait_until
from weir.spark_settings import ENCRYPTED

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
ONE_SHOT = {"migrate", "volumes"}
SECRETS = {
    *("SECRET_KEY", "WEIR_ENCRYPTION_KEYS", "POSTGRES_PASSWORD", "LAUNCHER_PASSWORD"),
    *("REDIS_PASSWORD", "SPARK_SECRET"),
}
ROOT_WITH = {  # Services that run as root, and the only rights of root that they keep.
    "launcher": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"],
    "volumes": ["CHOWN", "DAC_OVERRIDE", "FOWNER"],
}

_VARIABLE = re.compile(r"\$\{(\w+)(?:(:[?-])([^}]*))?\}")


def example() -> dict[str, str]:
    """The variables that ``.env.example`` sets."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled_in(text: str, values: dict[str, str]) -> str:
    """``text`` with its variables replaced as compose does."""

    def value(match: re.Match[str]) -> str:
        name, rule, word = match.groups()
        if given := values.get(name):
            return given
        assert rule == ":-", f"{name} is required"
        return str(word)

    return _VARIABLE.sub(value, text)


def test_every_part_of_the_control_plane_is_a_service() -> None:
    assert set(SERVICES) == {
        *("postgres", "redis", "volumes", "migrate", "web", "worker", "beat", "launcher"),
        "deliveries",
        *("spark-master", "spark-worker-1", "spark-worker-2"),
    }


@pytest.mark.parametrize("name", OURS)
def test_a_command_starts_something_that_exists(name: str) -> None:
    service = SERVICES[name]
    command = service.get("command") or image_command(service["build"]["target"])
    match command:
        case ["python", "-m", module, *_]:
            assert find_spec(module) is not None
        case ["python", "manage.py", subcommand, *_]:
            assert (ROOT / "manage.py").exists()
            assert subcommand in get_commands()
        case ["celery", application, subcommand, *_]:
            package = application.removeprefix("--app=")
            assert import_module(package).celery_app is app
            assert subcommand in {"worker", "beat"}
        case ["share-volumes"]:
            assert "<<'SHARE' /usr/local/bin/share-volumes" in DOCKERFILE
        case [program, main_class, *_]:
            pyspark = find_spec("pyspark")
            assert pyspark is not None
            assert pyspark.origin is not None
            inside = program.partition("/site-packages/pyspark/")[2]
            assert os.access(Path(pyspark.origin).parent / inside, os.X_OK)
            assert re.fullmatch(
                r"org\.apache\.spark\.deploy\.(master\.Master|worker\.Worker)", main_class
            )
        case _:
            pytest.fail(f"unknown command: {command}")


def image_command(target: str) -> list[str]:
    commands = re.findall(r"^CMD (\[.*\])$", stage(target), re.MULTILINE)
    command: list[str] = yaml.safe_load(commands[-1])
    return command


def stage(target: str) -> str:
    """The lines of one stage of the Dockerfile."""
    _, _, rest = DOCKERFILE.partition(f" AS {target}\n")
    assert rest, f"the Dockerfile has no stage {target}"
    return re.split(r"^FROM ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_every_queue_has_a_worker_and_no_worker_an_unknown_queue() -> None:
    consumed = [
        queue
        for service in SERVICES.values()
        for word in service.get("command", [])
        if word.startswith("--queues=")
        for queue in word.removeprefix("--queues=").split(",")
    ]
    assert sorted(consumed) == sorted(queue.name for queue in app.conf.task_queues)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONE_SHOT))
def test_a_service_says_whether_it_is_healthy(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert check["interval"]
    assert check["timeout"]
    if check["test"][0] == "CMD" and "--destination" in check["test"][-1]:
        destination = check["test"][-1].removeprefix("--destination=")
        assert f"--hostname={destination}" in SERVICES[name]["command"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_waits_for_what_it_needs(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        expected = "completed_successfully" if needed in ONE_SHOT else "healthy"
        assert how["condition"] == f"service_{expected}", needed
        assert needed in SERVICES


def test_every_service_on_the_database_waits_for_the_migrations() -> None:
    for name in ("web", "worker", "deliveries", "beat", "launcher"):
        assert {"postgres", "redis", "migrate", "volumes"} <= set(SERVICES[name]["depends_on"])


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_no_secret_is_written_down(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        text = _VARIABLE.sub("", str(value))
        if re.search(r"PASSWORD|SECRET|TOKEN|AUTH$|KEY", key):
            assert text == "", f"{key} holds a literal"
        assert not re.search(r"://[^/@]*:[^/@]+@", text), f"{key} holds a password"


def test_every_secret_is_required_and_the_example_has_none() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    given = example()
    for secret in SECRETS:
        uses = [use for use in _VARIABLE.finditer(text) if use[1] == secret]
        assert uses
        assert all(use[2] == ":?" for use in uses), secret
        assert given[secret] == ""


def test_every_variable_is_explained_in_the_example() -> None:
    used = {use[1] for use in _VARIABLE.finditer((ROOT / "docker-compose.yml").read_text())}
    assert used == set(example())


def test_the_filled_in_file_is_not_committed() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_data_lies_in_named_volumes(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source, target, *_ = volume.split(":")
        assert source in COMPOSE["volumes"], volume
        assert target.startswith("/")


@dataclass(frozen=True)
class Volume:
    """A shared directory: the code that reaches it, and the services that run that code.

    ``code`` are the names by which modules reach the directory; ``users`` are the modules that use
    them, with the services that run those, ``+`` where they write.
    """

    code: str
    users: dict[str, str]
    user_code: bool = False  # Whether drivers and executors write there, as their job says.


VOLUMES = {
    "uploads": Volume(
        r"\buploads\.(store|remove_unused)\b|(?<!locations\.)(?<!def )\bpath_of\(|\bWEIR_UPLOADS\b",
        {
            "jobs/api/uploads.py": "web+",
            "jobs/api/with_file.py": "web+",
            "frontend/submit/views.py": "web+",
            "frontend/uploads/sources.py": "web",
            "controlplane/retention/rules.py": "worker+",
            "jobs/drivers/driver_files.py": "launcher",
            "jobs/preview_processes.py": "launcher",
            "jobs/uploads.py": "",  # Defines them.
        },
    ),
    "drivers": Volume(
        r"\bdriver_files\.(?!READ_BYTES_MAX|LOG_NAME|NOTE_NAME)\w+\(|\bWEIR_DRIVERS\b",
        {
            "controlplane/retention/files.py": "launcher+",
            "frontend/about/logs.py": "web",
            "jobs/api/views.py": "web",
            "jobs/preview_processes.py": "launcher+",
            "jobs/drivers/launcher.py": "launcher+",
            "jobs/drivers/spark_command.py": "launcher+",
            "jobs/drivers/driver_watch.py": "launcher+",
            "jobs/drivers/driver_files.py": "",
        },
    ),
    "checkpoints": Volume(
        r"\b(claimed_)?store_(for|of)\(",
        {
            "checkpoints/retention/finalization.py": "worker+",
            "checkpoints/retention/withdrawn_output.py": "worker+",
            "checkpoints/retention/discards.py": "worker+",
            "checkpoints/retention/sweep.py": "worker+",
            "checkpoints/operations/previews.py": "worker",
            "frontend/checkpoint/manifest.py": "web",
            "jobs/submissions.py": "",  # Parses a URI.
            "checkpoints/catalog/savepoint_names.py": "",
            "checkpoints/catalog/locations.py": "",
        },
        user_code=True,
    ),
    "data": Volume(
        r"\bWEIR_SCRIPT_ROOTS\b",
        {"jobs/submissions.py": "web", "frontend/submit/views.py": "web"},
        user_code=True,
    ),
}
CONTROL_PLANE = ("controlplane", "jobs", "checkpoints", "frontend")
EXECUTORS = {"launcher", "spark-worker-1", "spark-worker-2"}  # Drivers run beside the launcher.


@pytest.mark.parametrize("name", sorted(VOLUMES))
def test_modules_that_reach_a_volume_are_known(name: str) -> None:
    using = {
        path.relative_to(ROOT).as_posix()
        for package in CONTROL_PLANE
        for path in (ROOT / package).rglob("*.py")
        if re.search(VOLUMES[name].code, path.read_text()) and path.parent.name != "settings"
    }
    assert using == set(VOLUMES[name].users)


@pytest.mark.parametrize("name", sorted(VOLUMES))
def test_a_volume_is_mounted_where_code_reaches_it_and_written_only_where_code_writes(
    name: str,
) -> None:
    volume = VOLUMES[name]
    writes: dict[str, bool] = {}
    for service in filter(None, volume.users.values()):
        plain = service.removesuffix("+")
        writes[plain] = writes.get(plain, False) or service != plain
    if volume.user_code:
        writes |= dict.fromkeys(EXECUTORS, True)
    mounted = {
        service: not mount.endswith(":ro")
        for service, parts in SERVICES.items()
        for mount in parts.get("volumes", [])
        if mount.split(":")[0] == name and service != "volumes"  # Gives all to their group.
    }
    assert mounted == writes


def test_a_volume_is_at_one_place() -> None:
    places: dict[str, set[str]] = {}
    for service in SERVICES.values():
        if "build" in service:
            for mount in service.get("volumes", []):
                volume, target, *_ = mount.split(":")
                places.setdefault(volume, set()).add(target)
    assert places == {
        **{name: {f"/var/lib/weir/{name}"} for name in ("uploads", "drivers", "checkpoints")},
        "data": {"/data"},
    }
    for (place,) in places.values():
        assert re.search(rf"install -d .* {place}\b", DOCKERFILE), place


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_few_services_are_root_and_keep_few_of_its_rights(name: str) -> None:
    service = SERVICES[name]
    if name in ROOT_WITH:
        assert service["user"] == "root"
        assert service["cap_add"] == ROOT_WITH[name]
        assert service["cap_drop"] == ["ALL"]
    elif "build" in service:
        target = service["build"]["target"]
        users = re.findall(r"^USER (\S+)$", stage(target), re.MULTILINE)
        assert users[-1:] == [{"web": "weir", "spark": "pipeline"}[target]]
        assert "user" not in service
        assert "cap_add" not in service
        assert service["cap_drop"] == ["ALL"]
    else:
        assert service["user"] not in {"root", "0"}
    assert "no-new-privileges:true" in service["security_opt"]


def test_user_code_gets_no_secret_of_the_services() -> None:
    """User code runs in the launcher's container as ``pipeline``, and on Spark's workers."""
    launcher = SERVICES["launcher"]["environment"]
    assert launcher["WEIR_DRIVER_USER"] == "pipeline"
    assert launcher["DJANGO_SETTINGS_MODULE"] == "controlplane.settings.launcher"
    assert "SECRET_KEY" not in launcher
    assert "POSTGRES_PASSWORD" not in str(launcher)
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        secrets = {use[1] for use in _VARIABLE.finditer(str(SERVICES[name]["environment"]))}
        assert secrets & SECRETS == {"SPARK_SECRET"}


def test_launcher_and_migration_name_one_role_and_password() -> None:
    migrate, launcher = (SERVICES[name]["environment"] for name in ("migrate", "launcher"))
    user, _, password = launcher["DATABASE_URL"].split("//")[1].rpartition("@")[0].partition(":")
    assert (user, password) == (migrate["WEIR_LAUNCHER_ROLE"], migrate["WEIR_LAUNCHER_PASSWORD"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another group")
def test_volumes_of_earlier_versions_are_shared(tmp_path: Path) -> None:
    """Run as the image runs it, on what the version before has written."""
    script = (ROOT / "Dockerfile").read_text().partition("<<'SHARE'")[2]
    script = script.partition("\n")[2].partition("\nSHARE\n")[0]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    elsewhere.chmod(0o600)
    home = tmp_path / "home"
    for path in ("checkpoints/job/chk-1/state", "uploads/1.py", "drivers/job/1/driver.log"):
        file = home / path
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        file.write_text("")
        file.chmod(0o600)
    (home / "checkpoints" / "link").symlink_to(elsewhere)
    (home / "checkpoints" / "other").symlink_to("/etc")
    os.mkfifo(home / "checkpoints" / "fifo")

    def looks(path: str) -> tuple[int, int]:
        status = (home / path).stat()
        return status.st_gid, status.st_mode & 0o7777

    for _ in range(2):  # The second time, over what was made meanwhile by an older version.
        subprocess.run(
            [sys.executable, "-c", script],
            env={"WEIR_HOME": str(home), "PIPELINES": "54321", "SERVICES": "54320"},
            check=True,
            timeout=240,
        )
        assert looks("checkpoints/job/chk-1") == (54321, 0o2775)
        assert looks("checkpoints/job/chk-1/state") == (54321, 0o660)
        assert looks("uploads") == (54321, 0o2755)
        assert looks("uploads/1.py") == (54321, 0o640)
        assert looks("drivers/job/1") == (54320, 0o2755)
        assert looks("drivers/job/1/driver.log") == (54320, 0o640)
        assert (elsewhere.stat().st_gid, elsewhere.stat().st_mode & 0o777) == (0, 0o600)
        os.chown(home / "checkpoints" / "job" / "chk-1", 0, 0)
        (home / "checkpoints" / "job" / "chk-1").chmod(0o755)


def test_only_the_web_service_is_published_and_only_where_told() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"web": ["${WEIR_PUBLISH:-127.0.0.1:8000}:8000"]}


def test_what_the_images_copy_exists_and_reaches_the_build() -> None:
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert rules[0] == "*"
    allowed = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    copied = [
        source
        for words in re.findall(r"^COPY ((?!--).*)$", DOCKERFILE, re.MULTILINE)
        for source in words.split()[:-1]
    ]
    assert {"manage.py", "weir", "controlplane", "jobs", "checkpoints", "frontend"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, rule) for rule in allowed), source


def test_the_images_have_the_wheel_and_the_wheel_every_app() -> None:
    from django.conf import settings

    copied = set(re.findall(r"^COPY (\w+) \w+$", stage("wheel"), re.MULTILINE))
    local = {name.partition(".")[0] for name in settings.INSTALLED_APPS} & {
        path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()
    }
    assert copied == local | {"weir", "templates"}
    for target in ("web", "spark"):
        assert f"COPY --from={target}-environment /opt/venv /opt/venv" in stage(target)
        assert "uv pip install --no-cache --no-deps /dist/*.whl" in stage(f"{target}-environment")
    assert re.search(r"^WORKDIR /opt/venv/\S+/weir_control_plane$", stage("base"), re.MULTILINE)


def test_redis_is_the_first_process_and_ends_on_sigterm(tmp_path: Path) -> None:
    """Run as the container runs it, on another port and directory."""
    password = "a0b1c2d3" * 6
    command = [word.replace("$$", "$") for word in SERVICES["redis"]["command"]]
    assert command[:2] == ["sh", "-c"]
    port = free_port()
    command[2] = command[2].replace("dir /data\n", f"dir {tmp_path}\nport {port}\n")
    server = bundled_server()
    assert server is not None
    process = subprocess.Popen(
        command,
        env={"PATH": f"{server.parent}:{os.environ['PATH']}", "REDISCLI_AUTH": password},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with redis.Redis(port=port, password=password, retry=Retry(NoBackoff(), 0)) as client:
            wait_until(lambda: answers(client), "Redis answers")
            assert psutil.Process(process.pid).exe() == str(server.resolve())
            assert password not in " ".join(psutil.Process(process.pid).cmdline())
            told = client.config_get("*")
            assert told["maxmemory-policy"] == "volatile-ttl"
            assert (told["appendonly"], told["save"]) == ("yes", "")
            assert told["maxmemory"] == str(256 << 20)
            client.set("queue", "kept")
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert "Received SIGTERM" in said
    assert b"kept" in b"".join(p.read_bytes() for p in tmp_path.rglob("*.aof"))


def answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def environment_of(name: str, values: dict[str, str]) -> dict[str, str]:
    service = SERVICES[name]["environment"]
    return {key: filled_in(str(value), values) for key, value in service.items()}


def check_settings(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_production_starts_with_the_example_once_its_secrets_are_filled_in() -> None:
    values = example() | dict.fromkeys(SECRETS, "a0b1c2d3" * 8)
    done = check_settings(environment_of("web", values))
    assert done.returncode == 0, done.stderr
    done = check_settings(environment_of("launcher", values))
    assert done.returncode == 0, done.stderr
    done = check_settings(environment_of("launcher", values) | {"SECRET_KEY": "a0b1c2d3" * 8})
    assert "leave it out" in done.stderr


def test_the_spark_secret_gets_into_a_private_file(tmp_path: Path) -> None:
    """Run as the image runs it: the script in the Dockerfile, before the service's command."""
    script = (ROOT / "Dockerfile").read_text().partition("<<'SCRIPT'")[2]
    script = script.partition("\n")[2].partition("\nSCRIPT\n")[0]
    directory = tmp_path / "conf"

    def run(**environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["sh", "-c", script, "with-spark-secret", "env"],
            env={"PATH": os.environ["PATH"], "SPARK_CONF_DIR": str(directory), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run().returncode != 0
    assert not directory.exists()
    done = run(SPARK_SECRET="abc")
    assert done.returncode == 0, done.stderr
    assert "SPARK_SECRET" not in done.stdout
    written = directory / "spark-defaults.conf"
    assert written.stat().st_mode & 0o777 == 0o600
    told = dict(line.split() for line in written.read_text().splitlines())
    assert told == {**ENCRYPTED, "spark.authenticate.secret": "abc"}


def test_production_refuses_a_short_secret_key() -> None:
    values = example() | dict.fromkeys(SECRETS, "a0b1c2d3" * 8) | {"SECRET_KEY": "short"}
    done = check_settings(environment_of("web", values))
    assert done.returncode != 0
    assert "SECRET_KEY is too short" in done.stderr


@pytest.mark.parametrize("name", ["web", "worker", "deliveries", "beat", "launcher", "migrate"])
def test_every_setting_of_ours_is_one_that_the_settings_read(name: str) -> None:
    text = "".join(path.read_text() for path in (ROOT / "controlplane" / "settings").glob("*.py"))
    for key in SERVICES[name]["environment"]:
        if key.startswith("WEIR_"):
            assert f'"{key}"' in text, key
