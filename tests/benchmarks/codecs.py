"""The cost of the codecs of acknowledgements, which the control plane reads by thousands.

Processor time, the least of several turns: what else the machine does is not measured.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace

from tests.benchmarks.report import Row, limit_row, speed_row
from tests.builders import ack
from weir.protocol import wire
from weir.protocol.driver_messages import EventBatch
from weir.protocol.messages import Acknowledged, GateAlignment, SnapshotMetrics
from weir.wire import batches

BATCH = 500
ACKNOWLEDGEMENT_MS_MAX = 0.5
BATCH_RATIO_MIN = 2.0


def codecs(quick: bool) -> list[Row]:
    """Processor time to read one acknowledgement, and to read and write batches of them."""
    turns = 3 if quick else 15
    one = json.dumps(wire.encode(_acknowledged())).encode()
    sent = EventBatch(1, (_acknowledged(),) * BATCH)
    text = json.dumps(wire.to_wire(sent)).encode()
    assert batches.decode_batch(text) == sent
    parsed, read = _turns(
        turns, lambda: [json.loads(one) for _ in range(BATCH)],
        lambda: [wire.decode(json.loads(one)) for _ in range(BATCH)],
    )  # fmt: skip
    plain_read, quick_read = _turns(
        turns, lambda: wire.from_wire(EventBatch, json.loads(text)),
        lambda: batches.decode_batch(text),
    )  # fmt: skip
    plain_write, quick_write = _turns(
        turns, lambda: json.dumps(wire.to_wire(sent)),
        lambda: batches.encode_batch(1, map(batches.encode_event, sent.events)),
    )  # fmt: skip
    return [
        limit_row(
            "an acknowledgement is read",
            "ms",
            min(read) / BATCH * 1000,
            at_most=ACKNOWLEDGEMENT_MS_MAX,
            baseline=min(parsed) / BATCH * 1000,
            against="its JSON alone",
        ),
        _batch_row("read", quick_read, plain_read),
        _batch_row("written", quick_write, plain_write),
    ]


def _batch_row(done: str, quicker: list[float], plain: list[float]) -> Row:
    speeds = [(BATCH / weir, BATCH / base) for weir, base in zip(quicker, plain, strict=True)]
    return speed_row(
        f"a batch of acknowledgements is {done}",
        "rows/s",
        speeds,
        against="the codec that goes by type hints",
        at_least=BATCH_RATIO_MIN,
    )


def _acknowledged() -> Acknowledged:
    gate = GateAlignment(
        0, ("a-0", "a-1", "a-2", "a-3"), (0.0, 1.5, None, 2.5), (2.5, 1.0, 0.0, 0.0), (1, 2, 3, 4)
    )
    message = ack()
    head = replace(message.operators[0], metrics=SnapshotMetrics(sync_ms=1.25, gates=(gate,)))
    return replace(message, operators=(head, *message.operators[1:]))


def _turns(turns: int, *calls: Callable[[], object]) -> list[list[float]]:
    """Seconds of processor time that each call took, one after the other in each turn."""
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, seconds in zip(calls, took, strict=True):
            began = time.process_time()
            call()
            seconds.append(time.process_time() - began)
    return took
