"""Masked output of real processes: all writers, each target, and the last words of a killed one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import TIMEOUT_S

VALUE = "correct horse battery staple"
BEGIN = f"""
import os, signal, subprocess, sys, time
from weir.secrets.masked_output import masked_output
from weir.secrets.masking import Masker
with masked_output(Masker([{VALUE!r}])):
"""


def run(body: str, **options: object) -> "subprocess.CompletedProcess[str]":
    """A process that runs a body with its output masked."""
    code = BEGIN + "".join(f"    {line}\n" for line in body.splitlines())
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        **options,  # type: ignore[call-overload]
    )


def test_each_writer_of_a_process_is_masked_in_its_own_place() -> None:
    done = run(
        f"""print("to out", {VALUE!r})
print("to err", {VALUE!r}, file=sys.stderr)
os.write(1, b"by the system {VALUE}\\n")
subprocess.run(["sh", "-c", "echo by a child '{VALUE}' >&2"])"""
    )
    assert sorted(done.stdout.splitlines()) == ["by the system ***", "to out ***"]
    assert sorted(done.stderr.splitlines()) == ["by a child ***", "to err ***"]
    assert done.returncode == 0


def test_output_and_errors_into_one_file_keep_their_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    body = "\n".join(f"os.write({1 + n % 2}, b'line {n} {VALUE}\\n')" for n in range(50))
    code = BEGIN + "".join(f"    {line}\n" for line in body.splitlines())
    with log.open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, check=True)
    assert log.read_text().splitlines() == [f"line {n} ***" for n in range(50)]


def test_a_value_written_in_two_pieces_is_masked() -> None:
    done = run(
        f"os.write(1, b'it is {VALUE[:9]}'); time.sleep(0.3); os.write(1, b'{VALUE[9:]} said')"
    )
    assert done.stdout == "it is *** said"


def test_an_error_that_ends_the_process_is_masked() -> None:
    done = run(
        f"try:\n    raise ValueError('refuses {VALUE}')\nexcept ValueError:\n    import "
        "traceback; traceback.print_exc()"
    )
    assert "ValueError: refuses ***" in done.stderr
    assert VALUE not in done.stdout


def test_the_last_words_of_a_killed_process_come_through() -> None:
    done = run(f"os.write(2, b'last words: {VALUE}\\n'); os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == "last words: ***\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_session_does_not_cut_the_output_off(number: signal.Signals) -> None:
    """A launcher sends SIGTERM to all processes of a driver, which then says what it does."""
    body = f"""signal.signal({int(number)}, lambda *_: None)
os.killpg(0, {int(number)})
print("after the signal", {VALUE!r})"""
    done = run(body, start_new_session=True)
    assert done.stdout == "after the signal ***\n"


def test_a_writer_that_stays_is_not_waited_for_and_is_masked_on() -> None:
    """A child of the pipeline that outlives it keeps the pipe open."""
    code = BEGIN + f"    subprocess.Popen(['sh', '-c', 'sleep 2; echo late {VALUE}'])\n"
    code = code.replace("with masked", "import weir.secrets.masked_output as m\nwith masked")
    code = code.replace("with masked", "m.MaskedPipe.close.__defaults__ = (0.2,)\nwith masked")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.wait(TIMEOUT_S) == 0
    assert process.stdout is not None
    with process.stdout as output:
        assert output.read() == b"late ***\n"  # The end comes with that of the masking process.


def test_a_descriptor_that_became_a_copy_of_a_masked_one_is_given_back_as_well() -> None:
    """As of a command whose standard output belongs to its answer alone."""
    code = BEGIN.replace("]))", "]), descriptors=(2,))")
    code += (
        f"    os.write(1, b'answer {VALUE}'); os.dup2(2, 1); print('said', {VALUE!r}, flush=True)"
    )
    code += f"\nos.write(1, b'after {VALUE}')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert done.stdout == f"answer {VALUE}"
    assert done.stderr == f"said ***\nafter {VALUE}"
