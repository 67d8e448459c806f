"""The API of stop, rollback, rescale, upgrade and fork, and of their previews and comparisons."""

from typing import Any
from uuid import UUID

from rest_framework.request import Request

from checkpoints.api import requests
from checkpoints.operations import previews, upgrades
from checkpoints.operations import requests as operation_requests
from controlplane.accounts.permissions import account
from jobs.api.common import OperationActionView, PipelineActionView, action_schema
from jobs.api.submission import check_place, in_words_of, pipeline_of
from jobs.models import Operation

_SAVEPOINT = "6f1a2f0e-0c55-4a55-9a0e-4d4be0f0a001"


def _target(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given.get(name) for name in ("checkpoint", "savepoint")}


def _place(given: dict[str, Any]) -> int | UUID | str:
    place: int | UUID | str = next(
        given[name] for name in requests.PreviewRequest.targets if name in given
    )
    return place


@action_schema(
    "stop_job",
    "Stop a job with a savepoint",
    examples={
        "Suspend": {"drain": False, "name": "for-the-weekend"},
        "Drain": {"drain": True, "name": "final", "note": "The season is over."},
    },
)
class StopView(OperationActionView):
    """Takes a savepoint and ends the job with it; no record is processed after it.

    Suspended, the job can be resumed exactly where it was. Drained, its sources end, event-time
    timers fire and windows close first. A savepoint that fails leaves the job running; one that was
    taken is kept even if the stop fails, and named in the error.
    """

    serializer_class = requests.StopRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        check_place(request, given)
        return operation_requests.stop(
            account(request),
            self.job.pk,
            drain=given["drain"],
            name=given.get("name", ""),
            note=given.get("note", ""),
            labels=given.get("labels"),
            location=given.get("location", ""),
            key=key,
        )


@action_schema(
    "roll_back_job",
    "Roll a job back",
    examples={
        "To a checkpoint": {"checkpoint": 1042},
        "To a savepoint, keeping the output": {"savepoint": _SAVEPOINT, "rewind_output": False},
    },
)
class RollbackView(OperationActionView):
    """Restores the job from an older checkpoint or savepoint, or from an abandoned one.

    Checkpoints since then are abandoned: they are kept for a while, so that the rollback can be
    undone. With `rewind_output` file sinks withdraw the output that they committed since, and put
    back the output that belongs to the restored checkpoint. The operation succeeds once the job
    runs again.
    """

    serializer_class = requests.RollbackRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        return operation_requests.rollback(
            account(request),
            self.job.pk,
            **_target(given),
            rewind_output=given["rewind_output"],
            allow_non_restored_state=given.get("allow_non_restored_state"),
            key=key,
        )


@action_schema("rescale_job", "Change a job's parallelism", examples={"Four": {"parallelism": 4}})
class RescaleView(OperationActionView):
    """Takes a checkpoint, and restores the job from it with another parallelism.

    A parallelism of more slots than the cluster has is refused before the job is touched, where
    their number is known; with `wait_for_slots` the new driver waits for them. The operation
    succeeds once the job runs again.
    """

    serializer_class = requests.RescaleRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        return operation_requests.rescale(
            account(request),
            self.job.pk,
            parallelism=given["parallelism"],
            wait_for_slots=given["wait_for_slots"],
            key=key,
        )


@action_schema(
    "upgrade_job",
    "Upgrade a job to another pipeline",
    examples={
        "An uploaded script": {"pipeline": {"kind": "upload", "upload": "0" * 64}},
        "A module, within a minute": {
            "pipeline": {"kind": "module", "module": "shop.orders_v2"},
            "run_within_s": 60,
        },
    },
)
class UpgradeView(PipelineActionView):
    """Goes on with another pipeline from a savepoint, and with the old one where it does not run.

    A preview first checks the new pipeline against the newest checkpoint, in a process of its own:
    where it could not restore the state, the operation fails before the job is touched. Then the
    job is stopped with a savepoint and launched from it. The operation succeeds once the job runs
    again; it fails once the job runs as before.
    """

    serializer_class = requests.UpgradeRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        with in_words_of(given, "The job cannot be upgraded like this"):
            return upgrades.upgrade(
                account(request),
                self.job.pk,
                pipeline=pipeline_of(given),
                parameters=given.get("parameters"),
                secrets=given.get("secrets"),
                parallelism=given.get("parallelism"),
                allow_non_restored_state=given.get("allow_non_restored_state"),
                run_within_s=given.get("run_within_s"),
                key=key,
            )


@action_schema(
    "fork_job",
    "Fork a job",
    examples={
        "Beside it, with other output": {
            "name": "flights-trial",
            "savepoint": _SAVEPOINT,
            "parameters": {"output": "/data/trial"},
        },
    },
)
class ForkView(PipelineActionView):
    """Runs a second job from a savepoint of this one, which is not affected.

    Without a savepoint or checkpoint, a savepoint is taken first. The operation succeeds once the
    new job runs; from its submission on, the operation's result names it.
    """

    serializer_class = requests.ForkRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        with in_words_of(given, "The job cannot be forked like this"):
            return operation_requests.fork(
                account(request),
                self.job.pk,
                name=given["name"],
                **_target(given),
                parameters=given.get("parameters"),
                secrets=given.get("secrets"),
                parallelism=given.get("parallelism"),
                recovery_target_s=given.get("recovery_target_s"),
                pipeline=pipeline_of(given),
                allow_non_restored_state=given.get("allow_non_restored_state"),
                key=key,
            )


@action_schema(
    "preview_job",
    "Preview a restore or a rollback",
    examples={
        "A rollback": {"kind": "rollback", "checkpoint": 1042},
        "A changed pipeline": {
            "kind": "restore",
            "savepoint": _SAVEPOINT,
            "pipeline": {"kind": "module", "module": "shop.orders_v2"},
        },
    },
)
class PreviewsView(OperationActionView):
    """Previews a restore or a rollback without doing it.

    The preview is computed in a process of its own while the job runs; it is the operation's
    result.
    """

    serializer_class = requests.PreviewRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        if given["kind"] == "rollback":
            return previews.rollback(
                account(request),
                self.job.pk,
                **_target(given),
                rewind_output=given.get("rewind_output", True),
                key=key,
            )
        with in_words_of(given, "The restore cannot be previewed like this"):
            return previews.restore(
                account(request),
                self.job.pk,
                restore=_place(given),
                pipeline=pipeline_of(given),
                parameters=given.get("parameters"),
                secrets=given.get("secrets"),
                parallelism=given.get("parallelism"),
                allow_non_restored_state=given.get("allow_non_restored_state"),
                key=key,
            )


@action_schema(
    "compare_jobs",
    "Compare the outputs of two jobs",
    examples={
        "By hour and carrier": {
            "other": "flights-trial-9f8e7d6c",
            "keys": ["carrier"],
            "windows": ["window_start"],
        }
    },
)
class ComparisonsView(OperationActionView):
    """Compares the outputs of this job and another one, such as its fork.

    The operation's result holds the differences by key and window, latency and state.
    """

    serializer_class = requests.ComparisonRequest

    def ask(self, request: Request, given: dict[str, Any], key: str | None) -> Operation:
        """Ask the service for the operation."""
        return previews.compare(
            account(request),
            self.job.pk,
            other_job_id=given["other"],
            keys=given["keys"],
            windows=given.get("windows", ()),
            key=key,
        )
