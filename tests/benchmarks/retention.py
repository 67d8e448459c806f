"""Tables and pages after a month of one checkpoint a second, with the real retention between.

2.6 million rows are written in bulk, day by day; retention looks four times a day, with the
settings that a control plane has by default. The tables' size on disk is compared with the third
day's, when they have reached it, and the pages' times with the first day's.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import quantiles

from tests.benchmarks import pages, retention_month
from tests.benchmarks.report import Row, limit_row
from tests.benchmarks.web_stack import web_stack

DAYS, PER_DAY = 30, 86_400
QUICK_DAYS, QUICK_PER_DAY = 4, 60_000
SETTLED_DAY = 3  # From here on the tables are as large as they get.
GROWTH_MAX = 1.2
SLOWER_MAX = 1.25
BATCH_MAX_MS = 500.0
AUDIT = "audit_auditentry"


def retention(quick: bool) -> list[Row]:
    """A month at one checkpoint a second: tables stay flat, pages as fast as on the first day."""
    days, per_day = (QUICK_DAYS, QUICK_PER_DAY) if quick else (DAYS, PER_DAY)
    seconds = 5.0 if quick else 20.0
    with web_stack() as stack:
        from checkpoints.models import Checkpoint
        from tests.benchmarks.dashboard import Viewer

        viewer = Viewer(stack)
        retention_month.set_clock(-timedelta(days=days - 1))
        month = retention_month.begin(per_day)
        sizes: list[dict[str, int]] = []
        took: list[Mapping[str, Sequence[float]]] = []
        for day in range(1, days + 1):
            retention_month.set_clock(-timedelta(days=days - day))
            retention_month.live_a_day(month)
            sizes.append(retention_month.sizes())
            if day in (1, days):
                reader = viewer.reader()
                try:
                    took.append(pages.timed(reader, _addresses(month), seconds))
                finally:
                    reader.close()
        stored = Checkpoint.objects.count()
    note = f"{days} days of {per_day:,} checkpoints, {month.written:,} in all"
    return [
        _rows_row(month, stored, note),
        _size_row(sizes, note),
        _pages_row(took[0], took[1]),
        _batch_row(month),
    ]


def _addresses(month: retention_month.Month) -> list[pages.Address]:
    from django.urls import reverse

    def of_job(name: str, *more: int) -> str:
        return reverse(name, args=[month.job.pk, *more])

    newest = month.written
    failed = newest - newest % 10
    return [
        pages.Address("overview", reverse("job-list")),
        pages.Address("job", of_job("job-page")),
        pages.Address("details", of_job("job-details")),
        pages.Address("history", reverse("job-figure", args=[month.job.pk, "history"])),
        pages.Address("checkpoints", of_job("job-checkpoints")),
        pages.Address("checkpoint", of_job("checkpoint-page", newest - 1)),
        pages.Address("checkpoint, failed", of_job("checkpoint-page", failed)),
        pages.Address("savepoints", of_job("job-savepoints")),
        pages.Address("recovery", of_job("job-recovery")),
        pages.Address("audit", reverse("audit")),
        pages.Address("retention", reverse("retention")),
        pages.Address("metrics", reverse("metrics")),
    ]


def _rows_row(month: retention_month.Month, stored: int, note: str) -> Row:
    from django.conf import settings

    most = settings.WEIR_KEEP_CHECKPOINTS_MAX
    rate = month.removed / month.removing_s
    return Row(
        what="rows of checkpoints that are kept of a month at one a second",
        unit="rows",
        weir=stored,
        baseline=month.written,
        ratio=stored / month.written,
        against="written",
        target=f"≤ {most + 100:,} rows",
        met=stored <= most + 100,
        note=f"{note}; {month.removed:,} rows of all tables removed, {rate:,.0f} a second",
    )


def _size_row(sizes: Sequence[Mapping[str, int]], note: str) -> Row:
    audit = [size[AUDIT] / 1e6 for size in sizes]
    others = [sum(size.values()) - size[AUDIT] for size in sizes]
    settled = others[min(SETTLED_DAY, len(others)) - 1]
    return Row(
        what="size on disk of all tables under retention but audit, with indices, at the end",
        unit="B",
        weir=others[-1],
        baseline=settled,
        ratio=others[-1] / settled,
        against=f"after day {SETTLED_DAY}",
        target=f"ratio ≤ {GROWTH_MAX:g}",
        met=others[-1] / settled <= GROWTH_MAX,
        note=f"{note}; vacuumed once a day; MB by day: "
        + ", ".join(f"{size / 1e6:.0f}" for size in others)
        + f"; audit, which is kept for two years, {audit[0]:.1f} MB after a day, "
        f"{audit[-1]:.1f} MB at the end",
    )


def _pages_row(first: Mapping[str, Sequence[float]], last: Mapping[str, Sequence[float]]) -> Row:
    names = [name for name in first if name != pages.NOTHING]
    p95 = {name: (_p95(first[name]), _p95(last[name])) for name in names}
    before, after = (sum(pair[n] for pair in p95.values()) for n in (0, 1))
    return Row(
        what=f"{len(names)} pages over HTTP: sum of their p95 at the end",
        unit="ms",
        weir=after,
        baseline=before,
        ratio=after / before,
        against="on the first day",
        target=f"ratio ≤ {SLOWER_MAX:g}",
        met=after / before <= SLOWER_MAX,
        note="p95 then and now\n"
        + "\n".join(f"{name}: {then:.0f}/{now:.0f} ms" for name, (then, now) in p95.items()),
    )


def _batch_row(month: retention_month.Month) -> Row:
    took = [1_000 * seconds for seconds in month.batches_s]
    return limit_row(
        "the longest batch of removed checkpoints, which holds its job's lock",
        "ms",
        max(took),
        at_most=BATCH_MAX_MS,
        baseline=_p95(took),
        against="p95 of all batches",
        note=f"{len(took):,} batches",
    )


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[18]
