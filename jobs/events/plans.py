"""The plan of a driver's pipeline as rows: graph, settings, and each subtask."""

import posixpath
from datetime import datetime
from graphlib import CycleError, TopologicalSorter

from controlplane.base import advisory_locks
from controlplane.base.errors import Invalid
from jobs.models import FINAL_JOB_STATUSES, Driver, Edge, Job, Operator, Subtask
from jobs.storable_text import storable, storable_json
from weir.graph.logical import Partitioning
from weir.protocol.driver_messages import JobPlanned
from weir.protocol.wire import to_wire

NAME_LENGTH_MAX = 300  # As wide as the columns.
FILES_LENGTH_MAX = 1_000
# Operator subtasks of a job, each of which acknowledges each checkpoint.
SUBTASKS_MAX = 200_000


_PARTITIONINGS = frozenset(partitioning.value for partitioning in Partitioning)


class OutputTaken(Exception):
    """The output directory is already used by another job that is not over."""


def store(job: Job, driver: Driver, plan: JobPlanned, now: datetime) -> None:
    """Store a plan in place of an earlier driver's; the caller holds the job's lock.

    Raises:
        Invalid: The plan contradicts itself, or has an operator's uid that cannot be stored.
        OutputTaken: Another job uses the output directory. The rows are stored all the same, and
            the driver has to end.
    """
    _check(plan)
    driver.spark_application = storable(plan.spark_application, 200)
    driver.save(update_fields=["spark_application"])
    job.planned_name = storable(plan.name, 200)
    job.slot_count = plan.slot_count
    job.checkpoint_config = to_wire(plan.checkpoints)
    job.restart_config = to_wire(plan.restart)
    job.settings = storable_json({**plan.settings, "versions": to_wire(plan.versions)})
    job.save(
        update_fields=[
            "planned_name",
            "slot_count",
            "checkpoint_config",
            "restart_config",
            "settings",
        ]
    )
    _store_graph(job, plan, now)
    _check_output(job, plan)


def _check(plan: JobPlanned) -> None:
    """Refuse a plan that no correct driver sends, since it would be the same the next time.

    Raises:
        Invalid: The message names the field by its path in the plan.
    """
    uids: set[str] = set()
    for index, operator in enumerate(plan.operators):
        at = f"operators[{index}]"
        if len(operator.uid) > NAME_LENGTH_MAX or operator.uid != storable(operator.uid):
            raise Invalid(
                f"{at}.uid: operator uid {operator.uid[:40]!r} has more than {NAME_LENGTH_MAX} "
                "characters, or one that cannot be stored; choose another uid"
            )
        if operator.uid in uids:
            raise Invalid(
                f"{at}.uid: operator uid {operator.uid!r} is used twice; give one of the operators "
                "another uid"
            )
        uids.add(operator.uid)
    heads = {operator.uid for operator in plan.operators if operator.chain == operator.uid}
    for index, operator in enumerate(plan.operators):
        if operator.chain not in heads:
            raise Invalid(f"operators[{index}].chain: {operator.chain!r} is the head of no chain")
    for index, edge in enumerate(plan.edges):
        for name, uid in (("source", edge.source), ("target", edge.target)):
            if uid not in uids:
                raise Invalid(f"edges[{index}].{name}: the plan has no operator {uid!r}")
        if edge.partitioning not in _PARTITIONINGS:
            raise Invalid(f"edges[{index}].partitioning: {edge.partitioning[:40]!r} is unknown")
    count = sum(operator.parallelism for operator in plan.operators)
    if count > SUBTASKS_MAX:
        raise Invalid(
            f"operators: the job has {count:,} operator subtasks, and {SUBTASKS_MAX:,} are the "
            "most that the control plane takes; lower the parallelism"
        )


def _check_output(job: Job, plan: JobPlanned) -> None:
    """Refuse an output directory that another job commits to: each would take the other's files.

    Jobs that are planned at the same time wait for one another here, so one sees the other.
    """
    directories = {_normal(o.files) for o in plan.operators if o.files is not None}
    if not directories:
        return
    advisory_locks.lock(directories)
    others = Operator.objects.exclude(job=job).exclude(job__status__in=FINAL_JOB_STATUSES)
    for other in others.exclude(files=None).select_related("job").order_by("job_id"):
        if (directory := _normal(other.files or "")) in directories:
            raise OutputTaken(
                f"{other.job_id} ({other.job.name}) is {other.job.status} and commits files to "
                f"{directory} as well. Two jobs cannot share an output directory: give this job "
                "another one, for a fork by its parameters, or end the other job first"
            )


def _normal(directory: str) -> str:
    return posixpath.normpath(storable(directory, FILES_LENGTH_MAX))


def _store_graph(job: Job, plan: JobPlanned, now: datetime) -> None:
    for model in (Operator, Edge, Subtask):
        model.objects.filter(job=job).delete()
    position = {uid: i for i, uid in enumerate(_topological(plan))}
    Operator.objects.bulk_create(
        Operator(
            job=job,
            uid=operator.uid,
            name=storable(operator.name, NAME_LENGTH_MAX),
            position=position[operator.uid],
            parallelism=operator.parallelism,
            max_parallelism=operator.max_parallelism,
            chain=operator.chain,
            is_source=operator.is_source,
            is_sink=operator.is_sink,
            is_keyed=operator.is_keyed,
            files=None if operator.files is None else storable(operator.files, FILES_LENGTH_MAX),
        )
        for operator in plan.operators
    )
    Edge.objects.bulk_create(
        Edge(
            job=job,
            position=i,
            source=edge.source,
            target=edge.target,
            partitioning=edge.partitioning,
            input_index=edge.input_index,
            side_tag=None if edge.side_tag is None else storable(edge.side_tag, NAME_LENGTH_MAX),
        )
        for i, edge in enumerate(plan.edges)
    )
    Subtask.objects.bulk_create(
        Subtask(job=job, chain=operator.uid, index=index, attempt=0, updated_at=now)
        for operator in plan.operators
        if operator.chain == operator.uid
        for index in range(operator.parallelism)
    )


def _topological(plan: JobPlanned) -> list[str]:
    """The operators' uids, inputs first; equals in the order of the plan."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for operator in plan.operators:
        sorter.add(operator.uid)
    for edge in plan.edges:
        sorter.add(edge.target, edge.source)
    known = {operator.uid for operator in plan.operators}
    try:
        order = [uid for uid in sorter.static_order() if uid in known]
    except CycleError:
        order = [operator.uid for operator in plan.operators]  # The driver refuses such a graph.
    return order
