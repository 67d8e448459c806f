"""``weir``: the command line. See ``weir.cli``."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager

from weir.cli.arguments import parser
from weir.errors import ConfigError, UserError, WeirError
from weir.protocol.elements import CheckpointKind

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def main() -> int:
    """Run the command that was given; returns the exit code."""
    arguments = parser().parse_args()
    try:
        with _handed_secrets():
            return _run(arguments)
    except UserError as error:
        print(f"weir: {error}", file=sys.stderr)
        return WRONG_USE


@contextmanager
def _handed_secrets() -> Iterator[None]:
    """Take the secrets that a launcher has handed over, and mask them in standard error.

    Standard output has a command's answer, which the command itself masks: in the midst of JSON a
    value may be part of a name or a number.
    """
    if "WEIR_SECRETS_FD" not in os.environ:
        yield
        return
    from weir.secrets import job_secrets
    from weir.secrets.masked_output import masked_output

    job_secrets.receive()
    with masked_output(job_secrets.masker(), descriptors=(2,)):
        yield


def _run(arguments: Namespace) -> int:
    try:
        return _dispatch(arguments)
    except UserError as error:
        print(f"weir: {error}", file=sys.stderr)
        return WRONG_USE
    except WeirError as error:
        print(f"weir: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as head, has closed it; Python must not flush into it
        # again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _dispatch(arguments: Namespace) -> int:
    # A command imports only the modules it needs: listing checkpoints needs no Spark.
    match arguments.command:
        case "run":
            from weir.cli import run

            return run.run(arguments)
        case "savepoint" | "stop":
            return _savepoint(arguments)
        case "preview":
            from weir.cli import preview

            return preview.run(arguments)
        case "compare":
            from weir.cli import compare

            return compare.run(arguments)
        case "compare-modes":
            from weir.cli import compare_modes

            return compare_modes.run(arguments)
        case "checkpoints":
            from weir.cli import checkpoints

            read_files, as_json = not arguments.no_verify, arguments.json
            return checkpoints.run(
                arguments.uri, read_files=read_files, as_json=as_json, out=sys.stdout
            )
        case "doctor":
            from weir.cli import doctor

            return doctor.run(arguments)
        case "clean":
            from weir.cli import clean

            return clean.run(
                arguments.uri,
                is_sure=arguments.yes,
                is_dry=arguments.dry_run,
                driver_is_gone=arguments.driver_is_gone,
                out=sys.stdout,
            )
        case "up" | "manage":
            from weir.cli import up

            become = up.run_up if arguments.command == "up" else up.run_manage
            become(arguments)
        case _:
            return _inspect(arguments)


def _savepoint(arguments: Namespace) -> int:
    from weir.cli import delete_savepoint, savepoint

    if arguments.command == "stop":
        drains = arguments.drain
        kind = CheckpointKind.STOP_DRAIN if drains else CheckpointKind.STOP_SUSPEND
        return savepoint.run(arguments, kind)
    if (arguments.job is None) == (arguments.delete is None):
        raise ConfigError("give the job to take a savepoint of, or --delete with a savepoint's URI")
    if arguments.delete is not None:
        return delete_savepoint.run(arguments.delete, is_sure=arguments.yes)
    return savepoint.run(arguments, CheckpointKind.SAVEPOINT)


def _inspect(arguments: Namespace) -> int:
    from weir.cli import inspect

    if arguments.state is not None:
        return inspect.run_state(
            arguments.uri,
            arguments.state,
            limit=arguments.limit,
            as_json=arguments.json,
            out=sys.stdout,
        )
    read_files, as_json = not arguments.no_verify, arguments.json
    return inspect.run(arguments.uri, read_files=read_files, as_json=as_json, out=sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
