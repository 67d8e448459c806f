"""The login with name and password: throttled, audited, and the same for pages and admin site.

An attempt counts before its password is looked at, so that of many at once no more than the rate
are hashed, and is taken back when it succeeds. An address may fail so often, over all accounts
(``WEIR_THROTTLE_LOGIN_ADDRESS``), and an account so often, over all addresses
(``WEIR_THROTTLE_LOGIN_ACCOUNT``). Then even the right password is refused, without a look.

Both alone would let a stranger lock an owner out, by failing on purpose. So an address from which
an account logged in within the last ``KNOWN_FOR_S`` seconds is *known* to it: attempts from there
on this account have a count of their own, and only that one.
"""

import logging

from django.conf import settings
from django.contrib import auth
from django.core.cache import cache
from django.http import HttpRequest
from redis.exceptions import RedisError

from controlplane.accounts.models import User
from controlplane.audit.models import record, record_refusal
from controlplane.base.errors import Refusal
from controlplane.base.limits import addresses, counters
from controlplane.base.limits.counters import Taken

KNOWN_FOR_S = 30 * 86_400

logger = logging.getLogger(__name__)


class TooManyAttempts(Refusal):
    """Too many logins failed from the address or for the account, for ``retry_after_s`` seconds."""

    code = "throttled"
    status = 429
    title = "Too many attempts"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            f"Too many logins have failed. Try again in {_duration(retry_after_s)}; until then the "
            "right password is refused as well.",
            retry_after_s=retry_after_s,
        )
        self.retry_after_s = retry_after_s


def authenticate(request: HttpRequest, username: str, password: str) -> User | None:
    """The open account with this name and password; None: there is none.

    Raises:
        TooManyAttempts: The address or the account has failed too often; nothing was looked at.
    """
    source = addresses.source(request.META.get("REMOTE_ADDR"))
    taken = _take(source, username)
    user = auth.authenticate(request, username=username, password=password)
    if user is None:
        record_refusal(None, "user.login_failed", _target(username))
        return None
    assert isinstance(user, User)
    for one in taken:
        counters.give_back(one)
    _remember(source, username)
    return user


def note_login(user: User) -> None:
    """Leave the audit entry of a login."""
    record(user, "user.login", f"user/{user.get_username()}")


def note_logout(user: User) -> None:
    """Leave the audit entry of a logout."""
    record(user, "user.logout", f"user/{user.get_username()}")


def _take(source: str, username: str) -> list[Taken]:
    account_rate = settings.WEIR_THROTTLE_LOGIN_ACCOUNT
    if _is_known(source, username):
        wanted = [("login-known", f"{source} {username}", account_rate)]
    else:
        wanted = [
            ("login-address", source, settings.WEIR_THROTTLE_LOGIN_ADDRESS),
            ("login-account", username, account_rate),
        ]
    taken: list[Taken] = []
    for purpose, subject, rate in wanted:
        taken.append(counters.take(purpose, subject, rate))
        if taken[-1].is_over:
            if taken[-1].is_first_over:
                record_refusal(None, "user.login_throttled", _target(username))
            for one in taken[:-1]:
                counters.give_back(one)
            raise TooManyAttempts(taken[-1].left_s)
    return taken


def _target(username: str) -> str:
    """The account's name if there is such an account.

    Other names are left out: people type passwords into the field of the name.
    """
    is_account = User.objects.filter(username=username).exists()
    return f"user/{username}" if is_account else "user"


def _is_known(source: str, username: str) -> bool:
    try:
        return cache.get(_known_key(source, username)) is not None
    except RedisError:
        return False  # The stricter counts hold, in this process.


def _remember(source: str, username: str) -> None:
    try:
        cache.set(_known_key(source, username), 1, KNOWN_FOR_S)
    except RedisError as error:
        logger.warning("the address of a login is not remembered: %s", error)


def _known_key(source: str, username: str) -> str:
    return counters.hashed("login-from", f"{source} {username}")


def _duration(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} seconds" if seconds != 1 else "a second"
    minutes = -(-seconds // 60)
    return f"{minutes} minutes" if minutes != 1 else "a minute"
