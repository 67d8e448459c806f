"""The chain of audit entries: each kind of forgery shows, and honest work does not."""

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from threading import Event, Thread

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from controlplane.accounts.models import Role, User
from controlplane.audit import chain
from controlplane.audit.models import AuditChain, AuditEntry, record, record_refusal
from controlplane.base import clock
from controlplane.base.ticks import Budget
from tests import factories
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db

LONG = 60.0


def write(count: int, actor: User | None = None) -> list[AuditEntry]:
    """Entries with something in every column."""
    return [
        record(actor, "job.cancel", f"job/{n}", before={"n": n / 3}, after={"é": [n, None]})
        for n in range(1, count + 1)
    ]


def sealed(count: int) -> list[AuditEntry]:
    """Entries in the chain, by their numbers."""
    write(count)
    assert chain.seal(Budget(LONG)) == count
    return list(AuditEntry.objects.order_by("number"))


def test_sealed_entries_have_numbers_without_gaps_and_verify() -> None:
    sealed(5)
    result = chain.verify()
    assert (result.first, result.last, result.count, result.waiting) == (1, 5, 5, 0)
    assert result.problems == []
    assert result.digest == AuditEntry.objects.get(number=5).digest
    assert chain.seal(Budget(LONG)) == 0


def test_an_entry_that_is_not_sealed_yet_waits_and_is_no_problem() -> None:
    sealed(2)
    write(1)
    result = chain.verify()
    assert (result.count, result.waiting, result.problems) == (2, 1, [])


FORGERIES: dict[str, Callable[[], object]] = {
    "changed": lambda: AuditEntry.objects.filter(number=3).update(actor_name="mara"),
    "changed inside": lambda: AuditEntry.objects.filter(number=3).update(before={"n": 2}),
    "at another time": lambda: AuditEntry.objects.filter(number=3).update(
        at=clock.now() - timedelta(days=1)
    ),
    "counted": lambda: AuditEntry.objects.filter(number=3).update(count=7),
    "deleted": lambda: AuditEntry.objects.get(number=3).delete(),
    "deleted at the end": lambda: AuditEntry.objects.get(number=5).delete(),
    "deleted at the beginning": lambda: AuditEntry.objects.get(number=1).delete(),
    "exchanged": lambda: (
        AuditEntry.objects.filter(number=3).update(number=6),
        AuditEntry.objects.filter(number=4).update(number=3),
        AuditEntry.objects.filter(number=6).update(number=4),
    ),
    "inserted twice": lambda: factories.audit_entry(number=3, digest="0" * 64),
    "put behind the end": lambda: factories.audit_entry(number=6, digest="0" * 64),
    "head put back": lambda: AuditChain.objects.update(number=4),
    "beginning put forward": lambda: AuditChain.objects.update(removed_number=1),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_every_forgery_shows(forgery: str) -> None:
    sealed(5)
    FORGERIES[forgery]()
    assert chain.verify().problems, forgery


def test_a_gap_is_named_by_its_numbers() -> None:
    sealed(6)
    AuditEntry.objects.filter(number__in=(3, 4)).delete()
    assert chain.verify().problems[0] == "entries 3 to 4 are missing"


def test_a_whole_forged_chain_disagrees_with_a_head_noted_before() -> None:
    head = (3, sealed(3)[-1].digest)
    assert chain.verify(head).problems == []
    AuditEntry.objects.filter(number=2).update(actor_name="mara", number=None)
    AuditEntry.objects.update(number=None, digest="")
    AuditChain.objects.update(number=0, digest="")
    assert chain.seal(Budget(LONG)) == 3
    assert chain.verify().problems == []  # It is whole by itself.
    (problem,) = chain.verify(head).problems
    assert "is missing: the log was forged" in problem


def test_a_closed_account_that_is_deleted_changes_no_entry() -> None:
    actor = factories.user(Role.OPERATOR)
    write(2, actor)
    chain.seal(Budget(LONG))
    actor.delete()
    assert AuditEntry.objects.filter(actor=None).count() == 2
    assert chain.verify().problems == []


def test_counted_refusals_are_sealed_once_their_hour_is_over() -> None:
    for _ in range(3):
        record_refusal(None, "access.refused", "page/x")
    assert chain.seal(Budget(LONG)) == 0
    (entry,) = AuditEntry.objects.all()
    assert entry.count == 3
    AuditEntry.objects.update(at=clock.now() - chain.COUNTED_FOR)
    assert chain.seal(Budget(LONG)) == 1
    record_refusal(None, "access.refused", "page/x")  # Its fold is of another hour, or the same.
    assert chain.verify().problems == []


def test_more_entries_than_a_batch_are_sealed_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BATCH", 4)
    sealed(10)
    assert chain.verify().count == 10
    write(10)
    assert chain.seal(Budget(0.0)) == 0  # No time: the next look goes on.
    assert chain.verify().waiting == 10


def test_removed_entries_leave_a_chain_that_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BATCH", 4)
    entries = sealed(10)
    old = clock.now() - timedelta(days=3)
    AuditEntry.objects.filter(number__lte=6).update(at=old)
    AuditEntry.objects.filter(number=9).update(at=old)  # Behind a younger one: it stays.
    reseal()
    assert chain.remove(old + timedelta(seconds=1), Budget(LONG)) == 6
    assert list(AuditEntry.objects.filter(number__lte=10).values_list("number", flat=True)) == [
        *(10, 8, 7, 9)
    ]
    chain.seal(Budget(LONG))
    result = chain.verify()
    assert (result.first, result.problems) == (7, [])
    removals = AuditEntry.objects.filter(action="audit.remove").order_by("number")
    assert [(r.before["from"], r.after["up_to"]) for r in removals] == [(1, 4), (5, 6)]
    assert chain.remove(old + timedelta(seconds=1), Budget(LONG)) == 0
    AuditEntry.objects.create(
        **{name: getattr(entries[2], name) for name in ("at", "actor_name", "action", "target")},
        number=3,
        digest=entries[2].digest,
    )
    problem = "entry 3 is there, although retention has removed its number"
    assert problem in chain.verify().problems


def reseal() -> None:
    """Seal entries anew that a test has changed."""
    order = list(AuditEntry.objects.order_by("number").values_list("pk", flat=True))
    AuditEntry.objects.update(number=None, digest="")
    AuditChain.objects.update(number=0, digest="")
    assert chain.seal(Budget(LONG)) == len(order)


@pytest.mark.django_db(transaction=True)
def test_an_entry_that_commits_late_is_sealed_behind_later_ones() -> None:
    """Ids come with the insert, numbers with the seal: a slow transaction leaves no gap."""
    written, may_commit = Event(), Event()

    def commit_late() -> None:
        with transaction.atomic():
            record(None, "job.cancel", "job/slow")
            written.set()
            may_commit.wait(60)
        connection.close()

    slow = Thread(target=commit_late)
    slow.start()
    try:
        assert written.wait(60)
        record(None, "job.cancel", "job/fast")
        assert chain.seal(Budget(LONG)) == 1
    finally:
        may_commit.set()
        slow.join()
    assert chain.seal(Budget(LONG)) == 1
    order = AuditEntry.objects.order_by("number").values_list("target", "number")
    assert list(order) == [("job/fast", 1), ("job/slow", 2)]
    assert AuditEntry.objects.get(number=2).pk < AuditEntry.objects.get(number=1).pk
    assert chain.verify().problems == []


@pytest.mark.django_db(transaction=True)
def test_two_sealers_at_once_number_each_entry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "BATCH", 5)
    write(100)
    counts: list[int] = []

    def work() -> None:
        try:
            while AuditEntry.objects.filter(number=None).exists():
                counts.append(chain.seal(Budget(LONG)))
        finally:
            connection.close()

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: sum(counts) == 100, "every entry is sealed by one of them")
    assert chain.verify().problems == []
    numbers = AuditEntry.objects.order_by("number").values_list("number", flat=True)
    assert list(numbers) == list(range(1, 101))


# The command --------------------------------------------------------------------------------------


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("weir_audit", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_seals_verifies_and_prints_the_head() -> None:
    write(3)
    head = AuditEntry.objects.filter(number=3)
    lines = run("verify").splitlines()
    assert lines == ["entries 3, numbers 1 to 3", "waiting 0", f"head 3:{head.get().digest}"]
    assert run("verify", "--expect", lines[2].removeprefix("head ")).splitlines() == lines


def test_the_command_fails_where_an_entry_was_changed() -> None:
    sealed(3)
    AuditEntry.objects.filter(number=2).update(target="job/other")
    out = StringIO()
    with pytest.raises(CommandError, match="not as it was written"):
        call_command("weir_audit", "verify", stdout=out)
    assert out.getvalue().startswith("problem entry 2 (job.cancel job/other, ")


@pytest.mark.parametrize("head", ["3", "3:abc", "x:" + "0" * 64, "-1:" + "0" * 64])
def test_the_command_refuses_a_head_that_is_none(head: str) -> None:
    with pytest.raises(CommandError, match=r"no head; give NUMBER:DIGEST|expected one argument"):
        run("verify", "--expect", head)
