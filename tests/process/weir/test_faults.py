"""Fault points: nothing unless armed, once over all processes, and provably."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir import fault_points
from weir.fault_points import Fault, arm, from_environment, reach, to_environment

REACH_TWICE = (
    "from weir.fault_points import reach\n"
    "for id in (1, 2):\n"
    "    reach('here', id=id)\n"
    "    print('passed', id, flush=True)\n"
)


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm([])


def run(*armed: Fault) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {fault_points.VARIABLE: to_environment(armed)}
    command = [sys.executable, "-c", REACH_TWICE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def marker(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_an_unarmed_point_does_nothing() -> None:
    reach("anywhere", subtask="map-0")


def test_raise_fires_at_the_nth_matching_hit_only() -> None:
    arm([Fault("here", "raise", match={"subtask": "map-1"}, after=2)])
    reach("here", subtask="map-1")
    reach("here", subtask="map-0")
    reach("elsewhere", subtask="map-1")
    with pytest.raises(RuntimeError, match="here"):
        reach("here", subtask="map-1")
    reach("here", subtask="map-1")


def test_a_match_on_what_the_point_does_not_say_never_fires() -> None:
    arm([Fault("here", "raise", match={"subtask": None})])
    reach("here", id=1)


def test_numbers_match_however_json_carried_them() -> None:
    arm(from_environment('[{"point": "here", "action": "raise", "match": {"id": "3"}}]'))
    with pytest.raises(RuntimeError):
        reach("here", id=3)


def test_kill_ends_the_process_and_leaves_a_marker(tmp_path: Path) -> None:
    proof = tmp_path / "fired"
    ended = run(Fault("here", "kill", match={"id": 2}, once_file=str(proof)))
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "passed 1\n"
    assert marker(proof)["point"] == "here"
    assert marker(proof)["where"] == {"id": "2"}
    assert marker(proof)["pid"] != os.getpid()


def test_a_fault_fires_once_over_all_processes(tmp_path: Path) -> None:
    fault = Fault("here", "kill", once_file=str(tmp_path / "fired"))
    assert run(fault).returncode == -signal.SIGKILL
    restarted = run(fault)
    assert (restarted.returncode, restarted.stdout) == (0, "passed 1\npassed 2\n")


def test_stop_leaves_the_process_stopped_until_it_is_continued(tmp_path: Path) -> None:
    fault = Fault("here", "stop", once_file=str(tmp_path / "fired"))
    environment = os.environ | {fault_points.VARIABLE: to_environment([fault])}
    process = subprocess.Popen(
        [sys.executable, "-c", REACH_TWICE], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert marker(tmp_path / "fired")["pid"] == process.pid
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=120)[0] == "passed 1\npassed 2\n"
    finally:
        process.kill()
        process.wait()


def test_hang_stays_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fault_points.time, "sleep", slept.append)
    arm([Fault("here", "hang")])
    reach("here")
    assert slept == [fault_points.HANG_SECONDS]


@pytest.mark.parametrize(
    "value",
    [
        '{"point": "p", "action": "kill"}',
        '[{"point": "p"}]',
        '[{"point": "p", "action": "explode"}]',
        '[{"point": "p", "action": "kill", "when": 3}]',
        '[{"point": "p", "action": "kill", "after": 0}]',
    ],
)
def test_a_value_that_is_no_list_of_faults_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"WEIR_FAULTS|fault at p"):
        from_environment(value)


def test_faults_survive_the_environment() -> None:
    armed = [Fault("a", "kill", {"id": 3}, 2, "/tmp/x"), Fault("b", "hang")]
    assert from_environment(to_environment(armed)) == armed
