"""The only writers of accounts and tokens. Each change leaves an audit entry.

A token's role is at most that of the account that creates it. There is always an admin left.
"""

import secrets
from datetime import datetime, timedelta
from typing import Literal

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q

from controlplane.accounts.models import Role, Token, User, digest_of, new_secret
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import Forbidden, Invalid, NotFound, WrongState

TOKEN_LIFETIME = timedelta(days=90)  # Unless another end, or none, is asked for.
TOKEN_ROLE = Role.VIEWER  # Unless another role is asked for.

USERNAME = r"^[\w.@+-]+\Z"  # As Django's own names of users.
USERNAME_LENGTH_MAX = 150

_HINT_LENGTH = 9  # "weir_" and four characters: tells tokens apart, and leaves enough to guess.


def new_password() -> str:
    """A random password."""
    return secrets.token_urlsafe(18)


def create_user(
    actor: User | None, name: str, role: Role, *, password: str | None = None, email: str = ""
) -> tuple[User, str]:
    """A new account and its password, which is generated unless given.

    Raises:
        Invalid: The name is taken or malformed, or the password is too weak.
    """
    user = User(username=name, email=email)
    _take_role(user, role)
    if password is None:
        password = new_password()
    else:
        _check_password(password, user)
    user.set_password(password)
    try:
        user.full_clean(validate_unique=False)
        with transaction.atomic():
            user.save(force_insert=True)
            record(actor, "user.create", _named(user), after=_shown(user))
    except ValidationError as error:
        raise Invalid(
            "The account cannot be created like this.", errors=error.message_dict
        ) from error
    except IntegrityError as error:
        said = f"The name {name} is taken; choose another one."
        raise Invalid(said, errors={"username": [said]}) from error
    return user, password


@transaction.atomic
def set_role(actor: User | None, user_id: int, role: Role) -> User:
    """Change a user's role.

    Raises:
        WrongState: The change would leave no admin.
    """
    user = locked(user_id)
    before = _shown(user)
    if role is not Role.ADMIN:
        check_admin_left(user)
    _take_role(user, role)
    user.save(update_fields=["role", "is_staff", "is_superuser"])
    if before != _shown(user):
        record(actor, "user.set_role", _named(user), before=before, after=_shown(user))
    return user


@transaction.atomic
def set_active(actor: User | None, user_id: int, is_active: bool) -> User:
    """Close an account, with all its tokens and sessions, or open it again.

    Raises:
        WrongState: The change would leave no admin.
    """
    user = locked(user_id)
    if user.is_active == is_active:
        return user
    if not is_active:
        check_admin_left(user)
    user.is_active = is_active
    user.save(update_fields=["is_active"])
    user.sessions.all().delete()
    record(
        actor,
        "user.open" if is_active else "user.close",
        _named(user),
        before={"is_active": not is_active},
        after={"is_active": is_active},
    )
    return user


@transaction.atomic
def set_password(actor: User | None, user_id: int, password: str | None = None) -> str:
    """Give a user another password, generated unless given; it ends the user's sessions.

    Raises:
        Invalid: The password is too weak.
    """
    user = locked(user_id)
    if password is None:
        password = new_password()
    else:
        _check_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    user.sessions.all().delete()
    record(actor, "user.set_password", _named(user))
    return password


@transaction.atomic
def ensure_account(name: str, password: str, role: Role) -> User:
    """The account with this name and password, created in this role if there is none.

    For the control plane that starts itself on one machine and prints the login. An existing
    account keeps its role.
    """
    user = User.objects.select_for_update().filter(username=name).first()
    if user is None:
        return create_user(None, name, role, password=password)[0]
    if not user.check_password(password):
        set_password(None, user.pk, password)
    return set_active(None, user.pk, True)


def create_token(
    actor: User | None,
    user: User,
    name: str,
    role: Role = TOKEN_ROLE,
    *,
    expires_at: datetime | Literal["default"] | None = "default",
    role_max: Role | None = None,
) -> tuple[Token, str]:
    """A new token of a user, and its secret, which is not shown again.

    Args:
        expires_at: Its end; None: it has none; by default after ``TOKEN_LIFETIME``.
        role_max: The creator's role; None: no bound but the user's role.

    Raises:
        Forbidden: The token's role would be higher than the creator's or the user's.
        Invalid: ``expires_at`` is in the past.
    """
    limit = min(role_max or Role.ADMIN, user.effective_role, key=lambda one: one.rank)
    if role.rank > limit.rank:
        raise Forbidden(f"The token can have the role {limit.value} at most, not {role.value}.")
    now = clock.now()
    if expires_at == "default":
        expires_at = now + TOKEN_LIFETIME
    if expires_at is not None and expires_at <= now:
        said = "This time is in the past; give a later one."
        raise Invalid(said, errors={"expires_at": [said]})
    secret = new_secret()
    with transaction.atomic():
        token = Token.objects.create(
            user=user,
            name=name,
            role=role,
            digest=digest_of(secret),
            hint=secret[:_HINT_LENGTH],
            created_at=now,
            expires_at=expires_at,
        )
        after = {
            "user": user.get_username(),
            "name": name,
            "role": role.value,
            "expires_at": expires_at and expires_at.isoformat(),
        }
        record(actor, "token.create", f"token/{token.pk}", after=after)
    return token, secret


@transaction.atomic
def revoke(actor: User | None, token: Token) -> Token:
    """Revoke a token: requests with it are refused from now on. Idempotent."""
    token = Token.objects.select_for_update().get(pk=token.pk)
    if token.revoked_at is None:
        token.revoked_at = clock.now()
        token.save(update_fields=["revoked_at"])
        after = {"revoked_at": token.revoked_at.isoformat()}
        record(actor, "token.revoke", f"token/{token.pk}", after=after)
    return token


def check_admin_left(user: User) -> None:
    """Check that there is an admin beside this user.

    Raises:
        WrongState: The user is the last admin.
    """
    others = User.objects.filter(Q(role=Role.ADMIN) | Q(is_superuser=True), is_active=True)
    if user.effective_role is Role.ADMIN and not others.exclude(pk=user.pk).exists():
        raise WrongState(
            f"{user.get_username()} is the last admin; make another account an admin first.",
            state="last_admin",
            allowed=[],
        )


# --------------------------------------------------------------------------------------------------


def _take_role(user: User, role: Role) -> None:
    """Set the role and, from it, Django's own flags, so that both agree."""
    user.role = role
    user.is_staff = user.is_superuser = role is Role.ADMIN


def locked(user_id: int) -> User:
    """The user, locked with all admins in one order, so that no two demote each other at once."""
    condition = Q(pk=user_id) | Q(role=Role.ADMIN) | Q(is_superuser=True)
    by_id = {u.pk: u for u in User.objects.select_for_update().filter(condition).order_by("pk")}
    if user_id not in by_id:
        raise NotFound(f"There is no user {user_id}.")
    return by_id[user_id]


def _check_password(password: str, user: User) -> None:
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(" ".join(error.messages), errors={"password": error.messages}) from error


def _named(user: User) -> str:
    return f"user/{user.get_username()}"


def _shown(user: User) -> dict[str, object]:
    return {"role": user.effective_role.value, "is_active": user.is_active}
