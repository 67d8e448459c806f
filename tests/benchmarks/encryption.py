"""The cost of encryption between slots: bytes per CPU-second, and the latency of records."""

import threading
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from tests.benchmarks.jobs import spark
from tests.benchmarks.latency import latency_at
from tests.benchmarks.report import Row, readable, speed_row
from tests.networks import make_network, worker_security
from weir.channels.authority import Network
from weir.channels.io_thread import IoThread
from weir.channels.tcp import TcpTransport
from weir.common.batch import Batch
from weir.config import ChannelConfig, NetworkSecurity
from weir.graph.physical import Channel
from weir.ids import AttemptNumber, ChannelId, OperatorId, SubtaskId
from weir.protocol.elements import Element, Records

BATCH_BYTES = 1 << 20
UNDER_WAY = 8  # Batches, as a channel's credit would bound them.
DEADLINE_S = 300.0


def encryption(quick: bool) -> list[Row]:
    """Encrypted connections between slots against plain ones: CPU time and latency."""
    rounds, batches = (3, 200) if quick else (9, 1_000)
    pairs = []
    for _ in range(rounds):
        encrypted, plain = (_bytes_per_cpu_second(kind, batches) for kind in ("encrypted", "plain"))
        pairs.append((encrypted, plain))
    rows = [
        speed_row(
            "bytes per CPU-second between two slots, encrypted",
            "B/s",
            pairs,
            against="plain",
            at_least=0.4,
            note="columns in batches of 1 MiB over loopback; both ends' CPU, checksums included",
        )
    ]
    return [*rows, _latency_row(quick)]


def _bytes_per_cpu_second(kind: str, batches: int) -> float:
    network = make_network(kind)
    columns = pa.record_batch({"v": np.random.default_rng(1).integers(0, 2**62, BATCH_BYTES // 8)})
    batch = Batch.of_columns(columns)
    received = threading.Semaphore(0)
    with ExitStack() as stack:
        left, right = (_transport(stack, network, slot, received) for slot in (0, 1))
        for each in (left, right):
            each.connect([left.address, right.address])
        left.send(ChannelId(0), Records(batch, len(batch), batch.size))
        assert received.acquire(timeout=DEADLINE_S)  # The handshake is no part of it.
        started = time.process_time()
        for number in range(batches):
            if number >= UNDER_WAY:
                assert received.acquire(timeout=DEADLINE_S)
            left.send(ChannelId(0), Records(batch, len(batch), batch.size))
        for _ in range(min(batches, UNDER_WAY)):
            assert received.acquire(timeout=DEADLINE_S)
        return batches * BATCH_BYTES / (time.process_time() - started)


def _transport(
    stack: ExitStack, network: Network, slot_index: int, received: threading.Semaphore
) -> TcpTransport:
    channel = Channel(
        id=ChannelId(0),
        edge_index=0,
        sender=SubtaskId(OperatorId("a"), 0),
        receiver=SubtaskId(OperatorId("b"), 1),
        sender_index=0,
        receiver_index=0,
    )

    def on_element(channel: ChannelId, element: Element) -> None:
        received.release()

    def ignore(*_: Any) -> None:
        """Neither credit nor the end of a connection is measured."""

    io = IoThread(f"io-{slot_index}", on_crash=ignore)
    transport = TcpTransport(
        io,
        [channel],
        attempt=AttemptNumber(1),
        slot_index=slot_index,
        security=worker_security(network, 1, slot_index),
        host="127.0.0.1",
        frame_bytes_max=1 << 20,
        on_element=on_element,
        on_credit=ignore,
        on_broken=ignore,
    )
    io.start()
    stack.callback(io.stop)
    stack.callback(transport.close)
    return transport


def _latency_row(quick: bool) -> Row:
    seconds, rounds = (4.0, 1) if quick else (15.0, 3)
    encrypted = ChannelConfig(security=NetworkSecurity.TLS)
    plain = ChannelConfig(security=NetworkSecurity.PLAIN)
    with spark():
        full, _ = latency_at(seconds / 2, None, None, plain)
        taken = [latency_at(seconds, full / 2, 1_000, encrypted)[1] for _ in range(rounds)]
        without = [latency_at(seconds, full / 2, 1_000, plain)[1] for _ in range(rounds)]
    p99, base = (median(p for _, p in times) for times in (taken, without))
    medians = [median(p for p, _ in times) for times in (taken, without)]
    return Row(
        what="latency at half load, encrypted: p99",
        unit="ms",
        weir=p99,
        baseline=base,
        ratio=p99 / base,
        against="plain",
        target="ratio ≤ 1.3",
        met=p99 <= 1.3 * base,
        note=(
            f"checkpoints every 1 s; {readable(full / 2, 'rows/s')}; median latency "
            f"{medians[0]:.1f} ms, plain {medians[1]:.1f} ms"
        ),
    )
