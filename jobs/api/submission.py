"""Request bodies as submissions, and the service's errors in the body's own names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from controlplane.accounts.models import Role
from controlplane.accounts.permissions import role_of
from controlplane.base.errors import Invalid
from jobs.models import PipelineKind
from jobs.submissions import Pipeline, Submission

# Fields that decide where code runs, and where files are written and deleted.
ADMIN_FIELDS = ("location", "spark_master", "storage")
# Spark settings open to operators: the job's size, not what else the driver loads or opens.
OPERATOR_CONF = frozenset(
    {
        "spark.cores.max",
        "spark.driver.cores",
        "spark.driver.maxResultSize",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.pyspark.memory",
    }
)
_OPTIONS = {  # Name in the body -> name in weir's ExecutionOptions.
    "parallelism": "parallelism",
    "checkpoint_interval_ms": "interval_ms",
    "checkpoint_timeout_ms": "timeout_ms",
    "checkpoint_min_pause_ms": "min_pause_ms",
    "retained_checkpoints": "retained_max",
    "restart": "restart",
    "mode": "mode",
    "parameters": "parameters",
    "secrets": "secrets",
    "restore": "restore",
    "claims": "claims",
    "allow_non_restored_state": "allow_non_restored_state",
    "allow_pickled_state": "allow_pickled_state",
}


@contextmanager
def submission_of(request: Request, body: Mapping[str, Any]) -> Iterator[Submission]:
    """The submission that a validated body asks for.

    Errors of the service inside the block are renamed to the body's fields.

    Raises:
        PermissionDenied: The account's role may not choose one of the fields.
        Invalid: Raised inside the block, in the body's names.
    """
    check_place(request, body)
    if role_of(request) is not Role.ADMIN:
        _check_conf(body)
    pipeline = pipeline_of(body)
    assert pipeline is not None, "a submission's body has a pipeline"
    submission = Submission(
        name=body["name"],
        pipeline_kind=pipeline.kind,
        pipeline_target=pipeline.target,
        artifact_digest=pipeline.artifact_digest,
        options={_OPTIONS[name]: value for name, value in body.items() if name in _OPTIONS},
        spark_master=body.get("spark_master", ""),
        spark_conf=body.get("spark_conf", {}),
        storage=body.get("storage", ""),
        recovery_target_s=body.get("recovery_target_s"),
        labels=body.get("labels", {}),
    )
    with in_words_of(body, "The job cannot be submitted like this"):
        yield submission


def pipeline_of(body: Mapping[str, Any]) -> Pipeline | None:
    """The pipeline that a validated body names, if any."""
    given = body.get("pipeline")
    if given is None:
        return None
    kind = given["kind"]
    target = "" if kind == PipelineKind.UPLOAD else given[kind]
    return Pipeline(kind, target, given.get("upload"))


@contextmanager
def in_words_of(body: Mapping[str, Any], problem: str) -> Iterator[None]:
    """Rename the fields in a service's errors to those of the request body.

    Raises:
        Invalid: Raised inside the block, in the body's names.
    """
    kind = body.get("pipeline", {}).get("kind", "")
    names = {
        "pipeline_kind": "pipeline.kind",
        "pipeline_target": f"pipeline.{kind}",
        "artifact_digest": "pipeline.upload",
        **{f"options.{option}": name for name, option in _OPTIONS.items()},
    }
    try:
        yield
    except Invalid as refusal:
        if errors := refusal.extra.get("errors"):
            said = {names.get(name, name): messages for name, messages in errors.items()}
            raise Invalid(f"{problem}; see {', '.join(sorted(said))}.", errors=said) from refusal
        raise


def check_place(request: Request, body: Mapping[str, Any]) -> None:
    """Check that only an admin chooses where code runs and files are written.

    Raises:
        PermissionDenied: The body names such a place, and the account is no admin.
    """
    if role_of(request) is Role.ADMIN:
        return
    for name in ADMIN_FIELDS:
        if name in body:
            raise PermissionDenied(f"Only an admin may choose {name}; leave it out.")


def _check_conf(body: Mapping[str, Any]) -> None:
    if others := sorted(set(body.get("spark_conf", ())) - OPERATOR_CONF):
        raise PermissionDenied(
            f"Only an admin may set {', '.join(others)}; "
            f"operators may set {', '.join(sorted(OPERATOR_CONF))}."
        )
