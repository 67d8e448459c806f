"""Shapes of rules, alerts and silences in the API."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.alerts import rules
from controlplane.alerts.models import (
    ALERT_STATES,
    JOB_LENGTH_MAX,
    NAME_LENGTH_MAX,
    REASON_LENGTH_MAX,
    RULE_KINDS,
    Alert,
    Rule,
    Silence,
)
from controlplane.base import clock
from controlplane.base.rest.serializers import TypedRequest
from controlplane.deliveries.models import NOTICE_SEVERITIES

RULE_STATES = [(state, state) for state in ("active", "disabled", "set_aside")]
ENDPOINTS_MAX = 100
HOURS_MAX = 24 * 7


class RuleKindInfoSerializer(serializers.Serializer):
    """A kind of rule."""

    name = serializers.CharField()
    title = serializers.CharField()
    text = serializers.CharField(help_text="The condition, in a sentence.")
    parameters = serializers.DictField(help_text="The JSON schema of its parameters.")
    is_stored = serializers.BooleanField(
        help_text="What it judges is kept, so that a rule can be tried on the past."
    )


class RuleSerializer(serializers.ModelSerializer):
    """A rule."""

    parameters = serializers.DictField(help_text="Of the rule's kind.")
    endpoints: Any = serializers.PrimaryKeyRelatedField(
        many=True, read_only=True, help_text="Where its alerts go, unless to all."
    )
    state = serializers.ChoiceField(
        RULE_STATES,
        help_text="`set_aside`: it could not be evaluated; `problem` says why. A change of the "
        "rule tries it again.",
    )
    created_by = serializers.CharField(source="created_by_name")

    class Meta:
        model = Rule
        fields = [
            "id",
            "name",
            "description",
            "kind",
            "parameters",
            "job",
            "job_pattern",
            "severity",
            "hold_s",
            "cooldown_s",
            "is_enabled",
            "to_all_endpoints",
            "endpoints",
            "is_builtin",
            "state",
            "problem",
            "set_aside_at",
            "created_at",
            "changed_at",
            "created_by",
        ]
        extra_kwargs = {
            "job": {"help_text": "The id of the job that it is about; empty: not just one."},
            "job_pattern": {"help_text": "Of the names of its jobs; empty: all."},
            "hold_s": {"help_text": "The condition has to hold for so many seconds."},
            "cooldown_s": {"help_text": "No new alert within so many seconds after the last one."},
            "to_all_endpoints": {"help_text": "Its alerts go to every enabled endpoint."},
            "is_builtin": {"help_text": "Weir came with it."},
        }
        read_only_fields = fields


class RuleChangeRequest(TypedRequest):
    """Changes of a rule."""

    name = serializers.CharField(max_length=NAME_LENGTH_MAX, required=False)
    description = serializers.CharField(max_length=500, allow_blank=True, required=False)
    parameters = serializers.DictField(
        required=False, help_text="Of the rule's kind; what is left out has its default."
    )
    job = serializers.CharField(max_length=JOB_LENGTH_MAX, allow_blank=True, required=False)
    job_pattern = serializers.CharField(
        max_length=NAME_LENGTH_MAX,
        allow_blank=True,
        required=False,
        help_text="Of job names, such as `flights-*`; neither this nor `job`: all jobs.",
    )
    severity = serializers.ChoiceField(NOTICE_SEVERITIES, required=False)
    hold_s = serializers.IntegerField(min_value=0, max_value=rules.HOLD_MAX_S, required=False)
    cooldown_s = serializers.IntegerField(
        min_value=0, max_value=rules.COOLDOWN_MAX_S, required=False
    )
    is_enabled = serializers.BooleanField(required=False)
    to_all_endpoints = serializers.BooleanField(required=False)
    endpoints = serializers.ListField(
        child=serializers.UUIDField(), max_length=ENDPOINTS_MAX, required=False
    )


class RuleRequest(RuleChangeRequest):
    """A rule to create."""

    name = serializers.CharField(max_length=NAME_LENGTH_MAX)
    kind = serializers.ChoiceField(RULE_KINDS)
    severity = serializers.ChoiceField(NOTICE_SEVERITIES)


class TryRequest(TypedRequest):
    """A rule to be tried on the past: a stored one by its id, or the parts of another."""

    rule = serializers.UUIDField(required=False, help_text="A stored rule; then no other part.")
    kind = serializers.ChoiceField(RULE_KINDS, required=False)
    parameters = serializers.DictField(required=False)
    job = serializers.CharField(max_length=JOB_LENGTH_MAX, allow_blank=True, required=False)
    job_pattern = serializers.CharField(
        max_length=NAME_LENGTH_MAX, allow_blank=True, required=False
    )
    hold_s = serializers.IntegerField(min_value=0, max_value=rules.HOLD_MAX_S, required=False)
    cooldown_s = serializers.IntegerField(
        min_value=0, max_value=rules.COOLDOWN_MAX_S, required=False
    )
    hours = serializers.IntegerField(min_value=1, max_value=HOURS_MAX, default=24)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """A stored rule, or a kind.

        Raises:
            ValidationError: Both or neither are given.
        """
        if ("rule" in attrs) == ("kind" in attrs):
            raise serializers.ValidationError({"rule": ["Give a stored rule, or a kind."]})
        if "rule" in attrs and attrs.keys() - {"rule", "hours"}:
            raise serializers.ValidationError({"rule": ["Give no other part beside a rule."]})
        return attrs


class PastAlertSerializer(serializers.Serializer):
    """A time in which the rule would have fired."""

    job = serializers.CharField()
    job_name = serializers.CharField()
    subject = serializers.CharField()
    began_at = serializers.DateTimeField()
    fired_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True, help_text="Null: it would fire now.")
    summary = serializers.CharField()
    checkpoint = serializers.IntegerField(allow_null=True)


class TriedSerializer(serializers.Serializer):
    """The outcome of a rule tried on the past."""

    is_stored = serializers.BooleanField(
        help_text="False: nothing is known about the past of what this kind judges."
    )
    from_at = serializers.DateTimeField(help_text="The begin of the time it was tried on.")
    count = serializers.IntegerField(help_text="The number of alerts.")
    is_complete = serializers.BooleanField(
        help_text="False: there was more than could be read; the newest part was tried."
    )
    alerts = PastAlertSerializer(many=True, help_text="The newest first, at most 100.")


class EvidenceSerializer(serializers.Serializer):
    """A number or a word that a summary rests on."""

    name = serializers.CharField()
    value = serializers.CharField()


class LinkSerializer(serializers.Serializer):
    """A page about the alert."""

    text = serializers.CharField()
    url = serializers.CharField()


class AlertSerializer(serializers.ModelSerializer):
    """An alert."""

    rule = serializers.UUIDField(source="rule_id", allow_null=True)
    state = serializers.ChoiceField(ALERT_STATES)
    evidence = serializers.SerializerMethodField()
    links = serializers.SerializerMethodField()
    labels = serializers.DictField(child=serializers.CharField())
    acknowledged_by = serializers.CharField(source="acknowledged_by_name")
    silence = serializers.UUIDField(source="silence_id", allow_null=True)

    class Meta:
        model = Alert
        fields = [
            "id",
            "rule",
            "rule_name",
            "kind",
            "severity",
            "job",
            "job_name",
            "subject",
            "state",
            "began_at",
            "fired_at",
            "ended_at",
            "resolution",
            "summary",
            "evidence",
            "labels",
            "links",
            "checkpoint",
            "acknowledged_at",
            "acknowledged_by",
            "is_silenced",
            "silence",
            "sequence",
        ]
        extra_kwargs = {
            "began_at": {"help_text": "The begin of the condition."},
            "fired_at": {"help_text": "The condition had held for long enough."},
            "subject": {"help_text": "A part of the job, such as an operator; empty: all of it."},
            "resolution": {"help_text": "Why it ended."},
            "checkpoint": {"help_text": "The checkpoint that it is about; null: none."},
            "is_silenced": {"help_text": "A silence holds its notice back."},
            "sequence": {"help_text": "Notices so far: 1 when it fired, 2 when it was resolved."},
        }
        read_only_fields = fields

    @extend_schema_field(EvidenceSerializer(many=True))
    def get_evidence(self, alert: Alert) -> list[dict[str, str]]:
        """Pairs as objects."""
        return [{"name": name, "value": value} for name, value in alert.evidence]

    @extend_schema_field(LinkSerializer(many=True))
    def get_links(self, alert: Alert) -> list[dict[str, str]]:
        """Pairs as objects."""
        return [{"text": text, "url": url} for text, url in alert.links]


class SilenceSerializer(serializers.ModelSerializer):
    """A silence."""

    rule = serializers.UUIDField(source="rule_id", allow_null=True)
    rule_name = serializers.SerializerMethodField()
    severity = serializers.CharField(help_text="Empty: any.")
    created_by = serializers.CharField(source="created_by_name")
    ended_by = serializers.CharField(source="ended_by_name")
    is_over = serializers.SerializerMethodField()

    class Meta:
        model = Silence
        fields = [
            "id",
            "rule",
            "rule_name",
            "job",
            "job_pattern",
            "severity",
            "from_at",
            "until_at",
            "reason",
            "created_at",
            "created_by",
            "ended_at",
            "ended_by",
            "is_over",
        ]
        extra_kwargs = {"ended_at": {"help_text": "A person ended it early."}}
        read_only_fields = fields

    def get_rule_name(self, silence: Silence) -> str | None:
        """The name of its rule."""
        return silence.rule.name if silence.rule else None

    def get_is_over(self, silence: Silence) -> bool:
        """Whether its time has passed."""
        if "now" not in self.context:  # Of all rows of a page: each look at the clock is a query.
            self.context["now"] = clock.now()
        is_over: bool = silence.until_at <= self.context["now"]
        return is_over


class SilenceRequest(TypedRequest):
    """A silence to create; without a scope it is about every alert."""

    rule = serializers.UUIDField(required=False)
    job = serializers.CharField(max_length=JOB_LENGTH_MAX, allow_blank=True, required=False)
    job_pattern = serializers.CharField(
        max_length=NAME_LENGTH_MAX, allow_blank=True, required=False
    )
    severity = serializers.ChoiceField(NOTICE_SEVERITIES, required=False)
    from_at = serializers.DateTimeField(required=False, help_text="Now, unless given.")
    until_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=REASON_LENGTH_MAX)
