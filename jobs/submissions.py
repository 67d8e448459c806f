"""Submissions of jobs, checked before anything is stored."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from controlplane.base.errors import Problems
from controlplane.secrets import services as secrets
from jobs import pipeline_files
from jobs.labels import check_labels
from jobs.models import (
    RECOVERY_TARGET_S_MAX,
    RECOVERY_TARGET_S_MIN,
    Artifact,
    PipelineKind,
)
from jobs.options import check_options
from weir.errors import WeirError
from weir.spark_master import MasterKind, SparkMaster
from weir.storage.store import store_for

NAME_LENGTH_MAX = 100
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CONF_KEY = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Settings that the launcher decides.
_CONF_RESERVED = frozenset({"spark.master", "spark.submit.deployMode", "spark.app.name"})


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline of a submission."""

    kind: str
    target: str = ""  # A path, or a module; not needed for an upload.
    artifact_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job as submitted; empty texts leave the choice to the control plane."""

    name: str
    pipeline_kind: str
    pipeline_target: str = ""  # A path, or a module; not needed for an upload.
    artifact_digest: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    spark_master: str = ""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    storage: str = ""
    recovery_target_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A submission that can be stored as a job."""

    name: str
    pipeline_kind: PipelineKind
    pipeline_target: str
    artifact: Artifact | None
    options: dict[str, Any]
    spark_master: str
    spark_conf: dict[str, str]
    storage: str
    recovery_target_s: float | None
    labels: dict[str, str]
    restore: str | None  # The state to start from, no option of later drivers,
    claims: bool  # and whether the job owns it from then on.


def check_name(given: str, problems: Problems) -> str:
    """The name of a job without space around it, its problem noted."""
    name = given.strip()
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        problems.add("name", f"A name has 1 to {NAME_LENGTH_MAX} printable characters.")
    return name


def check(submission: Submission) -> Checked:
    """Check a submission and fill in the choices that it leaves open.

    Raises:
        Invalid: A field is missing, malformed or out of range; ``errors`` names each.
    """
    errors = Problems()
    name = check_name(submission.name, errors)
    kind, target, artifact = _pipeline(submission, errors)
    options = check_options(submission.options, errors.add)
    restore, claims = options.pop("restore", None), options.pop("claims", False)
    if claims and restore is None:
        errors.add(
            "options.claims", "Only a restored savepoint can be claimed; give restore as well."
        )
    master = submission.spark_master or settings.WEIR_SPARK_MASTER
    if SparkMaster.parse(master).kind is MasterKind.OTHER or len(master) > 200:
        errors.add(
            "spark_master",
            "Give local[N], local-cluster[workers,cores,MB], spark://host:port, yarn or "
            "k8s://address.",
        )
    conf = _conf(submission.spark_conf, errors)
    storage = _storage(submission.storage or str(settings.WEIR_CHECKPOINT_ROOT), errors)
    _check_secrets(options.get("secrets", ()), master, errors)
    target_s = submission.recovery_target_s
    if target_s is not None:
        try:
            target_s = check_recovery_target(target_s)
        except ValueError as error:
            errors.add("recovery_target_s", str(error))
    check_labels(submission.labels, errors)
    errors.refuse("the job cannot be submitted")
    assert kind is not None, "an unknown kind was refused"
    return Checked(
        name=name,
        pipeline_kind=kind,
        pipeline_target=target,
        artifact=artifact,
        options=options,
        spark_master=master,
        spark_conf=conf,
        storage=storage,
        recovery_target_s=target_s,
        labels=dict(submission.labels),
        restore=restore,
        claims=claims,
    )


def check_recovery_target(value: Any) -> float:
    """A recovery target in seconds.

    Raises:
        ValueError: It is no number, or out of its bounds.
    """
    is_number = type(value) in (int, float)
    if not is_number or not RECOVERY_TARGET_S_MIN <= value <= RECOVERY_TARGET_S_MAX:
        raise ValueError(
            f"Give a number of seconds from {RECOVERY_TARGET_S_MIN} to {RECOVERY_TARGET_S_MAX} "
            "(30 days)."
        )
    return float(value)


def _pipeline(
    submission: Submission, errors: Problems
) -> tuple[PipelineKind | None, str, Artifact | None]:
    target = submission.pipeline_target
    try:
        kind = PipelineKind(submission.pipeline_kind)
    except ValueError:
        errors.add("pipeline_kind", f"Give one of {', '.join(PipelineKind.values)}.")
        return None, target, None
    if kind is not PipelineKind.UPLOAD and submission.artifact_digest is not None:
        errors.add("artifact_digest", "Only a pipeline of kind upload has a digest; leave it out.")
    match kind:
        case PipelineKind.SCRIPT:
            target = _script(target, errors)
        case PipelineKind.MODULE:
            if not _MODULE.fullmatch(target) or len(target) > 500:
                errors.add("pipeline_target", "Give a module's dotted name, such as shop.orders.")
        case PipelineKind.UPLOAD:
            digest = submission.artifact_digest or ""
            is_digest = _DIGEST.fullmatch(digest) is not None
            artifact = Artifact.objects.filter(pk=digest).first() if is_digest else None
            if artifact is None:
                errors.add(
                    "artifact_digest",
                    "There is no upload with this digest; upload the script first.",
                )
            elif target not in ("", artifact.file_name):
                errors.add("pipeline_target", "An upload is named by its artifact_digest alone.")
            return kind, "" if artifact is None else artifact.file_name, artifact
    return kind, target, None


def _script(target: str, errors: Problems) -> str:
    """The script's resolved path, which has to lie below one of the script roots."""
    problem = "There is no such script below the script roots of this control plane."
    if not settings.WEIR_SCRIPT_ROOTS:
        errors.add("pipeline_target", "This control plane has no script roots; upload the script.")
        return target
    if not target or "\0" in target:
        errors.add("pipeline_target", problem)
        return target
    path = pipeline_files.reach(lambda: _below_roots(target))
    if path is None or len(path) > 500:
        errors.add("pipeline_target", problem)
        return target
    return path


def _below_roots(target: str) -> str | None:
    """The resolved path of a script; None: it lies below none of the roots."""
    for root in map(Path, settings.WEIR_SCRIPT_ROOTS):
        try:
            # Resolved first, so that neither .. nor a symbolic link leads out of the root.
            path, real_root = (root / target).resolve(), root.resolve()
            if path.is_relative_to(real_root) and path.suffix == ".py" and path.is_file():
                return str(path)
        except TimeoutError:
            raise
        except (OSError, RuntimeError, ValueError):
            continue  # An impossible path, such as one too long, or a ring of links.
    return None


def _conf(given: Mapping[str, str], errors: Problems) -> dict[str, str]:
    if not isinstance(given, Mapping):
        errors.add("spark_conf", "Give an object with Spark settings as members.")
        return {}
    for key, value in given.items():
        if not isinstance(key, str) or not _CONF_KEY.fullmatch(key) or len(key) > 200:
            errors.add(
                "spark_conf", f"{key!r} is not the name of a Spark setting; names begin with spark."
            )
        elif key in _CONF_RESERVED:
            errors.add("spark_conf", f"{key} is set by the control plane; leave it out.")
        elif type(value) is not str or not value.isprintable() or len(value) > 10_000:
            errors.add("spark_conf", f"The value of {key} has to be a printable text.")
    return dict(given)


def _check_secrets(names: Sequence[str], master: str, errors: Problems) -> None:
    if gone := secrets.missing(names) if names else []:
        errors.add(
            "options.secrets",
            f"There is no secret {', '.join(gone)}; store it first, with PUT /api/v1/secrets/NAME "
            "or on the page Secrets.",
        )
    if names and runs_in_cluster(master):
        errors.add(
            "options.secrets",
            "Drivers that run in the cluster cannot be handed secrets; use "
            "WEIR_SPARK_DEPLOY_MODE=client.",
        )


def runs_in_cluster(master: str) -> bool:
    """Whether drivers on this master run in the cluster, not on the launcher's machine."""
    has_cluster_mode = SparkMaster.parse(master).kind in (MasterKind.YARN, MasterKind.KUBERNETES)
    return has_cluster_mode and settings.WEIR_SPARK_DEPLOY_MODE == "cluster"


def _storage(storage: str, errors: Problems) -> str:
    parts = urlsplit(storage)
    problem = None
    if len(storage) > 500 or not storage.isprintable():
        problem = "Give a directory or URI of at most 500 characters."
    elif not parts.scheme and not Path(storage).is_absolute():
        problem = "Give an absolute path: drivers and executors run elsewhere."
    else:
        try:
            store_for(storage)
        except WeirError as error:
            problem = str(error)
    if problem is not None:
        errors.add("storage", problem)
    return storage
