"""The API of inspections: the stacks of running subtasks, and the records that pass them."""

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from controlplane.accounts.models import Role
from controlplane.accounts.permissions import account, role_of
from controlplane.base.rest.serializers import TypedRequest
from controlplane.base.rest.views import OneView
from jobs.api.common import JOB_ID, OfJob
from jobs.inspections import requests
from jobs.inspections.requests import Result
from weir.bounds import PARALLELISM_MAX
from weir.protocol.inspection import RECORDS_MAX, VALUE_LENGTH_MAX, InspectionKind

_UID = OpenApiParameter("uid", str, "path", description="The operator's uid.")
_LOCATION = OpenApiParameter(
    "Location",
    OpenApiTypes.URI,
    "header",
    description="The URL of the inspection; poll it until `is_over`.",
    response=[202],
)


class InspectionRequest(TypedRequest):
    """The subtask to inspect."""

    subtask = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=PARALLELISM_MAX,
        help_text="Its index, from 0. Null or absent: the busiest running ones of the operator.",
    )


class FrameSerializer(serializers.Serializer[Any]):
    """A call on a stack."""

    operator = serializers.CharField(help_text="The uid of the operator it is in; empty: of none.")
    function = serializers.CharField(help_text="The function, with the names of its classes.")
    file = serializers.CharField(help_text="The end of the file's path, or an upload's name.")
    line = serializers.IntegerField(help_text="The line that runs, or that made the next call.")


class StackSerializer(serializers.Serializer[Any]):
    """A stack that samples met."""

    frames = FrameSerializer(many=True, help_text="The outermost first.")
    count = serializers.IntegerField(help_text="The samples that met it.")


class FlamesSerializer(serializers.Serializer[Any]):
    """The samples of the inspected subtasks' loops over the last minute."""

    span_ms = serializers.FloatField(help_text="The time that the samples reach back.")
    samples = serializers.IntegerField(help_text="All samples; the four below are parts of it.")
    work = serializers.IntegerField(
        help_text="Within the subtasks; those of the rarest stacks may be missing from `stacks`."
    )
    others = serializers.IntegerField(
        help_text="Within other subtasks of the same slots, which share the loop."
    )
    runtime = serializers.IntegerField(
        help_text="Between the calls of subtasks: connections, reports."
    )
    waiting = serializers.IntegerField(help_text="Asleep, with nothing to do.")
    stacks = StackSerializer(many=True, help_text="Those of most samples first.")


class RecordSerializer(serializers.Serializer[Any]):
    """One record, as text."""

    values = serializers.ListField(
        child=serializers.CharField(allow_blank=True),
        help_text=f"In the order of `columns`; each cut after {VALUE_LENGTH_MAX} characters.",
    )
    at_ms = serializers.IntegerField(
        allow_null=True, help_text="Its event time in milliseconds; null: it has none."
    )


class InspectedSubtaskSerializer(serializers.Serializer[Any]):
    """The answer of one subtask."""

    subtask = serializers.IntegerField(help_text="Its index.")
    cause = serializers.CharField(
        allow_blank=True, help_text="Why it has nothing to show; empty: it has, or may answer yet."
    )
    columns = serializers.ListField(
        child=serializers.CharField(allow_blank=True),
        help_text="The names of the columns of `records`; `record` where records have no fields.",
    )
    records = RecordSerializer(many=True, help_text=f"At most {RECORDS_MAX}, in their order.")
    is_cut = serializers.BooleanField(
        help_text="Whether values, columns or records are missing because they are too large."
    )


class InspectionSerializer(serializers.Serializer[Any]):
    """An inspection and what has come of it."""

    id = serializers.UUIDField()
    url = serializers.URLField(help_text="The URL to poll.")
    kind = serializers.ChoiceField([kind.value for kind in InspectionKind])
    operator = serializers.CharField()
    left_out = serializers.IntegerField(
        help_text="Running subtasks that are not asked, since there are too many."
    )
    asked_at = serializers.DateTimeField(help_text="The time of the request.")
    is_over = serializers.BooleanField(help_text="Whether no further answer is waited for.")
    subtasks = InspectedSubtaskSerializer(many=True, help_text="Those that are asked.")
    flames = FlamesSerializer(
        allow_null=True,
        help_text="Of all that have answered, for stacks; null: none has, or it is a tap.",
    )


def shown(request: Request, result: Result) -> dict[str, Any]:
    """An inspection as the API shows it."""
    inspection, answers = result.inspection, result.answers
    where = {"job_id": inspection.job, "id": inspection.id}
    merged = result.flames()
    subtasks = []
    for index in inspection.subtasks:
        answer = answers.get(index)
        tapped = None if answer is None else answer.records
        subtasks.append(
            {
                "subtask": index,
                "cause": result.causes.get(index, ""),
                "columns": [] if tapped is None else tapped.columns,
                "records": [] if tapped is None else tapped.records,
                "is_cut": tapped is not None and tapped.is_cut,
            }
        )
    return {
        "id": inspection.id,
        "url": reverse("api:inspection", kwargs=where, request=request),
        "kind": inspection.kind,
        "operator": inspection.operator,
        "left_out": inspection.left_out,
        "asked_at": inspection.asked_at,
        "is_over": result.is_over,
        "subtasks": subtasks,
        "flames": None
        if not merged.subtasks
        else {
            "span_ms": merged.span_ms,
            "samples": merged.samples,
            "work": merged.work,
            "others": merged.others,
            "runtime": merged.runtime,
            "waiting": merged.waiting,
            "stacks": [{"frames": frames, "count": count} for frames, count in merged.stacks],
        },
    }


class AskView(OfJob, OneView):
    """A view whose POST begins an inspection."""

    serializer_class = InspectionRequest
    kind: InspectionKind

    def post(self, request: Request, job_id: str, uid: str) -> Response:
        """Begin the inspection."""
        given = self.serializer_class.read(request)
        inspection = requests.ask(account(request), job_id, uid, self.kind, given.get("subtask"))
        began = shown(request, Result(inspection, False, {}))
        return Response(
            InspectionSerializer(began).data,
            status=status.HTTP_202_ACCEPTED,
            headers={"Location": began["url"]},
        )


Post = TypeVar("Post", bound=Callable[..., Response])


def _asked(operation_id: str, summary: str) -> Callable[[Post], Post]:
    return extend_schema(
        operation_id=operation_id,
        tags=["jobs"],
        summary=summary,
        request=InspectionRequest,
        responses={202: InspectionSerializer},
        parameters=[JOB_ID, _UID, _LOCATION],
        examples=[OpenApiExample("One subtask", {"subtask": 0}, request_only=True)],
    )


class StacksView(AskView):
    """A view that asks for stacks. A viewer may: they name functions and lines, no values."""

    roles = {"POST": Role.VIEWER}
    kind = InspectionKind.STACKS

    @_asked("inspect_operator_stacks", "Ask where an operator's subtasks spend their time")
    def post(self, request: Request, job_id: str, uid: str) -> Response:
        """Samples of the subtasks' loops over the last minute, for a flame graph.

        A worker takes some twenty a second whether or not a client asks. Of an operator with many
        subtasks the busiest 16 are asked.
        """
        return super().post(request, job_id, uid)


class RecordsView(AskView):
    """A view that taps an operator's main output."""

    kind = InspectionKind.RECORDS

    @_asked("tap_operator", "Tap an operator's output: ask for the records that pass")
    def post(self, request: Request, job_id: str, uid: str) -> Response:
        """The next records that pass the operator's main output, as text, within seconds.

        Records may hold personal data: the request and the first reading of its answer leave audit
        entries, only the account that asked can read it, for two minutes, and nothing of it is
        stored in the database. `WEIR_TAP` switches taps off; a job forbids them with
        `weir.tap.enabled`.
        """
        return super().post(request, job_id, uid)


class InspectionView(OfJob, OneView):
    """A view of one inspection."""

    serializer_class = InspectionSerializer

    @extend_schema(
        operation_id="get_inspection",
        tags=["jobs"],
        summary="The answer to an inspection",
        parameters=[JOB_ID],
    )
    def get(self, request: Request, job_id: str, id: Any) -> Response:
        """Poll it until `is_over`, which is within 15 seconds; records are shown only then."""
        may_tap = role_of(request).rank >= Role.OPERATOR.rank
        result = requests.read(account(request), job_id, str(id), may_tap=may_tap)
        return Response(self.get_serializer(shown(request, result)).data)
