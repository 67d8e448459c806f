"""Pipelines located and run as by ``python pipeline.py`` or ``python -m module``."""

import importlib.util
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weir.common.tracebacks import users_frames, users_traceback
from weir.errors import UserError, WeirError


def run_pipeline(name: str, script: Path | None, arguments: Sequence[str] = ()) -> None:
    """Run a script, or the module of this name; its exceptions pass through."""
    with as_python_would(script, arguments):
        if script is not None:
            runpy.run_path(str(script), run_name="__main__")
        else:
            runpy.run_module(name, run_name="__main__", alter_sys=True)


def find_script(pipeline: str) -> Path | None:
    """The script of this path; None: ``pipeline`` is the name of a module.

    Raises:
        UserError: Neither exists.
    """
    path = Path(pipeline)
    if path.is_file():
        return path
    if all(part.isidentifier() for part in pipeline.split(".")):
        with as_python_would(None):
            try:
                if importlib.util.find_spec(pipeline) is not None:
                    return None
            except ModuleNotFoundError as error:
                # One of the packages around it; a module that such a package lacks is its own
                # cause.
                if not f"{pipeline}.".startswith(f"{error.name}."):
                    raise UserError(f"{pipeline} cannot be imported: {error}") from error
    raise UserError(
        f"there is no file {pipeline}, nor a module of that name in {os.getcwd()} or among the "
        "installed packages"
    )


def explained(error: BaseException) -> str:
    """An exception of a script, in terms of the script: the user's frames, and the message."""
    if isinstance(error, WeirError):
        return f"{users_frames(error)}weir: {error}\n"
    return users_traceback(error)


def no_job_ran(name: str) -> str:
    """The problem of a script that ended without running a job."""
    return (
        f"{name} ended without running a job; it has to call env.execute() when it runs as a script"
    )


@contextmanager
def as_python_would(script: Path | None, arguments: Sequence[str] = ()) -> Iterator[None]:
    """``sys.argv`` and ``sys.path`` as they are under ``python script`` or ``python -m module``."""
    argv, path = sys.argv, list(sys.path)
    if script is not None:
        sys.argv = [str(script), *arguments]
    else:
        sys.argv = ["", *arguments]  # run_module puts the module's file there.
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if script is None else str(script.resolve().parent)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
