"""The schedule of a round: its job's settings and its faults, drawn from a seed; pure.

The same seed, place and kinds give the same schedule in every run and on every machine.
"""

import random
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

FAULTS = 4  # Of a round, unless told otherwise.
DELAY_MAX_MS = 900  # About three intervals of checkpoints: any moment of one may be hit.
PARALLELISM = 2  # Until a rescale.
PARALLELISM_MAX = 3
OVERLAPS = 0.25  # The share of faults that do not wait for the recovery from the one before.


class Where(StrEnum):
    """The place in which the rounds' jobs run."""

    SPARK = "spark"
    PLANE = "control-plane"


class Act(StrEnum):
    """The thing that is done to a process, to the machine, or by an operator to the job."""

    KILL = "kill"
    STOP = "stop"  # SIGSTOP, and SIGCONT some seconds later.
    CUT = "cut"  # All TCP connections of the process, as by the network.
    INTERRUPT = "interrupt"  # Ctrl-C: the job is cancelled, and its checkpoints are retained.
    FULL_DISK = "full disk"
    REFUSE = "refused storage"
    CLOCK = "clock jump"  # The processes that start from now on have another wall clock.
    LOAD = "load"
    # Operations, which are under way while the fault after them strikes.
    SAVEPOINT = "savepoint"
    ROLLBACK = "rollback"  # To the oldest retained checkpoint.
    RESCALE = "rescale"
    UPGRADE = "upgrade"  # To the same pipeline.
    RESTART = "restart"


OPERATIONS = (Act.SAVEPOINT, Act.ROLLBACK, Act.RESCALE, Act.UPGRADE, Act.RESTART)

IN_JOB = ("worker", "template", "slot", "driver", "jvm")
SERVICES = ("web", "worker service", "launcher", "beat", "redis", "postgres")


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A kind of fault: an act, and the process that it is done to, if any."""

    act: Act
    target: str = ""

    def __str__(self) -> str:
        return f"{self.act} {self.target}".strip()


_OF_JOBS = (
    *(Kind(Act.KILL, target) for target in IN_JOB),
    *(Kind(Act.STOP, target) for target in ("worker", "slot", "driver", "jvm")),
    *(Kind(Act.CUT, target) for target in ("worker", "slot", "driver")),
    *(Kind(Act.CLOCK, target) for target in ("worker", "driver")),
    Kind(Act.FULL_DISK),
    Kind(Act.REFUSE),
    Kind(Act.LOAD),
)
KINDS: dict[Where, tuple[Kind, ...]] = {
    Where.SPARK: (
        *_OF_JOBS,
        Kind(Act.INTERRUPT, "driver"),
        *(Kind(act) for act in OPERATIONS if act is not Act.RESTART),
    ),
    Where.PLANE: (
        *_OF_JOBS,
        *(Kind(Act.KILL, service) for service in SERVICES),
        *(Kind(Act.STOP, service) for service in ("web", "worker service", "redis", "postgres")),
        *(Kind(Act.CUT, service) for service in ("web", "worker service", "launcher", "redis")),
        *map(Kind, OPERATIONS),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a schedule.

    It comes ``delay_ms`` after the job has completed a checkpoint of its own; one that overlaps
    comes ``delay_ms`` after the fault before, in the midst of the recovery.
    """

    kind: Kind
    delay_ms: int
    lasts_ms: int  # A stop, a full disk, a refusal, a load; of no meaning to others.
    slot: int
    jump_ms: int  # Of the wall clock.
    parallelism: int  # To rescale to.
    overlaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A round before it runs."""

    seed: int
    where: Where
    programs: int
    interval_ms: int
    alignment_timeout_ms: int | None  # None: always aligned; 0: unaligned from the start.
    inline_max_bytes: int
    tolerable_failures: int
    backend: str
    is_incremental: bool
    keeps_copies: bool
    retained: int
    faults: tuple[Fault, ...]
    overlaps: float = OVERLAPS  # The share of them that was to overlap.

    def as_json(self) -> dict[str, Any]:
        """Plain data for a record."""
        return asdict(self) | {
            "where": str(self.where),
            "faults": [asdict(fault) | {"kind": str(fault.kind)} for fault in self.faults],
        }


def schedule_of(
    seed: int,
    where: Where,
    count: int = FAULTS,
    without: Collection[Act] = (),
    overlaps: float = OVERLAPS,
) -> Schedule:
    """The schedule of a seed.

    ``without``: acts that cannot be done on this machine. Each kind occurs once before any occurs
    twice.
    """
    rng = random.Random(f"soak {seed}")
    kinds = [kind for kind in KINDS[where] if kind.act not in without]
    bag: list[Kind] = []
    faults = []
    for number in range(count):
        if not bag:
            bag = rng.sample(kinds, len(kinds))
        faults.append(
            Fault(
                kind=bag.pop(),
                delay_ms=rng.randrange(DELAY_MAX_MS),
                lasts_ms=rng.randint(500, 5_000),
                slot=rng.randrange(2),
                jump_ms=rng.choice([-1, 1]) * rng.randint(60_000, 7_200_000),
                parallelism=rng.randint(1, PARALLELISM_MAX),
                overlaps=number > 0 and rng.random() < overlaps,
            )
        )
    return Schedule(
        seed=seed,
        where=where,
        programs=rng.randint(1, 3),
        interval_ms=rng.choice([150, 300, 600]),
        alignment_timeout_ms=rng.choice([None, None, 0, 50]),
        inline_max_bytes=rng.choice([1, 20_000]),
        tolerable_failures=rng.choice([0, 1_000]),
        backend=rng.choice(["hashmap", "rocksdb"]),
        is_incremental=rng.random() < 0.5,
        keeps_copies=rng.random() < 0.5,
        retained=rng.randint(1, 4),
        faults=tuple(faults),
        overlaps=overlaps,
    )
