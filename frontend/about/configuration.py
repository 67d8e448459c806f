"""A job's settings in groups: the value, meaning and source of each. Pure.

The control plane keeps the submission and the resulting settings of the pipeline, not which of them
the pipeline's code named. So the source of a value is the *submission*; or the *pipeline*, where
the value differs from the default; or the *default*. The *server* chose storage and Spark master
that the submission left open.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from controlplane.base.formatting import interval, moment
from frontend.about.setting_labels import (
    CHANNELS,
    CHECKPOINTS,
    JOB,
    NETWORK,
    RESTART,
    STATE,
    Words,
    slots,
)
from jobs import redaction
from jobs.models import Driver, Job, Operator, PipelineKind
from weir.config import (
    SETTINGS_OF_STRATEGY,
    ChannelConfig,
    CheckpointConfig,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    StateConfig,
)

NOT_PLANNED = "not known until the pipeline has built its graph"


class Source(StrEnum):
    """The source of a value."""

    SUBMITTED = "submitted"
    PIPELINE = "pipeline"
    SERVER = "server"
    DEFAULT = "default"
    FACT = ""  # Not a choice: a fact about the job.


SOURCE_HELP: Mapping[Source, str] = {
    Source.SUBMITTED: "Given when the job was submitted; it overrides the pipeline.",
    Source.PIPELINE: "Set by the pipeline: it differs from Weir’s default.",
    Source.SERVER: "This server’s setting, because the submission left it open.",
    Source.DEFAULT: "Weir’s default.",
    Source.FACT: "",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One line: a value and what it means."""

    label: str
    value: str
    help: str = ""
    source: Source = Source.FACT
    name: str = ""  # As the API and the pipeline's code have it.
    at: datetime | None = None  # Set where the value is a point in time.
    digest: str = ""  # Of the upload that it names.

    @property
    def source_help(self) -> str:
        """The source in a sentence."""
        return SOURCE_HELP[self.source]


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that belong together."""

    key: str  # The fragment of the group's address on the page.
    title: str
    settings: list[Setting]
    says: str = ""  # A sentence about the whole group, or why it is empty.


# The settings that a submission can override; its options have the settings' names.
_SUBMITTABLE = frozenset(
    {
        *("interval_ms", "mode", "timeout_ms", "min_pause_ms", "retained_max"),
        *("parallelism", "allow_non_restored_state", "allow_pickled_state"),
    }
)


def setting_groups(
    job: Job, driver: Driver | None, *, server_storage: str, server_master: str
) -> list[Group]:
    """All groups in the order of the page, without the operators.

    Args:
        driver: The newest one.
        server_storage: The checkpoint storage of jobs whose submission names none.
        server_master: The Spark master of jobs whose submission names none.
    """
    return [
        Group("pipeline", "Pipeline", list(_pipeline(job))),
        _parameters(job),
        Group(
            "checkpointing",
            "Checkpointing",
            _settled(job, CHECKPOINTS, CheckpointConfig, job.checkpoint_config, without="storage"),
            "" if job.checkpoint_config else _unplanned(job),
        ),
        Group(
            "restart",
            "Restart strategy",
            list(_restart(job)),
            "" if job.restart_config else _unplanned(job),
        ),
        Group("storage", "Storage", list(_storage(job, server_storage))),
        Group(
            "execution",
            "Execution",
            [
                *_settled(job, JOB, JobConfig, job.settings, without="name"),
                *_settled(job, STATE, StateConfig, job.settings.get("state")),
                *_settled(job, CHANNELS, ChannelConfig, job.settings.get("channels")),
                *_network(job),
            ],
            "" if job.settings else _unplanned(job),
        ),
        _spark(job, driver, server_master),
        Group("versions", "Versions", list(_versions(job)), "" if _known(job) else _unplanned(job)),
    ]


def _unplanned(job: Job) -> str:
    return f"The pipeline’s own settings are {NOT_PLANNED}."


def _pipeline(job: Job) -> Iterator[Setting]:
    match PipelineKind(job.pipeline_kind):
        case PipelineKind.MODULE:
            what = "A Python module that the drivers import."
        case PipelineKind.SCRIPT:
            what = "A script below one of the server’s script roots."
        case PipelineKind.UPLOAD:
            what = "An uploaded script, stored under the digest of its content."
    yield Setting("Runs", job.pipeline_target, what, name="pipeline.target")
    if job.artifact_id is not None:
        yield Setting(
            "Digest",
            job.artifact_id,
            "SHA-256 of the script’s content.",
            name="pipeline.upload",
            digest=job.artifact_id,
        )
    if job.planned_name:
        yield Setting(JOB["name"].label, job.planned_name, JOB["name"].help, name="planned_name")
    yield Setting("Submitted", moment(job.created_at), at=job.created_at)
    by = job.created_by.get_username() if job.created_by else "the control plane"
    yield Setting("Submitted by", by, "The account that submitted the job.")
    if names := job.options.get("secrets"):
        yield Setting(
            "Secrets",
            ", ".join(names),
            "Names of secrets, whose values each of the job’s drivers is handed.",
            Source.SUBMITTED,
            name="secrets",
        )
    yield _recovery_target(job)
    yield Setting(
        "Slots", slots(job.slot_count), "Each slot runs one subtask of every operator chain."
    )


def _parameters(job: Job) -> Group:
    given = job.options.get("parameters") or {}
    says = (
        "Given when the job was submitted. The control plane does not see parameters that the "
        "pipeline sets in its own code."
        if given
        else "None were given when the job was submitted."
    )
    return Group("parameters", "Parameters", list(_named(given)), says)


def _named(given: Mapping[str, Any]) -> Iterator[Setting]:
    """Settings that have a name but no label or help, secrets hidden."""
    for name in sorted(given):
        value = str(redaction.shown(name, given[name]))
        is_hidden = value == redaction.HIDDEN
        yield Setting(name, value, redaction.HIDDEN_HELP if is_hidden else "", Source.SUBMITTED)


def _settled(
    job: Job,
    words: Mapping[str, Words],
    config: type,
    values: Mapping[str, Any] | None,
    *,
    without: str = "",
    given: Mapping[str, Any] | None = None,
) -> list[Setting]:
    """The settings of a config; before the pipeline has built its graph, the submitted ones.

    Args:
        given: The submitted ones; default: those among the job's options.
    """
    given = job.options if given is None else given
    defaults = config()
    known = {field.name for field in fields(config)}
    settings = []
    for name, said in words.items():
        if name == without or name not in known:
            continue
        submitted = given.get(name) if name in _SUBMITTABLE or given is not job.options else None
        if values is None or name not in values:
            if submitted is not None:
                settings.append(_setting(name, said, submitted, Source.SUBMITTED))
            continue
        value = values[name]
        if submitted is not None and submitted == value:
            source = Source.SUBMITTED
        else:
            source = Source.DEFAULT if value == getattr(defaults, name) else Source.PIPELINE
        settings.append(_setting(name, said, value, source))
    return settings


def _setting(name: str, words: Words, value: Any, source: Source) -> Setting:
    text = words.none if value is None else words.write(value)
    return Setting(words.label, text, words.help, source, name)


def _restart(job: Job) -> Iterator[Setting]:
    """The strategy with the settings that it uses; the others have no effect on this job."""
    given = job.options.get("restart") or {}
    chosen = (job.restart_config or given).get("kind")
    if not (job.restart_config or given):
        return
    if chosen is not None:
        kind = RestartStrategyKind(chosen)
        source = Source.SUBMITTED if chosen == given.get("kind") else Source.PIPELINE
    else:
        is_on = bool((job.checkpoint_config or {}).get("interval_ms"))
        kind = RestartStrategyKind.EXPONENTIAL_DELAY if is_on else RestartStrategyKind.NONE
        source = Source.DEFAULT
    why = (
        ""
        if chosen is not None
        else " Default: exponential delay with periodic checkpoints, none without."
    )
    words = RESTART["kind"]
    yield Setting(words.label, words.write(kind.value), words.help + why, source, "kind")
    wanted = {name: RESTART[name] for name in SETTINGS_OF_STRATEGY[kind]}
    yield from _settled(job, wanted, RestartConfig, job.restart_config, given=given)


def _recovery_target(job: Job) -> Setting:
    target_s = job.recovery_target_s
    return Setting(
        "Recovery target",
        "none" if target_s is None else interval(target_s * 1_000),
        "The longest time from a failure until all subtasks run again. Rules on slow recoveries "
        "judge the job by it, and without one by their own limits.",
        Source.DEFAULT if target_s is None else Source.SUBMITTED,
        "recovery_target_s",
    )


def _storage(job: Job, server: str) -> Iterator[Setting]:
    yield Setting(
        "Checkpoints",
        redaction.without_credentials(job.storage),
        CHECKPOINTS["storage"].help,
        Source.SERVER if job.storage == server else Source.SUBMITTED,
        "storage",
    )
    if job.origin_uri:
        whose = " This job has claimed it and deletes it." if job.restore_claims else ""
        yield Setting(
            "Restored from",
            redaction.without_credentials(job.origin_uri),
            f"The checkpoint or savepoint that the job’s first attempt restored.{whose}",
            Source.SUBMITTED,
            "origin_uri",
        )
    if job.restore_uri:
        yield Setting(
            "Next driver restores",
            redaction.without_credentials(job.restore_uri),
            "Until the job has completed a checkpoint of its own after it.",
            name="restore_uri",
        )


def _spark(job: Job, driver: Driver | None, server_master: str) -> Group:
    rows = [
        Setting(
            "Master",
            job.spark_master,
            "Where Spark gets its executors.",
            Source.SERVER if job.spark_master == server_master else Source.SUBMITTED,
            "spark_master",
        )
    ]
    if driver is not None and driver.spark_application:
        rows.append(
            Setting("Application", driver.spark_application, "The newest driver’s id in Spark.")
        )
    if driver is not None and driver.launched_by:
        rows.append(
            Setting("Launcher", driver.launched_by, "The host that started the newest driver.")
        )
    return Group("spark", "Spark", [*rows, *_named(job.spark_conf)])


def _network(job: Job) -> Iterator[Setting]:
    protection = job.settings.get("network")
    if protection is not None:
        yield Setting(
            "Network",
            NETWORK.get(protection, str(protection)),
            "The connections between slots, and between slots and the newest driver.",
            name="settings.network",
        )


def _known(job: Job) -> Mapping[str, Any]:
    versions: Mapping[str, Any] = job.settings.get("versions") or {}
    return versions


def _versions(job: Job) -> Iterator[Setting]:
    """Versions on the newest driver that built the graph; slots with others are refused."""
    versions = _known(job)
    for name, label in (("weir", "Weir"), ("python", "Python"), ("pyarrow", "PyArrow")):
        if name in versions:
            yield Setting(label, str(versions[name]), "On the newest driver and in all its slots.")


@dataclass(frozen=True, slots=True)
class OperatorLine:
    """One operator of the graph."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: str
    chain: str  # The uid of its chain's head; empty: the operator is the head.
    kind: str
    files: str


def operators(rows: Sequence[Operator], settings: Mapping[str, Any]) -> list[OperatorLine]:
    """The operators in the order of ``rows``, those of a chain behind one another."""
    of_job = settings.get("max_parallelism")
    return [
        OperatorLine(
            uid=row.uid,
            name=row.name,
            parallelism=row.parallelism,
            max_parallelism=f"{row.max_parallelism or of_job:,}"
            if row.max_parallelism or of_job
            else "derived",
            chain="" if row.chain == row.uid else row.chain,
            kind=", ".join(_kinds(row)),
            files=redaction.without_credentials(row.files or ""),
        )
        for row in rows
    ]


def _kinds(row: Operator) -> Iterable[str]:
    if row.is_source:
        yield "source"
    if row.is_keyed:
        yield "keyed"
    if row.is_sink:
        yield "sink"
