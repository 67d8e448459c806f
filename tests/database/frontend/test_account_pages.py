"""The pages of accounts: one's own password, tokens and logins, and an admin's view of all."""

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import Settings

from controlplane.accounts import sessions
from controlplane.accounts.models import Role, Session, Token, User
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.limits import counters
from controlplane.base.limits.rates import Rate
from tests import factories

pytestmark = pytest.mark.django_db

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:130.0) Gecko/20100101 Firefox/130.0"
NEW = "another long enough password"


@pytest.fixture
def mara() -> User:
    return factories.user(Role.OPERATOR, "mara")


def login(user: User, browser: str = FIREFOX) -> Client:
    """A browser that has logged in by the form."""
    client = Client(headers={"User-Agent": browser})
    sent = {"username": user.username, "password": factories.PASSWORD}
    assert client.post("/login/", sent).status_code == 302
    return client


def is_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


def shown_secret(content: bytes) -> str:
    shown = re.search(r'id="secret">([^<]+)<', content.decode())
    assert shown is not None
    return shown[1]


def moved(session: Session, **columns: timedelta) -> None:
    """Let a session's times have been so long ago."""
    Session.objects.filter(pk=session.pk).update(
        **{name: getattr(session, name) - ago for name, ago in columns.items()}
    )


def test_a_login_is_listed_with_its_browser_and_can_be_ended_from_another(mara: User) -> None:
    here, there = login(mara), login(mara, "curl/8")
    page = here.get("/account/").content.decode()
    assert "Firefox on Linux" in page
    assert "curl/8" in page
    assert page.count("this one") == 1
    other = Session.objects.get(browser="curl/8")
    assert other.pk not in page
    here.post("/account/sessions/end", {"session": sessions.handle(other.pk)})
    assert is_in(here)
    assert not is_in(there)
    entry = AuditEntry.objects.get(action="user.end_sessions")
    assert (entry.target, entry.after) == ("user/mara", {"ended": 1})


def test_all_other_logins_end_at_once_and_those_of_others_stay(mara: User) -> None:
    here, there, too = (login(mara) for _ in range(3))
    stranger = login(factories.user(Role.VIEWER))
    here.post("/account/sessions/end", {"session": "others"})
    assert [is_in(one) for one in (here, there, too, stranger)] == [True, False, False, True]


def test_a_login_of_another_account_cannot_be_ended_by_its_handle(mara: User) -> None:
    here, stranger = login(mara), login(factories.user(Role.VIEWER, "other"))
    (theirs,) = Session.objects.filter(user__username="other")
    answer = here.post(
        "/account/sessions/end", {"session": sessions.handle(theirs.pk)}, follow=True
    )
    assert b"This login has ended already" in answer.content
    assert is_in(stranger)


def test_a_session_ends_when_it_was_not_used_for_long_enough(
    mara: User, settings: Settings
) -> None:
    settings.WEIR_SESSION_IDLE_MINUTES = 30
    client = login(mara)
    (session,) = Session.objects.all()
    used = timedelta(minutes=29)
    moved(session, used_at=used, expire_date=used)
    assert is_in(client)  # A use, from which the time counts anew.
    session.refresh_from_db()
    assert session.expire_date > timezone.now() + timedelta(minutes=29)
    unused = timedelta(minutes=31)
    moved(session, used_at=unused, expire_date=unused)
    assert not is_in(client)


def test_a_session_ends_at_its_absolute_end_however_much_it_is_used(
    mara: User, settings: Settings
) -> None:
    settings.WEIR_SESSION_IDLE_MINUTES = 30
    settings.SESSION_COOKIE_AGE = 86_400
    client = login(mara)
    assert b"later if it is used, at the latest <time" in client.get("/account/").content
    (session,) = Session.objects.all()
    began = timedelta(hours=23, minutes=50)
    moved(session, began_at=began, used_at=timedelta(minutes=5))
    assert is_in(client)
    session.refresh_from_db()
    assert timezone.now() + timedelta(minutes=9) < session.expire_date
    assert session.expire_date < timezone.now() + timedelta(minutes=11)
    shown = client.get("/account/").content
    assert b"however much it is used" in shown
    assert b"later if it is used" not in shown


def test_a_session_that_is_changed_keeps_its_beginning(mara: User) -> None:
    client = login(mara)
    (session,) = Session.objects.all()
    store = sessions.SessionStore(session.pk)
    store["anything"] = 1
    store.save()
    changed = Session.objects.get(pk=session.pk)
    assert changed.began_at == session.began_at
    assert (changed.browser, changed.user) == (FIREFOX, mara)
    assert is_in(client)


def test_a_use_is_noted_once_a_minute(mara: User) -> None:
    client = login(mara)
    (session,) = Session.objects.all()
    assert is_in(client)
    assert Session.objects.get().used_at == session.used_at
    moved(session, used_at=timedelta(minutes=1))
    assert is_in(client)
    assert Session.objects.get().used_at > session.used_at - timedelta(seconds=30)


def test_a_password_is_changed_with_the_present_one_and_other_logins_end(mara: User) -> None:
    here, there = login(mara), login(mara)
    fields = {"old": factories.PASSWORD, "password": NEW, "again": NEW}
    answer = here.post("/account/password", fields, follow=True)
    assert b"Your password was changed" in answer.content
    mara.refresh_from_db()
    assert mara.check_password(NEW)
    assert is_in(here)
    assert not is_in(there)
    assert Session.objects.count() == 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"old": "wrong"}, "This is not your present password."),
        ({"again": "a different long one"}, "The two new passwords differ."),
        ({"password": "short", "again": "short"}, "at least 12 characters"),
        ({"password": ""}, "Give a password."),
    ],
)
def test_a_password_is_not_changed(mara: User, changed: dict[str, str], said: str) -> None:
    client = login(mara)
    fields = {"old": factories.PASSWORD, "password": NEW, "again": NEW}
    answer = client.post("/account/password", fields | changed)
    assert answer.status_code == 400
    assert said in answer.content.decode()
    assert factories.PASSWORD not in answer.content.decode()
    mara.refresh_from_db()
    assert mara.check_password(factories.PASSWORD)


def test_guesses_of_the_present_password_are_throttled(
    mara: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "time", SimpleNamespace(time=lambda: 1_800.0))
    settings.WEIR_THROTTLE_LOGIN_ACCOUNT = Rate(2, 3_600)
    cache.clear()
    client = login(mara)
    fields = {"old": "wrong", "password": NEW, "again": NEW}
    answers = [client.post("/account/password", fields) for _ in range(4)]
    cache.clear()
    assert [answer.status_code for answer in answers] == [400, 400, 429, 429]
    assert b"Too many logins have failed" in answers[-1].content


def test_a_token_is_created_with_its_secret_shown_once_and_revoked(mara: User) -> None:
    client = login(mara)
    form = client.get("/account/tokens/new").content.decode()
    assert 'value="operator"' in form
    assert 'value="admin"' not in form
    fields = {"name": "wallboard", "role": "viewer", "expires_at": "30"}
    secret = shown_secret(client.post("/account/tokens/new", fields).content)
    (token,) = Token.objects.all()
    assert token.expires_at is not None
    assert timedelta(days=29) < token.expires_at - clock.now() <= timedelta(days=30)
    page = client.get("/account/").content.decode()
    assert "wallboard" in page
    assert secret not in page
    program = Client(headers={"Authorization": f"Bearer {secret}"})
    assert program.get("/api/v1/me").json()["role"] == "viewer"
    assert b"Revoke token wallboard?" in client.get(f"/account/tokens/{token.pk}/revoke").content
    client.post(f"/account/tokens/{token.pk}/revoke")
    assert program.get("/api/v1/me").status_code == 401
    assert "wallboard" not in client.get("/account/").content.decode().split("</table>")[-1]


def test_a_token_with_too_high_a_role_is_refused(mara: User) -> None:
    fields = {"name": "x", "role": "admin", "expires_at": "never"}
    assert login(mara).post("/account/tokens/new", fields).status_code == 400
    assert not Token.objects.exists()


def test_a_token_of_another_account_is_not_there(mara: User) -> None:
    token = factories.token(factories.user(Role.OPERATOR), "theirs")
    assert login(mara).post(f"/account/tokens/{token.pk}/revoke").status_code == 404
    token.refresh_from_db()
    assert token.revoked_at is None


def test_an_admin_creates_an_account_whose_password_logs_in() -> None:
    admin = login(factories.user(Role.ADMIN))
    fields = {"username": "new.one", "email": "", "role": "operator"}
    password = shown_secret(admin.post("/accounts/new", fields).content)
    made = User.objects.get(username="new.one")
    assert made.role == Role.OPERATOR
    assert Client().login(username="new.one", password=password)
    taken = admin.post("/accounts/new", fields)
    assert taken.status_code == 400
    assert b"is taken; choose another one" in taken.content
    assert "new.one" in admin.get("/accounts/").content.decode()


def test_an_admin_closes_an_account_and_its_logins_end(mara: User) -> None:
    admin, client = login(factories.user(Role.ADMIN)), login(mara)
    assert b"Firefox on Linux" in admin.get(f"/accounts/{mara.pk}/").content
    admin.post(f"/accounts/{mara.pk}/change", {"role": "viewer"})
    mara.refresh_from_db()
    assert (mara.role, mara.is_active) == (Role.VIEWER, False)
    assert not is_in(client)
    assert not Session.objects.filter(user=mara).exists()
    assert b"closed" in admin.get("/accounts/").content


def test_the_last_admin_stays_one() -> None:
    user = factories.user(Role.ADMIN, "ada")
    answer = login(user).post(f"/accounts/{user.pk}/change", {"role": "viewer", "is_active": "on"})
    assert answer.status_code == 409
    assert b"ada is the last admin" in answer.content
    user.refresh_from_db()
    assert user.role == Role.ADMIN


def test_an_admin_replaces_a_password_and_ends_logins(mara: User) -> None:
    admin, client = login(factories.user(Role.ADMIN)), login(mara)
    assert b"Replace the password of mara?" in admin.get(f"/accounts/{mara.pk}/password").content
    assert is_in(client)
    password = shown_secret(admin.post(f"/accounts/{mara.pk}/password").content)
    assert not is_in(client)
    again = Client()
    assert again.login(username="mara", password=password)
    assert is_in(again)
    admin.post(f"/accounts/{mara.pk}/logins/end")
    assert not is_in(again)
