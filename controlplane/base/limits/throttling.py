"""Throttles that let requests pass while their counters cannot be reached.

They protect the service from a single caller; refusing requests while Redis is away would close the
API to all callers. Their keys in Redis are hashed, so that no client decides over their length, and
no reader of the cache learns addresses from them.
"""

import logging
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from rest_framework import throttling
from rest_framework.request import Request

from controlplane.base.limits import addresses, counters

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)


class _PassingWithoutCounters(throttling.SimpleRateThrottle):
    def allow_request(self, request: Request, view: "APIView") -> bool:
        if counters.redis_pause.lasts:
            return True
        try:
            return super().allow_request(request, view)
        except RedisError as error:
            counters.redis_pause.begin()
            logger.warning("requests are not throttled while Redis is away or full: %s", error)
            return True

    def get_ident(self, request: Request) -> str:
        return addresses.source(request.META.get("REMOTE_ADDR"))

    def get_cache_key(self, request: Request, view: "APIView") -> str | None:
        key = super().get_cache_key(request, view)
        return None if key is None else counters.hashed("throttle", key)


class UserThrottle(_PassingWithoutCounters, throttling.UserRateThrottle):
    """Throttling by account; all tokens of an account count together."""


class AnonymousThrottle(_PassingWithoutCounters, throttling.AnonRateThrottle):
    """Throttling by address, for requests without credentials or with wrong ones.

    Nothing is open to such requests, so this counts refusals: an address over its limit gets 429
    instead of 401, while requests from the same address with a valid token are served.
    """
