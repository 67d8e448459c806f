"""The pipeline of a job and its options as one value, which an upgrade replaces and puts back."""

from collections.abc import Mapping
from typing import Any

from jobs.models import Artifact, Job
from jobs.submissions import Checked

FIELDS = ("pipeline_kind", "pipeline_target", "artifact", "options")  # Of a job, to be saved.


def of_job(job: Job) -> dict[str, Any]:
    """The pipeline that a job runs, as it is stored with an operation."""
    return {
        "pipeline_kind": str(job.pipeline_kind),
        "pipeline_target": job.pipeline_target,
        "artifact_digest": job.artifact_id,
        "options": dict(job.options),
    }


def of_submission(checked: Checked) -> dict[str, Any]:
    """The pipeline of a checked submission, as it is stored with an operation."""
    return {
        "pipeline_kind": checked.pipeline_kind.value,
        "pipeline_target": checked.pipeline_target,
        "artifact_digest": None if checked.artifact is None else checked.artifact.pk,
        "options": checked.options,
    }


def run(job: Job, pipeline: Mapping[str, Any]) -> None:
    """Have the job's next driver run this pipeline; the caller saves ``FIELDS`` of the job.

    Its upload is there: one that an operation under way names is not removed.
    """
    digest = pipeline["artifact_digest"]
    job.pipeline_kind = pipeline["pipeline_kind"]
    job.pipeline_target = pipeline["pipeline_target"]
    job.artifact = None if digest is None else Artifact.objects.get(pk=digest)
    job.options = dict(pipeline["options"])
