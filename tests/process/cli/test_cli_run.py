"""``weir run`` up to the point where a job would start, and the parts around it."""

import json
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path
from textwrap import dedent
from typing import TextIO, cast

import pytest

from tests.forks import run_python
from weir.cli.arguments import duration_ms, key_value, parser, positive
from weir.cli.event_log import EventLog
from weir.common import tracebacks
from weir.common.tracebacks import users_frames, users_traceback, without_own_frames
from weir.errors import ConfigError, GraphError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.events import AttemptStarted, JobEvent, Notice
from weir.protocol.wire import decode_message


def weir(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python("weir", *arguments, cwd=cwd)


def script(directory: Path, text: str, name: str = "pipeline.py") -> Path:
    file = directory / name
    file.write_text(dedent(text))
    return file


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ([], "COMMAND"),
        (["run"], "pipeline"),
        (["run", "p.py", "--interval", "soon"], "'soon' is no duration; give for example 500ms"),
        (["run", "p.py", "--parallelism", "0"], "'0' is no whole number of at least 1"),
        (["run", "p.py", "--mode", "maybe"], "exactly-once"),
        (["run", "p.py", "--arg", "output"], "'output' is not of the form key=value"),
        (["inspect", "x", "--limit", "-1"], "--limit"),
    ],
)
def test_wrong_arguments_are_refused_with_advice(
    arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parser().parse_args(arguments)
    assert raised.value.code == 2
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["run", "savepoint", "stop", "preview", "checkpoints", "inspect", "compare", "compare-modes"],
)
def test_help_shows_examples_and_exit_codes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parser().parse_args([command, "--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  weir {command} " in shown
    assert "exit codes:\n  0 " in shown


def test_a_machine_without_java_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    pipeline = script(
        tmp_path,
        """
        from weir.datastream import StreamExecutionEnvironment

        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection([1, 2, 3]).print()
        env.execute("without")
        """,
    )
    ran = weir("run", pipeline, cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == (
        f"weir: Spark's JVM ended before it was ready: JAVA_HOME is {tmp_path}/none, which has no "
        "bin/java; install Java 17 or newer, or let JAVA_HOME point to it; --master in-process "
        "needs none"
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1s", 1_000), ("500ms", 500), ("1000", 1_000), ("2min", 120_000), ("1.5s", 1_500)],
)
def test_durations_have_a_unit_or_are_milliseconds(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 day", "1e3"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="no duration"):
        duration_ms(text)


def test_values_may_hold_equals_signs_and_be_empty() -> None:
    assert key_value("query=a=b") == ("query", "a=b")
    assert key_value("empty=") == ("empty", "")
    with pytest.raises(ArgumentTypeError):
        key_value("=x")


def test_numbers_are_whole_and_at_least_one() -> None:
    assert positive("12") == 12
    for text in ("0", "-1", "1.5", "²"):
        with pytest.raises(ArgumentTypeError):
            positive(text)


def test_a_pipeline_that_raises_shows_the_users_frames_only(tmp_path: Path) -> None:
    file = script(
        tmp_path,
        """
        def build():
            raise ValueError("no input given")

        build()
        """,
    )
    done = weir("run", file, cwd=tmp_path)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "^^^" not in line]
    assert lines == [
        "Traceback (most recent call last):",
        f'  File "{file}", line 5, in <module>',
        "    build()",
        f'  File "{file}", line 3, in build',
        '    raise ValueError("no input given")',
        "ValueError: no input given",
        "weir: the pipeline raised this before its job started; nothing ran",
    ]


def test_a_pipeline_that_cannot_be_imported_says_which_module_is_missing(tmp_path: Path) -> None:
    file = script(tmp_path, "import no_such_module")
    done = weir("run", file, cwd=tmp_path)
    assert done.returncode == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
    assert "nothing ran" in done.stderr
    assert "weir/cli" not in done.stderr


def test_an_error_of_weirs_names_the_line_that_caused_it(tmp_path: Path) -> None:
    file = script(
        tmp_path,
        """
        from weir.datastream import StreamExecutionEnvironment

        StreamExecutionEnvironment.get_execution_environment().execute("empty")
        """,
    )
    done = weir("run", file, cwd=tmp_path)
    assert done.returncode == 2
    assert f'File "{file}", line 4' in done.stderr
    assert "weir: the pipeline has no source" in done.stderr
    assert "Traceback" not in done.stderr
    assert "weir/datastream" not in done.stderr


def test_a_script_runs_as_python_would_run_it(tmp_path: Path) -> None:
    """Beside its own modules, with itself alone in argv, and its exit code counts."""
    below = tmp_path / "below"
    below.mkdir()
    script(below, "ANSWER = 42", "beside.py")
    script(
        below,
        """
        import sys
        import beside

        print(__name__, sys.argv, sys.path[0])
        sys.exit(beside.ANSWER)
        """,
    )
    done = weir("run", "below/pipeline.py", "--parallelism", "2", cwd=tmp_path)
    assert done.returncode == 42
    assert done.stdout == f"__main__ ['below/pipeline.py'] {below}\n"


def test_a_module_runs_by_its_name_from_the_current_directory(tmp_path: Path) -> None:
    package = tmp_path / "pipelines"
    package.mkdir()
    script(package, "", "__init__.py")
    script(
        package,
        """
        import sys
        from weir.datastream import StreamExecutionEnvironment

        env = StreamExecutionEnvironment.get_execution_environment()
        print(__name__, env.get_job_parameter("to", "nowhere"))
        sys.exit(0)
        """,
        "daily.py",
    )
    done = weir("run", "pipelines.daily", "--arg", "to=here", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__ here\n")


def test_a_script_and_a_module_get_their_own_arguments(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.argv[1:]); sys.exit(0)")
    for name in ("pipeline.py", "pipeline"):
        given = ("--input", "x", "--parallelism", "2", "--", "--parallelism", "7")
        done = weir("run", name, *given, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (
            0,
            "['--input', 'x', '--parallelism', '7']\n",
        )


@pytest.mark.parametrize("name", ["nosuch.py", "nosuch", "no.such.module", "-"])
def test_a_pipeline_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    done = weir("run", "--", name, cwd=tmp_path)
    assert done.returncode == 2
    assert f"there is no file {name}, nor a module of that name" in done.stderr


def test_a_script_that_runs_no_job_is_told_so(tmp_path: Path) -> None:
    done = weir("run", script(tmp_path, "x = 1"), cwd=tmp_path)
    assert done.returncode == 2
    assert "ended without running a job; it has to call env.execute()" in done.stderr


def test_a_path_that_names_no_checkpoint_is_refused_before_the_script_runs(
    tmp_path: Path,
) -> None:
    file = script(tmp_path, "print('ran')")
    done = weir("run", file, "--restore", "checkpoints", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no checkpoint or savepoint at {tmp_path}/checkpoints" in done.stderr


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--keep-output"], "--keep-output needs --restore"),
        (["--as-new-job"], "--as-new-job needs --restore with the URI"),
        (["--claim", "--restore", "latest"], "--claim needs --restore with the URI"),
        (["--claim", "--as-new-job", "--restore", "j/chk-1"], "leave one of them out"),
        (["--restore", "j/chk-1"], "there is no checkpoint 1 of job j"),
    ],
)
def test_going_back_needs_something_to_go_back_to(
    tmp_path: Path, options: list[str], advice: str
) -> None:
    file = script(tmp_path, "print('ran')")
    done = weir("run", file, *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert advice in done.stderr


def test_every_event_becomes_a_line_that_decodes_to_it(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    events: list[JobEvent] = [
        AttemptStarted(1, AttemptNumber(2), CheckpointId(7), "a\nnote"),
        Notice(2, "Überblick"),
    ]
    log = EventLog(str(file))
    for event in events:
        log.on_event(event)
    assert [decode_message(json.loads(line)) for line in file.read_text().splitlines()] == events
    log.close()
    log.on_event(events[0])
    assert len(file.read_text().splitlines()) == 2


def test_an_event_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        EventLog(str(tmp_path / "missing" / "events.jsonl"))


class FullDisk:
    """A file on a disk without room."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_costs_the_log_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"))
    log.close()
    log._file = cast(TextIO, FullDisk())
    log.on_event(Notice(1, "one"))
    log.on_event(Notice(2, "two"))
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}/events.jsonl: [Errno 28] No space left on device; the event log ends here"
    ]


def test_a_cause_from_a_slot_keeps_the_users_frames_only() -> None:
    cause = dedent(
        """\
        sum-0 failed
        Traceback (most recent call last):
          File "/srv/env/lib/python3.11/site-packages/weir/operators/stateless.py", line 9, in call
            made = self.apply(batch)
                   ^^^^^^^^^^^^^^^^^
          File "/srv/me/job.py", line 4, in bad
            json.loads(line)
          File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
            return _default_decoder.decode(s)
        ValueError: three

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "/srv/env/lib/python3.11/site-packages/weir/worker/worker.py", line 1, in run
            step()
          File "/usr/lib/python3.11/dataclasses.py", line 2, in replace
            return cls()
        weir.errors.SubtaskError: 'Map' failed on the record 3
        """
    )
    assert without_own_frames(cause) == dedent(
        """\
        sum-0 failed
        Traceback (most recent call last):
          File "/srv/me/job.py", line 4, in bad
            json.loads(line)
          File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
            return _default_decoder.decode(s)
        ValueError: three

        The above exception was the direct cause of the following exception:

        weir.errors.SubtaskError: 'Map' failed on the record 3
        """
    )


def test_text_without_a_traceback_stays_as_it_is() -> None:
    text = 'the slot said:\n    nothing\nFile "x", line 1\n'
    assert without_own_frames(text) == text


def test_frames_of_the_pipeline_are_kept_wherever_it_lies() -> None:
    """A directory called weir, and the examples that come with Weir, are the user's."""
    for file in ("/srv/me/weir/job.py", "/env/site-packages/weir/examples/flights.py"):
        text = (
            f'Traceback (most recent call last):\n  File "{file}", line 4, in bad\n    x()\nE: 1\n'
        )
        assert without_own_frames(text) == text


def test_frames_of_every_package_of_weir_are_left_out() -> None:
    root = Path(tracebacks.__file__).parents[1]
    files = [path.relative_to(root.parent).as_posix() for path in root.rglob("*.py")]
    frames = "".join(
        f'  File "/srv/{file}", line 4, in run\n    x()\n'
        for file in files
        if not file.startswith("weir/examples/")
    )
    assert without_own_frames(f"Traceback (most recent call last):\n{frames}E: 1\n") == "E: 1\n"


def test_an_exception_keeps_its_causes() -> None:
    def inner() -> None:
        raise KeyError("inner")

    try:
        try:
            inner()
        except KeyError as cause:
            raise GraphError("outer") from cause
    except GraphError as error:
        text, frames = users_traceback(error), users_frames(error)
    assert "in inner" in text
    assert "KeyError: 'inner'" in text
    assert text.endswith("weir.errors.GraphError: outer\n")
    assert frames.count("  File ") == 1
    assert "raise GraphError" in frames


def test_listing_checkpoints_does_not_load_spark(tmp_path: Path) -> None:
    code = (
        "import sys; from weir.cli import checkpoints, inspect; import weir.__main__; "
        "print([m for m in ('pyspark', 'weir.spark') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout == "[]\n"
