"""Sessions of logins, as rows that name their account, with an idle and an absolute end.

A session ends ``WEIR_SESSION_IDLE_MINUTES`` after its last use, and ``WEIR_SESSION_DAYS`` after its
login however much it is used. A request and the event stream of an open page are uses; they are
noted once a minute. Django ends a session also when its account's password changes.

This is Django's database engine with columns of its own, as its documentation describes (sessions,
"Extending database-backed session engines"). Like Django's own check of a session's end it goes by
the web process's clock: the database's would cost a query for each request.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from controlplane.accounts.models import Session, User, digest_of
from controlplane.audit.models import record
from controlplane.base import unusable_database

NOTED_AFTER = timedelta(minutes=1)
BROWSER_LENGTH_MAX = 200

_BEGAN, _BROWSER = "began", "browser"  # Keys of a session's data.
_HANDLE_LENGTH = 16


class SessionStore(DatabaseStore):
    """The data of one session, and its row."""

    @classmethod
    def get_model_class(cls) -> type[Session]:
        """The model of the rows."""
        return Session

    def create_model_instance(self, data: dict[str, Any]) -> Session:
        """The row of this session, used now."""
        now = timezone.now()
        began = datetime.fromisoformat(data.setdefault(_BEGAN, now.isoformat()))
        row = super().create_model_instance(data)
        assert isinstance(row, Session)
        row.user_id = int(data[SESSION_KEY]) if SESSION_KEY in data else None
        row.browser = data.get(_BROWSER, "")
        row.began_at, row.used_at, row.expire_date = began, now, _end(began, now)
        return row

    def _get_session_from_db(self) -> Session | None:
        row: Session | None = super()._get_session_from_db()  # type: ignore[misc]  # Not in the stubs.
        now = timezone.now()
        if row is not None and now - row.used_at >= NOTED_AFTER:
            end = _end(row.began_at, now)
            with unusable_database.notes("the use of a session"):
                Session.objects.filter(pk=row.pk).update(used_at=now, expire_date=end)
        return row


def note_login(request: HttpRequest) -> None:
    """Begin the session of a login: its time counts from now, and the list shows its browser."""
    request.session[_BEGAN] = timezone.now().isoformat()
    request.session[_BROWSER] = request.headers.get("User-Agent", "")[:BROWSER_LENGTH_MAX]


def sessions_of(user: User) -> list[Session]:
    """The sessions of an account that have not ended, the last used one first."""
    rows = Session.objects.filter(user=user, expire_date__gt=timezone.now())
    return list(rows.defer("session_data").order_by("-used_at", "session_key"))


def latest_end(began: datetime) -> datetime:
    """The absolute end of a session, however much it is used."""
    return began + timedelta(seconds=settings.SESSION_COOKIE_AGE)


def handle(session_key: str) -> str:
    """A name for a session that does not give its key away."""
    return digest_of(session_key)[:_HANDLE_LENGTH]


@transaction.atomic
def end(actor: User, user: User, sessions: Iterable[Session]) -> int:
    """End sessions of an account: their next request has to log in. Return how many there were."""
    keys = [session.pk for session in sessions]
    count, _ = Session.objects.filter(user=user, pk__in=keys).delete()
    if count:
        record(actor, "user.end_sessions", f"user/{user.get_username()}", after={"ended": count})
    return count


def _end(began: datetime, used: datetime) -> datetime:
    idle = timedelta(minutes=settings.WEIR_SESSION_IDLE_MINUTES)
    return min(used + idle, latest_end(began))
