"""``python -m tests [pytest options]``: the whole suite, in two processes side by side.

What is about no time (the pure machines, rows in a database of their own, pages, also in a browser
that waits as long as it takes) can run beside anything: niced, so that what runs against real time
has the machine whenever it wants it. Its report follows when both have ended. With options, one
ordinary run of what they ask for.
"""

import os
import subprocess
import sys
import tempfile

TIMELESS = tuple(
    f"tests/{name}"
    for name in (
        *("graph", "protocol", "simulation", "programs", "api", "jobs", "checkpoints", "frontend"),
        *("controlplane", "deploy"),
    )
)
NICENESS = 10
TIMEOUT_S = 900  # Of one test: it gets what time the others leave.
PYTEST = (sys.executable, "-m", "pytest")


def main(options: list[str]) -> int:
    """Run; 1 where anything failed."""
    if options:
        return subprocess.call([*PYTEST, *options])
    timeless = [*PYTEST, *TIMELESS, f"--timeout={TIMEOUT_S}", "-p", "no:cacheprovider"]
    rest = [*PYTEST, *(f"--ignore={path}" for path in TIMELESS)]
    with tempfile.TemporaryFile("w+") as told:
        with subprocess.Popen(
            timeless, stdout=told, stderr=subprocess.STDOUT, preexec_fn=lambda: os.nice(NICENESS)
        ) as beside:
            try:
                codes = subprocess.call(rest), beside.wait()
            except BaseException:  # Interrupted: nobody waits for its report any more.
                beside.kill()
                raise
        told.seek(0)
        report = told.read().strip()
    # What went well is one line; behind the rest's report, so that neither hides the other.
    print(f"\n{' '.join(TIMELESS)}, beside it:")
    print(report if codes[1] else report.rpartition("\n")[2], flush=True)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
