"""Throttles that let requests pass while their counters cannot be reached.

They protect the service from one caller; being strict about it without Redis would take the whole
API away from everybody.
"""

import logging
from typing import TYPE_CHECKING

from django.http import HttpRequest
from redis.exceptions import RedisError
from rest_framework import throttling

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)


class _PassingWithoutCounters(throttling.SimpleRateThrottle):
    def allow_request(self, request: HttpRequest, view: "APIView") -> bool:
        try:
            return bool(super().allow_request(request, view))
        except RedisError as error:
            logger.warning("Requests are not throttled: %s", error)
            return True


class AnonymousThrottle(_PassingWithoutCounters, throttling.AnonRateThrottle):
    """By address, for whoever has not said who they are."""


class UserThrottle(_PassingWithoutCounters, throttling.UserRateThrottle):
    """By account, its tokens together."""
