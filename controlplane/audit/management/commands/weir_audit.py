"""The command ``manage.py weir_audit``: export the audit log, and verify its chain."""

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from controlplane.audit import chain, export
from controlplane.audit.models import AuditEntry, record
from controlplane.base.management.database_command import DatabaseCommand
from controlplane.base.ticks import Budget

SEALED_WITHIN_S = 60.0


class Command(DatabaseCommand):
    """Export the audit log, or verify that none of its entries is missing or changed."""

    help = "Export the audit log, or verify that none of its entries is missing or changed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """The command line."""
        commands = parser.add_subparsers(dest="command", required=True)
        writing = commands.add_parser("export", help="write the entries, oldest first")
        writing.add_argument(
            "--format",
            choices=[form.value for form in export.Format],
            default=export.Format.JSONL.value,
            help="JSON lines with every value, or CSV for spreadsheets; default: jsonl",
        )
        writing.add_argument("--after", type=_moment, help="entries from this time on, in UTC")
        writing.add_argument("--before", type=_moment, help="entries before this time, in UTC")
        writing.add_argument("--actor", help="entries of this account")
        writing.add_argument(
            "--file", type=Path, help="a new file that only its owner can read; default: stdout"
        )
        verifying = commands.add_parser(
            "verify", help="say whether an entry is missing or changed; exit code 1 if so"
        )
        verifying.add_argument(
            "--expect",
            type=_head,
            metavar="NUMBER:DIGEST",
            help="the head that an earlier verification printed: the log must still hold it",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the chosen part."""
        part: Callable[[dict[str, Any]], None] = {
            "export": self._export,
            "verify": self._verify,
        }[options["command"]]
        part(options)

    def _export(self, options: dict[str, Any]) -> None:
        entries = AuditEntry.objects.all()
        if options["after"] is not None:
            entries = entries.filter(at__gte=options["after"])
        if options["before"] is not None:
            entries = entries.filter(at__lt=options["before"])
        if options["actor"]:
            entries = entries.filter(actor_name=options["actor"])
        form = export.Format(options["format"])
        given = {name: str(options[name]) for name in ("after", "before", "actor") if options[name]}
        record(None, "audit.export", "audit", after={"format": form.value, **given})
        if options["file"] is None:
            for part in export.export(entries, form):
                self.stdout.write(part, ending="")
            return
        try:
            with open(options["file"], "x", encoding="utf-8", newline="", opener=_private) as file:
                file.writelines(export.export(entries, form))
        except FileExistsError as error:
            raise CommandError(f"{options['file']} exists; name a new file") from error
        except OSError as error:
            raise CommandError(f"the export could not be written: {error}") from error

    def _verify(self, options: dict[str, Any]) -> None:
        chain.seal(Budget(SEALED_WITHIN_S))
        result = chain.verify(options["expect"])
        for problem in result.problems:
            self.stdout.write(f"problem {problem}")
        if result.has_more_problems:
            self.stdout.write(f"problem and more than {chain.PROBLEMS_MAX} in all")
        self.stdout.write(f"entries {result.count}, numbers {result.first} to {result.last}")
        self.stdout.write(f"waiting {result.waiting}")
        self.stdout.write(f"head {result.last}:{result.digest}")
        if result.problems:
            raise CommandError("the audit log is not as it was written")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _moment(text: str) -> datetime:
    try:
        moment = parse_datetime(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r}: {error}") from error
    if moment is None:
        raise ArgumentTypeError(f"{text!r} is no time; give one such as 2026-11-01T12:00:00")
    return make_aware(moment) if is_naive(moment) else moment


def _head(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    is_digest = len(digest) == 64 and not set(digest) - set("0123456789abcdef")
    if not number.isdecimal() or not is_digest:
        raise ArgumentTypeError(f"{text!r} is no head; give NUMBER:DIGEST as verify prints it")
    return int(number), digest
