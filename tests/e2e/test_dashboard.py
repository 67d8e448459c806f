"""The dashboard in a browser, over a control plane that really runs jobs: see, act, be refused.

One job from its first checkpoint to its end, done by an operator on the pages alone; a viewer looks
over the shoulder, and the web process goes away in between. Its barriers come one after the other
because its mappers hold them, and the pages have to show each of them come.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.browser import Chromium, Window, chromium, needs_chromium
from tests.e2e.dashboard_pipeline import PARALLELISM, STEP_S, who_holds
from tests.e2e.plane import SETTLE_S, Plane, PlaneJob, wait_for
from weir.operators.sinks.parquet_sink import committed_files

PIPELINE = "tests.e2e.dashboard_pipeline"
STARTS_S = SETTLE_S  # A driver.
SOURCE = "readings"  # The head of the chain that holds the barriers.
EDGE = "[data-label='1']"  # From there to where they are waited for.


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    needs_chromium()
    with chromium() as launched:
        yield launched


def logged_in(window: Window, plane: Plane, name: str, password: str | None = None) -> None:
    window.log_in(name, password or (plane.stack.home / name).read_text().strip())


def submitted(plane: Plane, directory: Path) -> PlaneJob:
    """The watched pipeline, as a job."""
    output = directory / "output"
    operation = plane.client.post(
        "jobs",
        {
            "name": "watched",
            "pipeline": {"kind": "module", "module": PIPELINE},
            "parallelism": PARALLELISM,
            "parameters": {"output": str(output), "hold": str(directory / "hold")},
        },
    )
    return plane.job(operation["job"], output)


def watch_the_barriers(window: Window, hold: Path) -> tuple[list[str], list[str]]:
    """Take a checkpoint on the page and let its barriers go one by one.

    What the graph said meanwhile of the chain that sends them, and of the edge they travel on; each
    text once, in the order in which it came.
    """
    hold.touch()
    wait_for(lambda: len(who_holds(hold)) == PARALLELISM - 1, "the mappers hold")
    sent: list[str] = []
    arrived: list[str] = []

    def look() -> bool:
        for seen, text in (
            (sent, window.content(f"#graph [data-chain={SOURCE}] [data-part=says]")),
            (arrived, window.content(f"#graph {EDGE} [data-part=text]")),
        ):
            if text and seen[-1:] != [text]:
                seen.append(text)
        return any(text.startswith("1/") for text in sent)

    window.click("Take a checkpoint")
    window.sees("#action-result", "Checkpoint requested.")
    wait_for(look, "the first barrier", every_s=0.05)
    let_go = hold.with_name("let-go")
    let_go.write_text(str(time.time()))
    let_go.replace(hold)
    wait_for(
        lambda: look() is None or "Completed" in window.text("#progress"),
        "the end of the alignment",
        PARALLELISM * STEP_S + SETTLE_S,
        0.05,
    )
    hold.unlink()
    return sent, arrived


def counts(texts: list[str]) -> list[str]:
    """The parts ``n/m`` of what was said, in order."""
    words = [word for text in texts for word in text.split() if "/" in word]
    return list(dict.fromkeys(words))


def test_an_operator_watches_and_acts_a_viewer_looks(
    plane: Plane, browser: Chromium, tmp_path: Path
) -> None:
    job = submitted(plane, tmp_path)
    printed = plane.stack.run_once("weir_user", "vera", "--role", "viewer")
    (password,) = (line[9:] for line in printed.splitlines() if line.startswith("password "))
    with browser.window(plane.stack.url) as window:
        logged_in(window, plane, "operator")
        window.follow("watched")
        window.sees("h1", "Running", STARTS_S)

        sent, arrived = watch_the_barriers(window, tmp_path / "hold")
        steps = [f"{n}/{PARALLELISM}" for n in range(1, PARALLELISM)]
        assert [count for count in counts(sent) if count in steps] == steps, sent
        assert [count for count in counts(arrived) if count in steps] == steps, arrived
        (newest,) = job.checkpoints(status="completed")
        assert newest["alignment_ms"] >= (PARALLELISM - 1) * STEP_S * 1_000 - 500
        window.sees("#history", "1 checkpoint, none failed.")
        last = f"{SOURCE}-{PARALLELISM - 1}"  # Held the longest.
        window.sees("[aria-label=Verdict]", f"{last} was stuck in map (dashboard_pipeline.py:")

        look_into(job)
        a_viewer_only_looks(plane, browser, job, password)
        name_it_and_go_back(window, job)
        fork = fork_it(plane, window, job, tmp_path)
        lose_the_server(plane, window, job)
        for one in (fork, job):
            cancel(window, one)


def look_into(job: PlaneJob) -> None:
    """Stacks and records of running subtasks: from the API down to their workers, and back."""
    stacks = inspected(job, "hold", "stacks", PARALLELISM - 1)["flames"]
    held = sum(
        one["count"]
        for one in stacks["stacks"]
        if {"operator": "hold", "function": "Hold.map"}.items()
        <= max(one["frames"], key=lambda frame: frame["function"] == "Hold.map").items()
    )
    assert held > 20, stacks  # For seconds, at some twenty samples a second.
    assert stacks["waiting"] > stacks["work"] - held  # Otherwise it has little to do.
    (tapped,) = inspected(job, "rows", "records", 0)["subtasks"]
    assert tapped["columns"] == ["sensor", "position", "number"]
    assert tapped["records"]
    for record in tapped["records"]:
        sensor, position, number = map(int, record["values"])
        assert sensor == position % 64
        assert number > 0


def inspected(job: PlaneJob, operator: str, what: str, subtask: int) -> Any:
    """An inspection of a subtask, once it has answered."""
    path = f"jobs/{job.id}/operators/{operator}/{what}"
    asked = job.plane.client.post(path, {"subtask": subtask})
    wait_for(lambda: job.get(f"inspections/{asked['id']}")["is_over"], "an answer", SETTLE_S)
    shown = job.get(f"inspections/{asked['id']}")
    assert [one["cause"] for one in shown["subtasks"]] == [""]
    return shown


def a_viewer_only_looks(plane: Plane, browser: Chromium, job: PlaneJob, password: str) -> None:
    """No button but the one to leave, and its forms are refused when sent all the same."""
    send = """
    async (address) => {
      const body = new FormData(document.querySelector("form[action='/logout/']"));
      body.set("key", "a-viewer's");
      return (await fetch(address, { method: "POST", body })).status;
    }
    """
    with browser.window(plane.stack.url) as window:
        window.may_complain("status of 403")
        logged_in(window, plane, "vera", password)
        for page in ("", "savepoints/", "checkpoints/", "recovery/"):
            assert window.open(f"/jobs/{job.id}/{page}") == 200
            assert window.count("main form[method=post], main a[href*='/fork']") == 0, page
            assert not {"Take a checkpoint", "Take a savepoint", "Stop"} & set(window.buttons())
        for action in ("checkpoint", "savepoint", "stop", "rollback", "fork", "cancel"):
            assert window.evaluate(send, f"/jobs/{job.id}/{action}") == 403, action
            if action != "checkpoint":  # That has no page.
                assert window.open(f"/jobs/{job.id}/{action}") == 403, action
                window.open(f"/jobs/{job.id}/")
        asked = job.get("operations")["results"]
    assert {one["requested_by"] for one in asked} == {"operator"}


def done(window: Window) -> None:
    """The page of the operation says that it was done, without being loaded anew."""
    window.sees("#operation-title", "Done", SETTLE_S)


def name_it_and_go_back(window: Window, job: PlaneJob) -> None:
    """A savepoint by the page, and back to it by its page, preview and confirmation."""
    window.click("Take a savepoint")
    window.sees("h1", "Take a savepoint of watched?")
    window.fill("name", "before")
    window.click("Take a savepoint of watched")
    done(window)
    (savepoint,) = job.get("savepoints")["results"]
    window.open(f"/jobs/{job.id}/")
    take_a_checkpoint(window)
    wait_for(lambda: committed(job) == 3 * PARALLELISM, "the files of three checkpoints")

    window.open(f"/jobs/{job.id}/savepoints/")
    window.sees("main", "before")
    window.follow("Roll back to it")
    window.sees("h1", "Roll back watched?")
    window.click("Preview the rollback of watched")
    window.sees(".sentences", "read again")
    window.click("Roll watched back")
    done(window)
    (newest, *_) = job.get("attempts")["results"]
    assert newest["restored_checkpoint"] == savepoint["number"]
    assert len(job.get("drivers")["results"]) == 2
    assert committed(job) == 2 * PARALLELISM, "what came after the savepoint was not taken back"


def take_a_checkpoint(window: Window) -> None:
    """On the page of the job, and wait until it has completed."""
    before = window.text("#progress-title")
    window.click("Take a checkpoint")
    wait_for(lambda: window.text("#progress-title") != before, "another checkpoint")
    window.sees("#progress .pill", "Completed")


def committed(job: PlaneJob) -> int:
    """The number of committed output files: of each checkpoint, one of each subtask."""
    return len(committed_files(job.output))


def fork_it(plane: Plane, window: Window, job: PlaneJob, directory: Path) -> PlaneJob:
    """A second job from the savepoint, which runs beside the first."""
    window.open(f"/jobs/{job.id}/savepoints/")
    window.follow("Fork from it")
    window.sees("h1", "Fork watched?")
    window.fill("name", "trial")
    output = directory / "trial"
    window.fill("parameters", f"output={output}\nhold={directory / 'hold'}")
    window.click("Fork watched")
    done(window)
    window.do(lambda page: page.click("a[href^='/jobs/trial-']"))
    window.sees("h1", "trial Running", STARTS_S)
    fork = plane.job(window.evaluate("location.pathname.split('/')[2]"), output)
    assert fork.get()["origin"] == job.id
    return fork


def lose_the_server(plane: Plane, window: Window, job: PlaneJob) -> None:
    """The page says that it is old, and since when; it is live again once the server is."""
    window.may_complain(
        "ERR_CONNECTION_REFUSED", "status of 503", "ERR_INCOMPLETE_CHUNKED_ENCODING"
    )
    window.open(f"/jobs/{job.id}/")
    window.sees("h1", "watched Running", STARTS_S)
    web = plane.stack.process("web")
    web.stop()
    window.sees("#connection", "No connection to the control plane since")
    web.start()
    window.sees_nothing("#connection")
    take_a_checkpoint(window)
    assert not window.was_reloaded()


def cancel(window: Window, job: PlaneJob) -> None:
    """The button is behind others, and asks once more."""
    window.open(f"/jobs/{job.id}/")
    window.do(lambda page: page.click("#more-actions summary"))
    window.click("Cancel job")
    window.sees("#cancel-dialog", "Its subtasks stop at once")
    window.click("Cancel the job")
    window.sees("h1", "Cancelled")
    assert not window.was_reloaded()
    job.await_status("canceled")
