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


class UserThrottle(_PassingWithoutCounters, throttling.UserRateThrottle):
    """By account, its tokens together."""


class AnonymousThrottle(_PassingWithoutCounters, throttling.AnonRateThrottle):
    """By address, for whoever does not say who they are, or says it wrongly.

    Nothing is open to them, so this counts refusals: an address that is over its limit hears 429
    instead of 401, and who comes from there with a token that counts is served all the same.
    """
