"""Wheel and source distribution, as a user gets them.

The wheel is built from the unpacked source distribution and installed into an environment of its
own, which borrows the packages that Weir needs from the environment of the tests, and nothing of
the checkout.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.committed import MADE_BY_THE_BUILD, ROOT, committed_files
from tests.services import reachable_directory
from tests.waiting import wait_until

PARTS = ("controlplane", "jobs", "checkpoints", "frontend", "templates")
DEADLINE_S = 240.0
WORD_COUNT = """
from weir.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
words = env.from_collection(["to be or not to be"]).flat_map(str.split)
words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1).print()
env.execute("word count")
"""


@dataclass(frozen=True)
class Packages:
    """The build's wheel, and the unpacked source distribution."""

    wheel: Path
    source: Path

    @property
    def wheel_names(self) -> list[str]:
        """The paths of the wheel's files."""
        with zipfile.ZipFile(self.wheel) as wheel:
            return wheel.namelist()

    def described(self) -> str:
        """The text that an index shows."""
        with zipfile.ZipFile(self.wheel) as wheel:
            metadata = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
            return wheel.read(metadata).decode().partition("\n\n")[2]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Both packages."""
    built = tmp_path_factory.mktemp("dist")
    build(ROOT, "sdist", built)
    (archive,) = built.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", archive, "-C", built], check=True)
    (source,) = (path for path in built.iterdir() if path.is_dir())
    build(source, "wheel", built)
    (wheel,) = built.glob("*.whl")
    return Packages(wheel, source)


def build(project: Path, target: str, directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hatchling", "build", "-t", target, "-d", str(directory)],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a user with an own home and working directory."""

    environment: Path
    home: Path
    directory: Path

    def command(self, *words: str) -> "subprocess.Popen[str]":
        """Start a program of the environment; nothing of the tests' own environment is passed."""
        program, *arguments = words
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
        kept["PYTHONSAFEPATH"] = "1"  # Programs may not count on their working directory.
        return subprocess.Popen(
            [self.environment / "bin" / program, *arguments],
            cwd=self.directory,
            env={**kept, "HOME": str(self.home), "TMPDIR": str(self.home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def said(self, *words: str) -> str:
        """The output of a program that succeeds."""
        process = self.command(*words)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, output
        return output


@pytest.fixture(scope="module")
def installed(packages: Packages) -> Iterator[Installed]:
    """The installed wheel, and a working directory that has files with names of packages."""
    with reachable_directory() as place:  # PostgreSQL runs as another user where this is root.
        yield install(packages, place)


def install(packages: Packages, place: Path) -> Installed:
    environment, home, directory = (place / name for name in ("environment", "home", "work"))
    home.mkdir()
    directory.mkdir()
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--python", python]
    without = ("--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "install", *without, packages.wheel], check=True, cwd=directory)
    # Its line is only put on the path: of what lies there, no .pth file is read, as that which
    # leads to the checkout.
    (borrowed,) = environment.glob("lib/python*/site-packages")
    (borrowed / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("jobs", "celery", "django", "redis", "checkpoints"):
        (directory / f"{name}.py").write_text("raise SystemExit('a file of the user was imported')")
    return Installed(environment, home, directory)


def test_source_distribution_has_all_that_is_committed(packages: Packages) -> None:
    files = (path for path in packages.source.rglob("*") if path.is_file())
    names = {path.relative_to(packages.source).as_posix() for path in files}
    assert names - {MADE_BY_THE_BUILD} == set(committed_files())
    assert "docker-compose.yml" in names


def test_wheel_has_two_names_and_every_file_of_their_packages(packages: Packages) -> None:
    names = {name for name in packages.wheel_names if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"weir", "weir_control_plane"}
    committed: dict[str, list[str]] = {}
    for name in committed_files():
        committed.setdefault(name.partition("/")[0], []).append(name)
    control_plane = {f"weir_control_plane/{name}" for part in PARTS for name in committed[part]}
    assert names == {*committed["weir"], *control_plane}


def test_description_of_the_package_has_no_link_into_the_checkout(packages: Packages) -> None:
    def targets(text: str) -> list[str]:
        inline = [
            token
            for block in MarkdownIt("commonmark").enable("table").parse(text)
            for token in block.children or ()
        ]
        named = [token.attrs.get("href") or token.attrs.get("src") for token in inline]
        return [str(target) for target in named if target]

    relative = [
        target
        for target in targets((ROOT / "README.md").read_text())
        if not target.startswith(("https:", "#"))
    ]
    described = packages.described()
    assert "docs/operating.md#deploy" in relative
    assert "docs/dashboard.png" in relative
    assert [target for target in targets(described) if not target.startswith("https:")] == []
    assert "deploying (`docs/operating.md`)" in described
    assert "](" not in described
    assert "docs/dashboard.png" not in described


def test_word_count_runs_from_the_wheel(installed: Installed) -> None:
    (installed.directory / "words.py").write_text(WORD_COUNT)
    output = installed.said("weir", "run", "words.py", "--master", "in-process")
    assert "('be', 2)" in output
    where = "import weir, importlib.util as u; print(weir.__file__, u.find_spec('controlplane'))"
    assert installed.said("python", "-P", "-c", where).split() == [
        str(next(installed.environment.glob("lib/python*/site-packages")) / "weir/__init__.py"),
        "None",
    ]


@pytest.fixture
def control_plane(installed: Installed) -> "Iterator[subprocess.Popen[str]]":
    """``weir up``, on a free port, with a file that says how it is reached."""
    process = installed.command("weir", "up", "--port", "0", "--access", "access.json")
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE_S)


def test_control_plane_runs_from_the_wheel(
    installed: Installed, control_plane: "subprocess.Popen[str]"
) -> None:
    access = installed.directory / "access.json"
    wait_until(lambda: access.exists() or control_plane.poll() is not None, "it is up", DEADLINE_S)
    assert control_plane.poll() is None, control_plane.communicate()[0]
    credentials = json.loads(access.read_text())
    url, token = credentials["url"], credentials["token"]

    def answer(path: str, **headers: str) -> str:
        request = urllib.request.Request(url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return str(response.read().decode())

    me = json.loads(answer("/api/v1/me", Authorization=f"Bearer {token}"))
    assert me["role"] == "operator"
    assert "Log in" in answer("/login/")
    assert answer("/static/frontend/weir.css")
    assert "Plotly" in answer("/static/plotly/plotly.min.js")
    data = installed.home / ".local" / "share" / "weir"
    assert (data / "logs" / "web.log").exists()
    listed = installed.said("weir", "manage", "help", "weir_token")
    assert "--role" in listed

    control_plane.send_signal(signal.SIGTERM)
    output, _ = control_plane.communicate(timeout=DEADLINE_S)
    assert control_plane.returncode == 0, output
    assert "Everything has ended." in output
    assert not (installed.directory / ".weir").exists()
