"""``weir preview``: the effect of restoring a pipeline from a checkpoint or savepoint.

The pipeline's script runs; its ``env.execute()`` only captures the job graph. Standard output
belongs to the preview alone: the script's own output goes to standard error.
"""

import os
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import IO

from rich.console import Console
from rich.text import Text

from weir.cli import formats
from weir.cli.arguments import pipeline_parameters
from weir.cli.output import console, print_json, table
from weir.cli.uri import absolute
from weir.datastream.execution import CapturedJob, ExecutionOptions
from weir.errors import CorruptStateError, RestoreError, UserError
from weir.jobmaster.restore_choice import is_origin_over
from weir.protocol.wire import to_wire
from weir.secrets import job_secrets
from weir.storage.catalog import RestoreRequest, find_state
from weir.storage.manifest import verify
from weir.tools.pipeline_scripts import explained, find_script
from weir.tools.restore_preview import (
    CompatibilityPreview,
    OperatorPreview,
    StatePreview,
    StateVerdict,
    capture_pipeline,
    choose_job,
    preview_restore,
    refused,
)

WOULD_RESTORE, WOULD_BE_REFUSED, WRONG_USE = 0, 1, 2

_STYLES = {
    "new": "green",
    "changed": "cyan",
    "rescaled": "cyan",
    "dropped": "yellow",
    "unmappable": "bold red",
}


def run(arguments: Namespace) -> int:
    """Print the preview and return the exit code.

    Raises:
        UserError: The pipeline runs no job, or several that may be meant.
        StorageError: The storage cannot be read.
    """
    script = find_script(arguments.pipeline)
    given = vars(arguments)
    storage: str | None = given.get("storage")
    options = ExecutionOptions(
        parallelism=arguments.parallelism,
        storage=None if storage is None else absolute(storage),
        parameters=pipeline_parameters(arguments),
        allow_non_restored_state=arguments.allow_non_restored_state or None,
        allow_pickled_state=given.get("allow_pickled_state") or None,
    )
    with own_output() as out:
        try:
            jobs = capture_pipeline(
                arguments.pipeline,
                script,
                options,
                explain=lambda error: _say(explained(error)),
                arguments=given.get("script_arguments", ()),
            )
        except UserError:
            raise
        except Exception as error:  # The user's script may raise anything.
            _say(explained(error))
            _say("weir: the pipeline raised this before its job started\n")
            return WRONG_USE
        outcome = preview(jobs, arguments.restore, origin_is_over=bool(given.get("origin_is_over")))
        if arguments.json:
            print_json(job_secrets.masker().data(to_wire(outcome)), out)
        else:
            _print(console(out), outcome)
        out.flush()
    return WOULD_RESTORE if outcome.would_restore else WOULD_BE_REFUSED


def preview(
    jobs: list[CapturedJob], uri: str, *, origin_is_over: bool = False
) -> CompatibilityPreview:
    """The effect of restoring one of ``jobs`` from the checkpoint or savepoint at ``uri``.

    ``origin_is_over``: the job that took it is known to have ended, although its storage does not
    say so.

    Raises:
        UserError: ``uri`` is malformed, or several of ``jobs`` may be meant.
        StorageError: The storage cannot be read.
    """
    request = RestoreRequest.parse(absolute(uri), origin_is_over=origin_is_over)
    try:
        state = find_state(request)
    except (RestoreError, CorruptStateError) as error:
        return refused(request.uri, error)
    problems: list[str] = []
    try:
        verify(state.store, state.manifest, state.directory)
    except CorruptStateError as error:
        problems.append(str(error))
    job = choose_job(jobs, state.manifest)
    return preview_restore(
        job.graph,
        job.config,
        state.manifest,
        uri=request.uri,
        store=state.store,
        directory=state.directory,
        problems=problems,
        origin_is_over=is_origin_over(request, state),
    )


@contextmanager
def own_output() -> Iterator[IO[str]]:
    """Standard output for Weir alone; other output goes to standard error.

    This holds after the context as well, for what the script's exit handlers print.
    """
    whole = sys.__stdout__
    if whole is None or sys.stdout is not whole:  # Replaced within this process, as by a test.
        given = sys.stdout
        with redirect_stdout(sys.stderr):
            yield given
        return
    whole.flush()
    with open(os.dup(1), "w", encoding=whole.encoding) as out:
        os.dup2(2, 1)
        yield out


def _say(text: str) -> None:
    sys.stderr.write(text)


# As text.


def _print(screen: Console, outcome: CompatibilityPreview) -> None:
    if outcome.checkpoint_id is not None:
        title = f"{outcome.kind} {outcome.checkpoint_id} of {outcome.job_name} ({outcome.job_id})"
        screen.print(title, style="bold", soft_wrap=True)
    if outcome.operators:
        grid = table("operator", "state", "verdict", "details", "size", right=("size",))
        for operator in outcome.operators:
            verdict = operator.verdict.value
            grid.add_row(
                operator.uid, "", Text(verdict, _STYLES.get(verdict, "")), _about(operator), ""
            )
            for state in operator.states:
                verdict = state.verdict.value
                grid.add_row(
                    "",
                    state.name,
                    Text(verdict, _STYLES.get(verdict, "")),
                    _about_state(state),
                    formats.size(state.size) if state.size else "-",
                )
        screen.print(grid)
    for problem in outcome.problems:
        screen.print(f"refused: {problem}", style="bold red", soft_wrap=True)
    for note in outcome.notes:
        screen.print(note, style="yellow", soft_wrap=True)
    screen.print(verdict_line(outcome), style="bold", soft_wrap=True)


def verdict_line(outcome: CompatibilityPreview) -> str:
    """The preview in one line."""
    operators = Counter(operator.verdict.value for operator in outcome.operators)
    states = Counter(s.verdict.value for operator in outcome.operators for s in operator.states)
    parts = [
        f"{formats.counted(sum(counts.values()), noun)}: "
        + ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
        for noun, counts in (("operator", operators), ("state", states))
        if counts
    ]
    lead = "a restore would work"
    if not outcome.would_restore:
        lead = f"a restore would be refused: {formats.counted(len(outcome.problems), 'problem')}"
    return f"{lead}; {'; '.join(parts)}" if parts else lead


def _about(operator: OperatorPreview) -> str:
    parts = [operator.name] if operator.name != operator.uid else []
    was, now = operator.stored_parallelism, operator.parallelism
    if was is not None and now is not None and was != now:
        parts.append(f"parallelism {was} to {now}")
    else:
        parts.append(f"parallelism {now if was is None else was}")
    groups = operator.stored_max_parallelism, operator.max_parallelism
    if None not in groups and groups[0] != groups[1]:
        parts.append(f"max parallelism {groups[0]} to {groups[1]}")
    if operator.splits is not None:
        parts.append(f"goes on with {formats.counted(operator.splits, 'split')}")
    return "; ".join([*parts, *operator.notes])


def _about_state(state: StatePreview) -> str:
    stored, declared = state.stored, state.declared
    if state.verdict is StateVerdict.UNMAPPABLE or (stored and declared and stored != declared):
        types = f"{stored} to {declared}" if declared else stored or ""
    else:
        types = declared or stored or ""
    return "; ".join(part for part in (types, *state.changes, state.note) if part)
