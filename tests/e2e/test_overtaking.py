"""Unaligned checkpoints under the control plane: seen in rows and pages, and restored."""

import os
import re
import signal
from html import unescape
from pathlib import Path
from typing import Any

from tests.e2e.overtaking import TIMEOUT_MS
from tests.e2e.plane import Plane, PlaneJob, wait_for
from tests.e2e.test_pages import Visitor
from tests.spark.harness import Count, count, rows_of, wrong_numbers

RECORDS = 15_000  # Of each source: two minutes of work, before the test hurries.
CHAIN = "numbering"


def submit(plane: Plane, output: Path) -> PlaneJob:
    parameters = {"output": str(output), "records": str(RECORDS)}
    submission = {
        "name": "overtaking",
        "pipeline": {"kind": "module", "module": "tests.e2e.overtaking"},
        "parallelism": 2,
        "parameters": parameters,
    }
    return plane.job(plane.client.post("jobs", submission)["job"], output)


def overtaken(job: PlaneJob, beyond: int = 0) -> dict[str, Any]:
    """A completed checkpoint with persisted data in flight, the next one beyond a number."""

    def listed() -> dict[str, Any] | None:
        completed = job.checkpoints(status="completed")
        fit = [one for one in completed if one["number"] > beyond and one["in_flight_bytes"]]
        return fit[-1] if fit else None

    shown: dict[str, Any] = wait_for(listed, "a checkpoint with data in flight")
    return shown


def text(page: str) -> str:
    """The words of a page, without its marks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_data_in_flight_is_shown_and_restored(plane: Plane, tmp_path: Path) -> None:
    job = submit(plane, tmp_path / "output")
    seen = overtaken(job)
    at = f"checkpoints/{seen['number']}"
    assert seen["alignment"] == "timed_out"
    assert 0 < seen["switched_count"] <= seen["unaligned_count"] <= seen["subtask_count"]
    assert seen["switched_ms"] >= TIMEOUT_MS - 1, "times are rounded to milliseconds"

    acks = job.get(f"{at}/acks", page_size=200)["results"]
    heads = [ack for ack in acks if ack["operator"] == ack["chain"] == CHAIN]
    unaligned = [ack for ack in heads if ack["unaligned"]]
    assert [ack for ack in heads if ack["in_flight_bytes"]] == unaligned != []
    assert {ack["switched"] for ack in unaligned} <= {"input", "output", "upstream"}
    assert all(ack["switched_ms"] >= seen["switched_ms"] for ack in unaligned)
    assert sum(ack["in_flight_bytes"] for ack in acks) == seen["in_flight_bytes"]
    channels = job.get(f"{at}/channels", operator=CHAIN, page_size=200)["results"]
    under_way = {channel["index"] for channel in channels if channel["in_flight_bytes"]}
    kept = {ack["index"] for ack in heads if ack["in_flight_bytes"] > ack["in_flight_output_bytes"]}
    assert under_way == kept != set()

    visitor = Visitor(plane)
    page = text(visitor.page(f"/jobs/{job.id}/{at}/"))
    assert re.search(r"Alignment unaligned after \d+ ms Persisted in-flight data [\d.]+ \w?B", page)
    assert re.search(rf"{CHAIN}-{unaligned[0]['index']} unaligned after \d+ ms", page)
    part = text(visitor.page(f"/jobs/{job.id}/{at}/alignment?by=in_flight"))
    assert "Persisted in-flight data" in part
    listed = text(visitor.page(f"/jobs/{job.id}/checkpoints/"))
    assert re.search(r"Completed unaligned after \d+ ms", listed)

    before = len(job.get("attempts")["results"])
    os.kill(job.worker_pid, signal.SIGKILL)

    def restored() -> int:
        newest, *others = job.get("attempts")["results"]
        return newest["restored_checkpoint"] if len(others) >= before else 0

    number = wait_for(restored, "another attempt that restored a checkpoint")
    assert job.get(f"checkpoints/{number}")["in_flight_bytes"] > 0
    overtaken(job, beyond=number)
    job.hurry_to_the_end()
    rows = rows_of(job.output)
    assert count(rows, RECORDS) == Count(lost=0, duplicated=0, out_of_order=0)
    assert not wrong_numbers(rows)
