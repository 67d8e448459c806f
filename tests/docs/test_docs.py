"""README and docs hold: code runs or parses, links lead somewhere, tables are those of the code.

A block of code is checked by its language:

- ``python`` runs as a script in a process of its own, without Spark; the block ``text output``
  behind it has the lines that it prints;
- ``bash``: each command exists and parses, and what curl sends fits the OpenAPI document;
- ``json NAME``: the members are those of the schema of that name;
- ``mermaid``: states are held against the tables in the code, rooms against the import contracts;
- ``text``: the names of files in it exist.

A block that cannot be checked stands behind ``<!-- unchecked: why -->``, and ``UNCHECKED`` counts
those. In backticks are names: of files, modules, commands, options, settings, metrics and
addresses, or words of the code.

The end of this file breaks a page in every way that a check is for, and looks whether it is
noticed.
"""

import argparse
import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from string import Template
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, get_commands, load_command_class
from django.urls import Resolver404, resolve
from jsonschema import Draft202012Validator
from markdown_it import MarkdownIt
from markdown_it.token import Token

from checkpoints.verdict.completed import Part
from controlplane.base.errors import Refusal
from jobs.api.serializers import AttemptSerializer
from jobs.models import LIVE_DRIVERS, OPEN_OPERATIONS, Attempt, DriverStatus, OperationStatus
from tests.committed import committed_files
from tests.database.api.test_permissions import TABLE
from tests.forks import run_python
from weir.cli import arguments
from weir.common.flink_keys import FORMER, GIVEN
from weir.config import CheckpointConfig, JobConfig, RestartConfig
from weir.datastream.options import OPTIONS
from weir.errors import ProtocolError
from weir.protocol import operations
from weir.protocol.lifecycle import (
    JOB_TRANSITIONS,
    TRANSITIONS,
    CheckpointStatus,
    JobStatus,
    SubtaskStatus,
)

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
PACKAGES = ("weir", "jobs", "checkpoints", "controlplane", "frontend")
UNCHECKED = 1  # The output of make demo.
LANGUAGES = {"python", "bash", "json", "mermaid", "text"}
API = "/api/v1"

Arrow = tuple[str, str]


# Pages --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block of code; ``name`` is the second word behind its fence."""

    line: int
    language: str
    name: str
    text: str
    output: str | None = None  # Of a python block: what it prints.
    is_unchecked: bool = False


@dataclass(frozen=True)
class Page:
    """A page by its path from the root of the repository."""

    name: str
    text: str

    @cached_property
    def tokens(self) -> list[Token]:
        """The page as CommonMark with tables reads it."""
        return MarkdownIt("commonmark").enable("table").parse(self.text)

    @cached_property
    def blocks(self) -> list[Block]:
        """Its fenced blocks."""
        blocks: list[Block] = []
        before: Token | None = None
        for token in self.tokens:
            if token.type == "fence":
                language, _, name = token.info.partition(" ")
                is_unchecked = before is not None and "<!-- unchecked:" in before.content
                line = token.map[0] + 1 if token.map else 0
                if name == "output" and blocks:
                    blocks[-1] = Block(**vars(blocks[-1]) | {"output": token.content})
                else:
                    blocks.append(
                        Block(line, language, name, token.content, is_unchecked=is_unchecked)
                    )
            before = token
        return blocks

    def inline(self, kind: str) -> Iterator[tuple[int, Token]]:
        """The inline tokens of a kind, with their lines."""
        for token in self.tokens:
            for child in token.children or ():
                if child.type == kind:
                    yield (token.map[0] + 1 if token.map else 0), child

    @cached_property
    def anchors(self) -> set[str]:
        """The anchors of its headings, as GitHub makes them."""
        titles = [
            self.tokens[i + 1].content
            for i, token in enumerate(self.tokens)
            if token.type == "heading_open"
        ]
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    def section(self, title: str) -> "Page":
        """The part under a heading, up to the next one of its level or above."""
        begin = re.search(rf"^(#+) {re.escape(title)}$", self.text, re.MULTILINE)
        assert begin, f"{self.name} has no heading {title!r}"
        rest = self.text[begin.end() :]
        end = re.search(rf"^#{{1,{len(begin[1])}}} ", rest, re.MULTILINE)
        return Page(self.name, rest[: end.start()] if end else rest)

    @cached_property
    def rows(self) -> list[list[str]]:
        """The rows of its tables, without their heads; cells as they are written."""
        rows: list[list[str]] = []
        is_body = False
        for token, following in zip(self.tokens, [*self.tokens[1:], None], strict=True):
            is_body = token.type == "tbody_open" or (is_body and token.type != "tbody_close")
            if is_body and token.type == "tr_open":
                rows.append([])
            if token.type == "td_open":
                assert following is not None
                rows[-1].append(following.content)
        return rows

    def columns(self, *indexes: int) -> list[tuple[str, ...]]:
        """Cells of the tables without their backticks."""
        return [tuple(row[i].replace("`", "") for i in indexes) for row in self.rows]


def page_of(name: str) -> Page:
    return Page(name, (ROOT / name).read_text())


def codes(text: str) -> list[str]:
    """The texts in backticks."""
    return re.findall(r"`([^`]+)`", text)


def problems(page: Page) -> list[str]:
    """Each thing in a page that leads nowhere, but for its python blocks."""
    said = [*_links(page), *_names(page), *_blocks(page)]
    return [f"{page.name}:{line}: {problem}" for line, problem in said]


# Links and names ----------------------------------------------------------------------------------


def _links(page: Page) -> Iterator[tuple[int, str]]:
    targets = [(line, str(token.attrs["href"])) for line, token in page.inline("link_open")]
    targets += [(line, str(token.attrs["src"])) for line, token in page.inline("image")]
    for line, target in targets:
        if urlsplit(target).scheme:
            continue  # Another site's.
        path, _, anchor = target.partition("#")
        file = (ROOT / page.name).parent / path if path else ROOT / page.name
        if not file.is_file():
            yield line, f"the link {target} leads to no file"
        elif anchor and anchor not in (page_of_file(file) if path else page).anchors:
            yield line, f"the link {target} leads to no heading"


def page_of_file(file: Path) -> Page:
    return page_of(file.resolve().relative_to(ROOT).as_posix())


@cache
def _words() -> frozenset[str]:
    """Every word in the repository's code, templates and settings; pages and this file aside."""
    words: set[str] = set()
    for name in committed_files():
        path = ROOT / name
        if path.suffix in {".md", ".png", ".lock"} or path == Path(__file__):
            continue
        words |= set(re.findall(r"\w+", path.read_text(errors="replace")))
    return frozenset(words)


@cache
def public_names() -> dict[str, Any]:
    """The names that users import, and ``env``, as all scripts call their environment."""
    public: dict[str, Any] = {}
    for module in ("datastream", "common", "datastream.connectors", "config", "testing"):
        public |= vars(importlib.import_module(f"weir.{module}"))
    public["env"] = public["StreamExecutionEnvironment"]
    return public


PLACEHOLDERS = {"pipeline.py", "new.py", "conftest.py", "prometheus.yml"}  # The reader's own.
COMMANDS = ("weir", "make", "python", "docker", "celery", "uvicorn", "kill")
_FILE = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
_ENDINGS = (".py", ".md", ".yml", ".toml", ".example", ".png", ".sql")
_REQUEST = re.compile(r"(GET|POST|PATCH|DELETE) (/\S+)")


def _names(page: Page) -> Iterator[tuple[int, str]]:
    absent = set(codes(_absent(page)))
    for line, token in page.inline("code_inline"):
        if token.content not in absent and (problem := name_problem(token.content, page.name)):
            yield line, f"`{token.content}`: {problem}"


def name_problem(code: str, page: str = "README.md") -> str | None:
    """Why a name in backticks names nothing; None: it does."""
    first = re.split(r"[/.\s]", code.lstrip("./"))[0]
    if (
        code in {*OPTIONS, *FORMER, *GIVEN, *PLAIN}
        or f"HTTP_{code.replace('-', '_')}".upper() in _words()
    ):
        return None
    if code.partition(" ")[0] in COMMANDS and " " in code:
        return next(filter(None, map(command_problem, commands(code))), None)
    if request := _REQUEST.fullmatch(code):
        return address_problem(request[1], request[2])
    if code.startswith("/") and not code.startswith(("//", "/data", "/shared", "/out")):
        return None if _is_served(code) else "no such address is served"
    if code.startswith("--"):
        return None if re.split(r"[= ]", code)[0] in _options() else "no command has this option"
    if re.fullmatch(r"\w[\w.]+(:\w+)?", code) and first in PACKAGES and "." in code:
        return None if _resolves(code) else "it cannot be imported"
    if _FILE.fullmatch(code) and (code.endswith(_ENDINGS) or first in _top_level()):
        return None if _is_file(code, page) else "there is no such file"
    dotted = re.match(r"[A-Za-z_]\w*(\.\w+)*", code)
    if dotted and dotted[0].partition(".")[0] in public_names():
        return _member_problem(dotted[0])
    literal = re.sub(r"<[^>]*>|\{[^}]*\}|\"[^\"]*\"", " ", code)
    unknown = [w for w in re.findall(r"[A-Za-z_]\w{2,}", literal) if w not in _words()]
    return f"the code has no {', '.join(unknown)}" if unknown else None


def _member_problem(dotted: str) -> str | None:
    first, *rest = dotted.split(".")
    value = public_names()[first]
    for name in rest:
        if not hasattr(value, name):
            return f"{first} has no {name}"
        value = getattr(value, name)
    return None


def _resolves(dotted: str) -> bool:
    if (ROOT / f"{dotted.replace('.', '/')}.py").is_file():
        return True  # Settings of production cannot be imported here.
    try:
        resolve_name(dotted)
    except (ImportError, AttributeError, ValueError):
        return False
    return True


@cache
def _top_level() -> frozenset[str]:
    return frozenset(path.name for path in ROOT.iterdir() if path.is_dir()) - {".weir"}


def _is_file(code: str, page: str) -> bool:
    is_ignored = code.rstrip("/") in {
        line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()
    }
    places = (ROOT / code, (ROOT / page).parent / code)
    return code in PLACEHOLDERS or is_ignored or any(place.exists() for place in places)


@cache
def _subcommands() -> dict[str, argparse.ArgumentParser]:
    actions = arguments.parser()._actions
    choices = next(one.choices for one in actions if isinstance(one, argparse._SubParsersAction))
    return dict(choices or {})


@cache
def _options() -> frozenset[str]:
    return frozenset(o for one in _subcommands().values() for o in one._option_string_actions)


# Blocks -------------------------------------------------------------------------------------------


def _blocks(page: Page) -> Iterator[tuple[int, str]]:
    for block in page.blocks:
        if block.is_unchecked:
            continue
        if block.language not in LANGUAGES:
            yield block.line, f"a block of {block.language or 'no language'} is not checked"
        for problem in BLOCK_CHECKS.get(block.language, lambda _: [])(block):
            yield block.line, problem


def _json_problems(block: Block) -> Iterator[str]:
    schemas = document()["components"]["schemas"]
    if block.name not in schemas:
        yield f"there is no schema {block.name!r}"
        return
    members = schemas[block.name]["properties"]
    for name, value in json.loads(block.text).items():
        if name not in members:
            yield f"{block.name} has no member {name}"
        else:
            yield from (f"{name}: {error.message}" for error in validator(members[name], value))


def _text_problems(block: Block) -> Iterator[str]:
    for name in re.findall(r"\b[a-z]+(?:/\w+)+\.py\b", block.text):
        if not (ROOT / name).is_file():
            yield f"there is no file {name}"


def _mermaid_problems(block: Block) -> Iterator[str]:
    if block.text.startswith("flowchart"):
        for label in re.findall(r'\w\["([^"]+)"\]', block.text):
            if label.split(".")[0] in PACKAGES and not _resolves(label):
                yield f"{label} cannot be imported"


def _bash_problems(block: Block) -> Iterator[str]:
    variables = dict(VARIABLES)
    for words in commands(block.text):
        if problem := command_problem(words, variables):
            yield problem


BLOCK_CHECKS: dict[str, Callable[[Block], Any]] = {
    "bash": _bash_problems,
    "json": _json_problems,
    "mermaid": _mermaid_problems,
    "text": _text_problems,
}

# Commands -----------------------------------------------------------------------------------------

VARIABLES = {
    "URL": "https://weir.example",
    "TOKEN": "weir_secret",
    "SESSION": "secret",
    "JOB": "flights-1a2b3c4d",
    "DIGEST": "9f86d081884c7d65" * 4,
    "ETAG": '"9f86d081884c7d659f86d081884c7d65"',
    "ENDPOINT": "5f0e6d62-8d8b-4e8c-9b8e-2f7a3c1d9e10",
    "SAVEPOINT": "6f1a2f0e-0c55-4a55-9a0e-4d4be0f0a001",
}
PLAIN = {"chmod", "kill", "openssl", "pg_dump", "pip", "sed"}  # Not this project's.
_SEPARATORS = set(";&|()\n")


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a script, as words."""
    text = re.sub(r"(?m)(^|\s)#[^'\"\n]*$", "", text.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    is_redirected = False
    for word in lexer:
        if set(word) <= {"<", ">"}:
            is_redirected = True
        elif set(word) <= _SEPARATORS:
            yield words
            words = []
        elif is_redirected:
            is_redirected = False
        else:
            words.append(word)
    yield words


def command_problem(words: list[str], variables: dict[str, str] | None = None) -> str | None:
    """Why a command would not do what a page says; None: it exists and parses."""
    variables = dict(VARIABLES) if variables is None else variables
    if words[:1] == ["export"]:
        words = words[1:]
    while words and re.match(r"\w+=", words[0]):
        name, _, value = words[0].partition("=")
        variables[name] = Template(value).safe_substitute(variables)
        words = words[1:]
    match words:
        case []:
            return None
        case ["weir", name] if name in _subcommands():
            return None  # Its name alone, in a sentence.
        case ["weir", *rest]:
            return _parse_problem("weir", rest, lambda: arguments.parser().parse_args(rest))
        case ["make", target, *rest]:
            return _make_problem(target, rest)
        case ["python", "manage.py", name, *rest]:
            return _manage_problem(name, rest)
        case ["python", "-m", module, *_]:
            return None if _resolves(module) else f"there is no module {module}"
        case ["python", script]:
            return None if _is_file(script, "README.md") else f"there is no {script}"
        case ["promtool", "check" | "test", "rules", file]:
            return None if _is_file(file, "README.md") else f"there is no {file}"
        case ["docker", "compose", *rest]:
            return _compose_problem(rest)
        case ["celery" | "uvicorn" as name, *rest]:
            return _server_problem(name, rest)
        case ["curl", *rest]:
            return request_problem([Template(word).safe_substitute(variables) for word in rest])
        case [name, *_]:
            return None if name in PLAIN else f"the command {name} is not known"
    raise AssertionError(words)


def _parse_problem(name: str, words: list[str], parse: Callable[[], object]) -> str | None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parse()
    except (SystemExit, CommandError) as error:
        return f"{name} {shlex.join(words)}: {said.getvalue().strip() or error}"
    return None


def _make_problem(target: str, words: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text()
    if not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE):
        return f"make has no target {target}"
    unknown = [w for w in words if not re.search(rf"^{w.partition('=')[0]} \?=", makefile, re.M)]
    return f"make does not know {unknown[0]}" if unknown else None


def _manage_problem(name: str, words: list[str]) -> str | None:
    app = get_commands().get(name)
    if app is None:
        return f"manage.py has no command {name}"
    command = load_command_class(app, name) if isinstance(app, str) else app
    parser = command.create_parser("manage.py", name)
    return _parse_problem(f"manage.py {name}", words, lambda: parser.parse_args(words))


def _compose_problem(words: list[str]) -> str | None:
    services = re.findall(r"^  ([\w-]+):", (ROOT / "docker-compose.yml").read_text(), re.M)
    action, *rest = words
    plain = [word for word in rest if not word.startswith("-")]
    match action:
        case "up" | "build":
            named = plain
        case "run" | "exec":
            named, inner = plain[:1], rest[rest.index(plain[0]) + 1 :]
            if problem := command_problem(inner):
                return problem
        case "cp":
            named = [word.partition(":")[0] for word in plain if ":" in word]
        case _:
            return f"docker compose {action} is not known"
    unknown = [name for name in named if name not in services]
    return f"the compose file has no service {unknown[0]}" if unknown else None


def _server_problem(name: str, words: list[str]) -> str | None:
    if name == "uvicorn":
        return None if _resolves(words[0]) else f"there is no {words[0]}"
    given = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
    app = importlib.import_module(given["app"]).celery_app
    unknown = set(filter(None, given.get("queues", "").split(","))) - {
        queue.name for queue in app.conf.task_queues
    }
    return f"there is no queue {unknown.pop()}" if unknown else None


# Requests -----------------------------------------------------------------------------------------


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    from drf_spectacular.generators import SchemaGenerator

    schema: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return schema


def validator(schema: dict[str, Any], value: Any) -> list[Any]:
    """The errors of a value under a schema of the document."""
    whole = {**schema, "components": document()["components"]}
    return list(Draft202012Validator(whole).iter_errors(value))


@dataclass
class Request:
    """A request of curl."""

    method: str = ""
    url: str = ""
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    has_form: bool = False
    has_session: bool = False


def read_request(words: list[str]) -> Request:
    """The request that the words after ``curl`` ask for."""
    request = Request()
    rest = iter(words)
    for word in rest:
        match word:
            case "-X":
                request.method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                request.headers[name.lower()] = value
            case "-d":
                request.body = next(rest)
            case "-F":
                name, _, value = next(rest).partition("=")
                request.has_form |= name == "file" and value.startswith("@")
                if name == "request":
                    json.loads(value)
            case "--cookie":
                request.has_session = next(rest).startswith("sessionid=")
            case "--no-buffer" | "-i" | "-OJ":
                pass
            case _ if word.startswith(VARIABLES["URL"]) and not request.url:
                request.url = word.removeprefix(VARIABLES["URL"])
            case _:
                raise ValueError(f"curl's {word} is not known")
    is_post = request.body is not None or request.has_form
    request.method = request.method or ("POST" if is_post else "GET")
    return request


def request_problem(words: list[str]) -> str | None:
    """Why the control plane would refuse what curl sends; None: it fits the document."""
    try:
        request = read_request(words)
    except ValueError as error:
        return str(error)
    parts = urlsplit(request.url)
    if "$" in request.url:
        return f"{request.url} has a variable that is not set"
    if problem := address_problem(request.method, parts.path):
        return problem
    if not parts.path.startswith(API):
        return None
    operation = operation_of(request.method, parts.path)
    if not request.headers.get("authorization", "").startswith("Bearer weir_"):
        return f"{request.method} {parts.path} needs a token"
    known = {(p["in"], p["name"].lower()): p["schema"] for p in operation.get("parameters", ())}
    if "idempotency-key" in request.headers and ("header", "idempotency-key") not in known:
        return f"{request.method} {parts.path} takes no Idempotency-Key"
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        schema = known.get(("query", name))
        if schema is None:
            return f"{parts.path} has no parameter {name}"
        schema = schema.get("items", schema)
        is_json = schema.get("type") in ("integer", "number", "boolean")
        typed = json.loads(value) if is_json else value
        if errors := validator(schema, typed):
            return f"{name}={value}: {errors[0].message}"
    return _body_problem(request, operation)


def _body_problem(request: Request, operation: dict[str, Any]) -> str | None:
    content = operation.get("requestBody", {}).get("content", {})
    if request.has_form:
        return None if "multipart/form-data" in content else "it takes no form"
    if request.body is None:
        is_required = operation.get("requestBody", {}).get("required", False)
        return "it needs a body" if is_required else None
    if request.headers.get("content-type") != "application/json":
        return "a body needs the header Content-Type: application/json"
    errors = validator(content["application/json"]["schema"], json.loads(request.body))
    return f"the body does not fit: {errors[0].message}" if errors else None


def operation_of(method: str, path: str) -> dict[str, Any]:
    """The document's operation for a request; KeyError: there is none."""
    for template, methods in document()["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in methods:
            operation: dict[str, Any] = methods[method.lower()]
            return operation
    raise KeyError(f"{method} {path}")


def address_problem(method: str, path: str) -> str | None:
    """Why a method of a path is not served; None: it is."""
    path = re.sub(r"[<{]\w+[>}]", "1", path)
    if path.startswith(API):
        with contextlib.suppress(KeyError):
            operation_of(method, path)
            return None
        is_page = method == "GET" and path in (f"{API}/docs", f"{API}/schema")
        return None if is_page else f"the API has no {method} {path}"
    return None if _is_served(path) else f"nothing serves {path}"


def _is_served(path: str) -> bool:
    """Whether the web process serves a path, or something below it if it ends with a slash."""
    from starlette.routing import Match, Route

    from controlplane.web import application

    path = re.sub(r"[<{]\w+[>}]", "1", path)
    for route in application.routes:
        if isinstance(route, Route):
            is_prefix = path.endswith("/") and route.path.startswith(path)
            scope = {"type": "http", "method": "GET", "path": path}
            if is_prefix or route.matches(scope)[0] is Match.FULL:
                return True
    if path in (API, f"{API}/"):
        return True
    try:
        resolve(path)
    except Resolver404:
        return False
    return True


# Tests of all pages -------------------------------------------------------------------------------

PYTHON = [
    pytest.param(block, id=f"{name}:{block.line}")
    for name in NAMES
    for block in page_of(name).blocks
    if block.language == "python" and not block.is_unchecked
]


def run(block: Block, directory: Path) -> str | None:
    """Run a python block as a script; why it does not do what its page says."""
    orders = {"shop": ["harbour", "market"], "amount": [3, 4], "at": [1_000, 3_600_000]}
    (directory / "orders").mkdir()
    pq.write_table(pa.table(orders), directory / "orders" / "part.parquet")
    script = directory / "pipeline.py"
    script.write_text(block.text)
    ran = run_python("tests.docs.example", script.name, cwd=directory, timeout=400)
    if ran.returncode:
        return ran.stderr
    # Sinks of their own show their records in no order between them.
    if block.output is not None and sorted(ran.stdout.split("\n")) != sorted(
        block.output.split("\n")
    ):
        return f"it prints\n{ran.stdout}not\n{block.output}"
    return None


@pytest.mark.parametrize("block", PYTHON)
def test_an_example_runs_and_prints_what_the_page_says(block: Block, tmp_path: Path) -> None:
    problem = run(block, tmp_path)
    assert problem is None, problem


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_a_page_names_exists(name: str) -> None:
    assert problems(page_of(name)) == []


def test_blocks_that_are_not_checked_are_few() -> None:
    unchecked = [block for name in NAMES for block in page_of(name).blocks if block.is_unchecked]
    assert len(unchecked) == UNCHECKED


def test_the_readme_shows_the_picture_first_and_leads_to_every_page() -> None:
    readme = page_of("README.md")
    first_heading_after_title = readme.text.index("\n## ")
    assert "](docs/dashboard.png)" in readme.text[:first_heading_after_title]
    targets = {str(token.attrs["href"]) for _, token in readme.inline("link_open")}
    assert set(NAMES) - {"README.md"} <= targets


# Architecture -------------------------------------------------------------------------------------


def arrows(page: Page, title: str, number: int = 0) -> set[Arrow]:
    """The arrows of a section's diagram of states."""
    diagrams = [block.text for block in page.section(title).blocks if block.language == "mermaid"]
    return set(re.findall(r"^\s*(\S+) --> (\S+)$", diagrams[number], re.MULTILINE))


def machine(first: str, moves: set[Arrow], states: Iterator[str] | list[str]) -> set[Arrow]:
    """A diagram's arrows: into the first state, the moves, and out of the final states."""
    left = {source for source, _ in moves}
    return {("[*]", first), *moves, *((s, "[*]") for s in states if s not in left)}


def table_moves(table: Any) -> set[Arrow]:
    return {(str(a), str(b)) for a, following in table.items() for b in following}


def operation_moves() -> set[Arrow]:
    ends = [str(status) for status in OperationStatus if status not in OPEN_OPERATIONS]
    moves = {(str(status), end) for status in OPEN_OPERATIONS for end in ends}
    return moves | {(str(OperationStatus.PENDING), str(OperationStatus.RUNNING))}


def phase_moves() -> set[Arrow]:
    """The changes of phase that any sequence of events leads to."""
    events: list[operations.OperationEvent] = [
        operations.Begun(is_running=True),
        operations.Begun(is_running=False),
        operations.Saved("uri"),
        operations.NotSaved("refused"),
        operations.OutOfTime("late"),
        operations.Overtaken("overtaken"),
        operations.LaunchTick(),
        operations.Checked(is_running=True),
        operations.Checked(is_running=False),
        operations.NotChecked("refused"),
        *(operations.JobReached(status) for status in JobStatus),
    ]
    left = [
        operations.OperationState(
            kind, drains=drains, restore=restore, before=operations.Before(), checks=checks
        )
        for kind, drains, restore, checks in product(
            operations.OperationKind, (False, True), (None, "uri"), (False, True)
        )
    ]
    seen, moves = set(left), set[Arrow]()
    while left:
        state = left.pop()
        for event in events:
            with contextlib.suppress(ProtocolError):
                following = operations.advance(state, event).state
                if following.phase is not state.phase:
                    moves.add((str(state.phase), str(following.phase)))
                if following not in seen:
                    seen.add(following)
                    left.append(following)
    return moves


def state_problems(page: Page) -> list[str]:
    """The diagrams of states that are not what the code says."""
    job = machine("created", table_moves(JOB_TRANSITIONS), list(map(str, JobStatus)))
    checkpoint = machine("pending", table_moves(TRANSITIONS), list(map(str, CheckpointStatus)))
    operation = machine("pending", operation_moves(), list(map(str, OperationStatus)))
    phases = machine("accepted", phase_moves(), list(map(str, operations.Phase)))
    expected = {
        ("Job", 0): job,
        ("Checkpoint", 0): checkpoint,
        ("Operation", 0): operation,
        ("Operation", 1): phases,
    }
    return [
        f"{title}: {sorted(arrows(page, title, number) ^ machine_)}"
        for (title, number), machine_ in expected.items()
        if arrows(page, title, number) != machine_
    ]


def test_states_are_drawn_as_the_tables_have_them() -> None:
    assert state_problems(page_of("docs/architecture.md")) == []


def test_the_driver_is_drawn_with_the_states_of_its_rows() -> None:
    page = page_of("docs/architecture.md")
    drawn = arrows(page, "Driver")
    assert {name for arrow in drawn for name in arrow} - {"[*]"} == set(DriverStatus.values)
    going_on = {source for source, target in drawn if target != "[*]"} - {"[*]"}
    assert going_on == set(map(str, LIVE_DRIVERS))
    told = {(row[0], name) for row in page.section("Driver").rows for name in codes(row[1])}
    assert {(status.strip("`"), name) for status, name in told} == set(driver_moves())


def driver_moves() -> Iterator[tuple[str, str]]:
    """``(status, function)``: which function sets a driver's status, read off the code."""
    for path in sorted((ROOT / "jobs" / "drivers").glob("*.py")):
        for function in ast.parse(path.read_text()).body:
            if isinstance(function, ast.FunctionDef):
                for status in set(_statuses_set_in(function)):
                    yield status, f"jobs.drivers.{path.stem}.{function.name}"


def _statuses_set_in(function: ast.FunctionDef) -> Iterator[str]:
    given: list[ast.expr | None] = list(function.args.kw_defaults)
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                given += [v for n, v in zip(names, values, strict=True) if _is_status(n)]
            case ast.Assign(targets=[target], value=value) if _is_status(target):
                given.append(value)
            case ast.Call(func=ast.Name(id="end") | ast.Attribute(attr="create"), keywords=named):
                given += [one.value for one in named if one.arg == "status"]
    for value in given:
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "DriverStatus":
            yield str(DriverStatus[value.attr])


def _is_status(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "status"


def test_the_attempt_is_drawn_with_the_ends_of_its_rows() -> None:
    page = page_of("docs/architecture.md")
    ends = set(codes(AttemptSerializer.Meta.extra_kwargs["end"]["help_text"]))
    drawn = arrows(page, "Attempt")
    assert {source for source, target in drawn if target == "[*]"} == ends
    steps = {name for arrow in drawn for name in arrow} - ends - {"[*]"}
    assert {f"{step}_at" for step in steps} <= {f.name for f in Attempt._meta.get_fields()}
    shown = [name for (name,) in page.section("Attempt").columns(0)]
    assert shown == [str(status) for status in SubtaskStatus]


def room_problems(page: Page) -> list[str]:
    """The arrows between rooms that the import contracts do not have, and rooms left out."""
    section = page.section("Rooms")
    diagram = next(block.text for block in section.blocks if block.language == "mermaid")
    labels = dict(re.findall(r'(\w+)\["([^"]+)"\]', diagram))
    drawn = re.findall(r'(\w+)(?:\["[^"]+"\])? --> (\w+)', diagram)
    said = [
        f"{labels[a]} does not stand on {labels[b]}"
        for a, b in drawn
        if not stands_on(labels[a], labels[b])
    ]
    listed = {name for row in section.rows for name in codes(row[0])}
    rooms = {
        f"{init.parent.relative_to(ROOT)}/"
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
        if not {"migrations", "management", "templatetags"} & set(init.parts)
    } - {"weir/", "frontend/"}
    return said + [f"{room} is not listed" for room in sorted(rooms - listed)]


def stands_on(upper: str, lower: str) -> bool:
    """Whether the import contracts let one room import the other, and not the other way."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in tool["contracts"]:
        layers = [re.findall(r"[\w.]+", layer) for layer in contract.get("layers", ())]
        places = [[i for i, layer in enumerate(layers) if name in layer] for name in (upper, lower)]
        if all(places):
            return places[0] < places[1]
    sources = {
        forbidden
        for contract in tool["contracts"]
        if upper.split(".")[0] in contract.get("source_modules", ())
        for forbidden in contract["forbidden_modules"]
    }
    return lower.startswith("weir.") and not upper.startswith("weir.") and lower not in sources


def test_rooms_are_drawn_as_the_import_contracts_have_them() -> None:
    assert room_problems(page_of("docs/architecture.md")) == []


def test_each_way_through_the_code_has_five_steps_with_their_files() -> None:
    ways = page_of("docs/architecture.md").section("How things travel")
    for title in ("A record", "A barrier", "An acknowledgement", "A trigger", "A restore"):
        steps = re.split(r"^\d\. ", ways.section(title).text, flags=re.MULTILINE)[1:]
        assert len(steps) == 5, title
        for step in steps:
            assert [name for name in codes(step) if (ROOT / name).is_file()], step


def test_the_glossary_has_a_dozen_words() -> None:
    words = [word for (word,) in page_of("docs/architecture.md").section("Glossary").columns(0)]
    assert len(words) == 12
    assert words == sorted(words)


# Tables of the other pages ------------------------------------------------------------------------


def test_the_settings_of_a_pipeline_are_listed_with_their_defaults() -> None:
    rows = page_of("docs/writing-pipelines.md").section("Checkpoints and other settings").rows
    assert {row[0].strip("`") for row in rows} == set(OPTIONS)
    sections = {"checkpoints": CheckpointConfig(), "restart": RestartConfig(), "job": JobConfig()}
    for key, default in rows:
        option = OPTIONS[key.strip("`")]
        if option.section in sections and default.startswith("`"):
            known = getattr(sections[option.section], option.field)
            assert option.read(codes(default)[0]) == known, key


def _absent(page: Page) -> str:
    between = re.search(r"<!-- absent.*?-->(.*?)<!-- present -->", page.text, re.DOTALL)
    return between[1] if between else ""


def test_what_weir_does_not_have_it_does_not_have() -> None:
    page = page_of("docs/writing-pipelines.md")
    rows = Page(page.name, _absent(page)).rows
    assert len(rows) == 7
    for owner, names in rows:
        dotted = owner.strip("`")
        holder = resolve_name(dotted) if dotted.startswith("weir") else None
        if holder is None:
            holder = resolve_name(f"weir.datastream:{dotted}")
        assert [name for name in codes(names) if hasattr(holder, name)] == []


def environment_variables() -> dict[str, Any]:
    """The settings of processes with their defaults as pages write them; None: not a constant."""
    read: dict[str, Any] = {}
    for path in sorted((ROOT / "controlplane" / "settings").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="env"), attr=kind),
                    args=[ast.Constant(value=name), *rest],
                ):
                    read.setdefault(name, None)
                    with contextlib.suppress(IndexError, NameError):
                        code = compile(ast.Expression(rest[0]), "default", "eval")
                        default = eval(code, {"__builtins__": {}})
                        flag = {True: "yes", False: "no"}.get(default) if kind == "flag" else None
                        read[name] = read[name] or flag or str(default)
                case _:
                    pass
    return read


def test_the_environment_variables_are_listed_with_their_defaults() -> None:
    section = page_of("docs/operating.md").section("Environment variables")
    rows = {row[0].strip("`"): row[1] for row in section.rows}
    known = environment_variables()
    assert set(rows) - {"DJANGO_SETTINGS_MODULE"} == set(known)
    for name, default in known.items():
        shown = rows[name].strip("`")
        if default and shown not in ("WEIR_URL", "required in production"):
            assert shown == default, name
    compose = re.findall(r"^(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert set(compose) <= {
        name for _, token in section.inline("code_inline") for name in [token.content]
    }


def metrics() -> set[str]:
    """The names of metrics as Prometheus gets them."""
    names = set()
    for path in sorted((ROOT / "controlplane").rglob("*metrics.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), *_]):
                    if kind in ("Gauge", "Counter", "Histogram") or kind.endswith("MetricFamily"):
                        names.add(f"{name}_total" if kind.startswith("Counter") else name)
                case _:
                    pass
    return names


def test_the_metrics_are_listed() -> None:
    rows = page_of("docs/operating.md").section("Metrics").columns(0)
    assert {name for (name,) in rows} == metrics()


def test_the_parts_of_a_checkpoint_have_the_verdicts_words() -> None:
    rows = page_of("docs/operating.md").section("Reading a verdict").columns(0)
    assert [name for (name,) in rows] == [str(part) for part in Part]


def test_all_resources_are_listed_with_their_roles() -> None:
    rows = page_of("docs/rest-api.md").section("All resources").columns(0, 1, 2)
    assert {(method, path): role for method, path, role in rows} == TABLE


def test_the_codes_of_errors_are_listed() -> None:
    rows = page_of("docs/rest-api.md").section("Errors").rows
    listed = {code for row in rows for code in codes(row[1])}
    assert {kind.code for kind in _kinds_of(Refusal)} - {"refused"} <= listed


def _kinds_of(kind: type[Refusal]) -> Iterator[type[Refusal]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds_of(one)


# The checks themselves ----------------------------------------------------------------------------

BROKEN = {
    "a link to no file": ("[here](docs/nowhere.md)", "leads to no file"),
    "a link to no heading": ("[here](docs/operating.md#nowhere)", "leads to no heading"),
    "an anchor of no heading": ("# One\n\n[here](#two)", "leads to no heading"),
    "a picture that is gone": ("![one](docs/one.png)", "leads to no file"),
    "a file that is gone": ("`weir/worker/subtasks.py`", "no such file"),
    "a module that is gone": ("`weir.runtime.worker`", "cannot be imported"),
    "a name that a module lacks": ("`weir.protocol.lifecycle.TRANSITION`", "cannot be imported"),
    "a member that a class lacks": ("`Types.FLOATS()`", "Types has no FLOATS"),
    "a method that the environment lacks": ("`env.enable_checkpoint(1)`", "has no enable_"),
    "a word that the code lacks": ("`set_uid_hashes`", "the code has no set_uid_hashes"),
    "a setting that is gone": ("`WEIR_TIMEOUT_MS`", "the code has no WEIR_TIMEOUT_MS"),
    "an option that no command has": ("`--allow-all`", "no command has this option"),
    "a command in a line": ("`weir rum pipeline.py`", "invalid choice"),
    "an address that is not served": ("`/event/jobs/1`", "no such address"),
    "a resource that is gone": ("`GET /api/v1/job`", "the API has no GET"),
    "a block of another language": ("```ruby\nputs 1\n```", "is not checked"),
    "a command": ("```bash\nweirs run pipeline.py\n```", "not known"),
    "a subcommand": ("```bash\nweir start pipeline.py\n```", "invalid choice"),
    "an option": ("```bash\nweir checkpoints storage --workers 2\n```", "unrecognized arguments"),
    "a target": ("```bash\nmake tests\n```", "no target tests"),
    "a variable of make": ("```bash\nmake fuzz HOURS=1\n```", "does not know HOURS=1"),
    "a command of manage.py": ("```bash\npython manage.py weir_down\n```", "no command"),
    "an option of manage.py": ("```bash\npython manage.py weir_user a --role x\n```", "role"),
    "a service": ("```bash\ndocker compose up webs\n```", "no service webs"),
    "a service of a copy": ("```bash\ndocker compose cp a webs:/b\n```", "no service webs"),
    "a substituted command": ('```bash\nuri=$(weir halt "$x")\n```', "invalid choice"),
    "a path of the API": (
        '```bash\ncurl -H "Authorization: Bearer $TOKEN" $URL/api/v1/jobs/$JOB/halt\n```',
        "the API has no GET",
    ),
    "a method of the API": (
        '```bash\ncurl -H "Authorization: Bearer $TOKEN" -X PUT $URL/api/v1/jobs/$JOB\n```',
        "the API has no PUT",
    ),
    "a request without a token": ("```bash\ncurl $URL/api/v1/jobs\n```", "needs a token"),
    "a parameter of the API": (
        '```bash\ncurl -H "Authorization: Bearer $TOKEN" "$URL/api/v1/jobs?state=running"\n```',
        "no parameter state",
    ),
    "a value of a parameter": (
        '```bash\ncurl -H "Authorization: Bearer $TOKEN" "$URL/api/v1/jobs?status=up"\n```',
        "status=up",
    ),
    "a body": (
        '```bash\ncurl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" '
        "$URL/api/v1/jobs/$JOB/rescale -d '{\"width\": 4}'\n```",
        "the body does not fit",
    ),
    "a member of an answer": ('```json Me\n{"name": "mara"}\n```', "Me has no member name"),
    "the type of a member": ('```json Problem\n{"status": "409"}\n```', "not of type"),
    "a file in a picture": ("```text\nweir/spark/slots.py\n```", "no file weir/spark/slots.py"),
    "a room in a picture": (
        '```mermaid\nflowchart TB\n  a["weir.runtime"] --> b["weir.graph"]\n```',
        "weir.runtime cannot be imported",
    ),
}


@pytest.mark.parametrize(("text", "problem"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_noticed(text: str, problem: str) -> None:
    said = problems(Page("README.md", text))
    assert len(said) == 1, said
    assert problem in said[0]


def test_an_example_that_raises_or_prints_something_else_is_noticed(tmp_path: Path) -> None:
    for number, (text, output, problem) in enumerate(
        (
            ("from weir.datastream import Nothing\n", None, "cannot import name"),
            ("print(1)\n", "2\n", "it prints\n1\n"),
        )
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        said = run(Block(1, "python", "", text, output), directory)
        assert said is not None
        assert problem in said


def test_a_wrong_arrow_is_noticed() -> None:
    page = page_of("docs/architecture.md")
    without = Page(page.name, page.text.replace("  running --> failing\n", "", 1))
    assert state_problems(without) == ["Job: [('running', 'failing')]"]
    phase = Page(page.name, page.text.replace("saving --> ending", "ending --> saving"))
    assert len(state_problems(phase)) == 1
    down, up = 'wire --> protocol["weir.protocol"]', 'protocol["weir.protocol"] --> wire'
    upward = Page(page.name, page.text.replace(down, up))
    assert room_problems(upward) == ["weir.protocol does not stand on weir.wire"]
    shorter = Page(page.name, page.text.replace("| `weir/local/` |", "| `weir/tools/` |"))
    assert room_problems(shorter) == ["weir/local/ is not listed"]
