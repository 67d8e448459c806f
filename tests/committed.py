"""The files that belong to the repository, in a checkout and in a source distribution."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

ROOT = Path(__file__).resolve().parent.parent
MADE_BY_THE_BUILD = "PKG-INFO"


def committed_files() -> list[str]:
    """Their paths from the root, sorted. Without git they are all that it would not ignore."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        names = {name for name in listed.stdout.split("\0") if name}
        return sorted(name for name in names if (ROOT / name).is_file())
    ignored = GitIgnoreSpec.from_lines((ROOT / ".gitignore").read_text().splitlines())
    return sorted(set(_walk(ROOT, ignored)) - {MADE_BY_THE_BUILD})


def _walk(directory: Path, ignored: GitIgnoreSpec) -> Iterator[str]:
    for path in directory.iterdir():
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            if not ignored.match_file(f"{name}/"):
                yield from _walk(path, ignored)
        elif not ignored.match_file(name):
            yield name
