"""The delay of a trigger from the control plane to a source of a real job on Spark."""

import tempfile
import uuid
from pathlib import Path
from statistics import median, quantiles

from tests.benchmarks.report import Row, limit_row
from weir.datastream.execution import ExecutionOptions, overriding
from weir.protocol.events import JobEvent
from weir.protocol.messages import Acknowledged
from weir.spark import submit

TARGET_P50_MS = 30.0
RATE = 400.0


INTERVAL_S = 0.3  # The pipeline's own.


def triggers(quick: bool) -> list[Row]:
    """Milliseconds from a checkpoint's trigger to the barrier in a source, through everything."""
    wanted = 20 if quick else 100
    inside = _in_the_driver(wanted)
    through = _through_the_control_plane(wanted)
    cuts = quantiles(through, n=100)
    return [
        limit_row(
            "a trigger reaches a source, p50",
            "ms",
            cuts[49],
            at_most=TARGET_P50_MS,
            baseline=median(inside),
            against="decided in the driver itself",
            note=f"p99 {cuts[98]:.0f} ms of {len(through)}: row, outbox, long poll, driver, slot",
        )
    ]


def _through_the_control_plane(wanted: int) -> list[float]:
    from tests.e2e.plane import Plane
    from tests.services import reachable_directory

    with reachable_directory("weir-bench-") as home, tempfile.TemporaryDirectory() as directory:
        plane = Plane.start(home / "home", {"WEIR_LOG_LEVEL": "WARNING"})
        try:
            job = plane.submit(Path(directory), records=10_000_000, rate=RATE)
            newest = job.await_completed(beyond=wanted + 1, timeout_s=300, every_s=2.0)
            sources = {op["uid"] for op in job.get("graph")["operators"] if op["is_source"]}
            delays = [
                float(ack["start_delay_ms"])
                for number in range(2, newest + 1)
                for ack in job.get(f"checkpoints/{number}/acks")["results"]
                if ack["operator"] in sources
            ]
            plane.client.post(f"jobs/{job.id}/cancel", key=str(uuid.uuid4()))
            job.await_status("canceled")
        finally:
            plane.stack.stop()
            plane.stack.postgres.remove()
    return delays


def _in_the_driver(wanted: int) -> list[float]:
    from tests.e2e import pipeline

    sources: set[str] = set()
    delays: list[float] = []

    def on_start(job: submit.JobStarting) -> None:
        sources.update(op.uid for op in job.graph.operators if op.is_source)

    def on_event(event: JobEvent) -> None:
        if isinstance(event, Acknowledged) and event.checkpoint_id > 1:
            delays.extend(
                part.metrics.start_delay_ms
                for part in event.operators
                if part.subtask.operator in sources
            )

    submit.announce(on_start)
    submit.listen(on_event)
    with tempfile.TemporaryDirectory() as directory:
        options = ExecutionOptions(
            parallelism=2,
            storage=str(Path(directory, "checkpoints")),
            parameters={
                "output": str(Path(directory, "output")),
                "records": str(int(wanted * INTERVAL_S * RATE)),
                "rate": str(RATE),
            },
        )
        try:
            with overriding(options):
                pipeline.main()
        finally:
            submit.unlisten(on_event)
            submit.unannounce(on_start)
    return delays
