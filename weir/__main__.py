"""``weir``: the command line. See ``weir.cli``."""

import os
import sys
from argparse import Namespace

from weir.cli.arguments import parser
from weir.errors import UserError, WeirError

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130


def main() -> int:
    """Run the command that was given; returns the exit code."""
    arguments = parser().parse_args()
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
        # Whoever read the output, such as head, has enough; Python must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _dispatch(arguments: Namespace) -> int:
    # A command imports what it needs and no more: listing checkpoints needs no Spark.
    if arguments.command == "run":
        from weir.cli import run

        return run.run(arguments)
    read_files, as_json = not arguments.no_verify, arguments.json
    if arguments.command == "checkpoints":
        from weir.cli import checkpoints

        return checkpoints.run(
            arguments.uri, read_files=read_files, as_json=as_json, out=sys.stdout
        )
    from weir.cli import inspect

    if arguments.state is not None:
        return inspect.run_state(
            arguments.uri, arguments.state, limit=arguments.limit, as_json=as_json, out=sys.stdout
        )
    return inspect.run(arguments.uri, read_files=read_files, as_json=as_json, out=sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
