"""The saved filters of an account: the names that it has given to filters of the overview."""

from dataclasses import dataclass

from django.db import transaction
from django.http import QueryDict
from django.urls import reverse

from controlplane.accounts.models import User
from controlplane.base import clock
from controlplane.base.errors import Invalid
from frontend.models import NAME_LENGTH_MAX, SavedFilter
from frontend.overview.filters import Wanted

FILTERS_MAX = 20  # Of an account.


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved filter as the overview shows it."""

    id: int
    name: str
    url: str
    is_shown: bool  # The overview shows its jobs now.


def saved_filters(user: User, wanted: Wanted) -> list[Saved]:
    """The account's filters by name. One query."""
    shown = wanted.at(1)
    return [_saved(row, shown) for row in SavedFilter.objects.filter(user=user)]


def _saved(row: SavedFilter, shown: Wanted) -> Saved:
    wanted = Wanted.read(QueryDict(row.query))  # It may be of a version with other filters.
    return Saved(row.pk, row.name, reverse("job-list") + wanted.query(), wanted.at(1) == shown)


def save(user: User, name: str, wanted: Wanted) -> None:
    """Give filters a name; those that had it before lose it.

    Raises:
        Invalid: The name is none, no filter is given, or the account has ``FILTERS_MAX`` others.
    """
    name = " ".join(name.split())
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise Invalid(f"Give the filter a name of 1 to {NAME_LENGTH_MAX} printable characters.")
    if not wanted.is_narrow:
        raise Invalid("Choose a state, a label or a text to search for; then save the filter.")
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=user.pk)  # One save at a time counts.
        others = SavedFilter.objects.filter(user=user).exclude(name=name).count()
        if others >= FILTERS_MAX:
            raise Invalid(f"You have {FILTERS_MAX} saved filters; delete one first.")
        SavedFilter.objects.update_or_create(
            user=user,
            name=name,
            defaults={
                "query": wanted.at(1).query().removeprefix("?"),
                "created_at": clock.now(),
            },
        )


def delete(user: User, id: int) -> None:
    """Delete a filter of the account's; one that is gone stays so."""
    SavedFilter.objects.filter(user=user, pk=id).delete()
