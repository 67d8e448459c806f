"""The page of what a job's drivers wrote."""

import json
import re
import threading
from functools import partial
from html import unescape
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.base.threads import FileThreads
from frontend.about import log_search
from frontend.about.log_tail import PART_BYTES, LastBytes
from jobs.drivers import driver_files
from jobs.models import Driver, Job
from tests import factories

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def job(settings: Settings, tmp_path: Path) -> Job:
    settings.WEIR_DRIVERS = tmp_path / "drivers"
    job = factories.job()
    factories.driver(job, 1, status="lost", cause="it fell silent", launched_by="node-7")
    factories.driver(job, 2)
    return job


def write(driver: Driver, data: bytes) -> Path:
    path = driver_files.log_path(driver)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def lines(page: str) -> list[str]:
    """The log as it is read."""
    shown = re.findall(
        r'<(?:p class="line|span class="text)[^>]*>(.*?)</(?:p|span)>', page, re.DOTALL
    )
    return [line for line in shown if line]


def test_a_directory_that_hangs_holds_no_request_for_long(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where launcher and server share it on a file server that is away."""
    answers = threading.Event()
    readers = FileThreads(2, "hung", patience_s=0.0)
    run = readers.run
    monkeypatch.setattr(readers, "run", lambda function: run(function, wait_s=0.01))
    monkeypatch.setattr(driver_files, "log_readers", readers)
    monkeypatch.setattr(driver_files, "open_log", lambda driver: answers.wait(20))
    page, api = f"/jobs/{job.pk}/logs/", f"/api/v1/jobs/{job.pk}/drivers/2/log"
    try:
        for _ in range(2):  # Then its threads are held, and nothing else is.
            assert "did not answer in time" in operator.get(page).content.decode()
        assert operator.get(f"{page}2/data").status_code == 404
        assert operator.get(f"{page}2/download").status_code == 404
        refused = operator.get(api)
        assert refused.status_code == 503
        assert "the storage does not answer. Try again soon" in refused.json()["detail"]
    finally:
        answers.set()
        readers.close()


def test_only_operators_and_admins_read_logs(client: Client, viewer: Client, job: Job) -> None:
    driver = job.drivers.get(number=2)
    write(driver, b"a secret\n")
    page = f"/jobs/{job.pk}/logs/"
    for address in (page, f"{page}2/data", f"{page}2/download"):
        assert client.get(address)["Location"].startswith("/login/?next=")
        assert viewer.get(address).status_code == 403
        for role in (Role.OPERATOR, Role.ADMIN):
            browser = Client()
            browser.force_login(factories.user(role, f"{role}-{len(address)}"))
            response = browser.get(address)
            assert response.status_code == 200
            list(response)  # Which closes the file.
    assert f'href="{page}"' not in viewer.get(f"/jobs/{job.pk}/").content.decode()


def test_the_newest_driver_s_end_is_shown_with_the_others_beside_it(
    operator: Client, job: Job
) -> None:
    write(job.drivers.get(number=1), b"first\n")
    write(job.drivers.get(number=2), b"second\nERROR no\nhalf a li")
    page = operator.get(f"/jobs/{job.pk}/logs/").content.decode()
    assert lines(page) == ["second", "ERROR no", "half a li"]
    assert re.search(r'<p class="line" data-end="\d+" data-tone="bad">ERROR no', page)
    assert "the whole log, 25 B" in page
    for words in ("it fell silent", 'href="?driver=2" aria-current="page"', 'href="?driver=1">'):
        assert words in page
    assert lines(operator.get(f"/jobs/{job.pk}/logs/?driver=1").content.decode()) == ["first"]


def test_without_a_script_links_go_back_and_forth_in_a_long_log(operator: Client, job: Job) -> None:
    data = b"".join(b"line %06d\n" % n for n in range(12_000))
    write(job.drivers.get(number=2), data)
    seen, address = [], f"/jobs/{job.pk}/logs/"
    while True:
        page = operator.get(address).content.decode()
        assert len(page) < 20 * PART_BYTES
        seen = lines(page) + seen
        earlier = re.search(r'rel="prev" href="([^"]+)"', page)
        if earlier is None:
            break
        address = f"/jobs/{job.pk}/logs/" + earlier[1].replace("&amp;", "&")
    assert seen == [f"line {n:06}" for n in range(12_000)]
    later = re.search(r'rel="next" href="([^"]+)"', page)
    assert later is not None
    assert "The beginning of the log" in page
    assert "Follow" not in page  # Only the end of a log grows.
    page = operator.get(f"/jobs/{job.pk}/logs/" + later[1].replace("&amp;", "&")).content.decode()
    assert lines(page)[0] == f"line {len(lines(operator.get(address).content.decode())):06}"


def test_following_gives_whole_lines_and_where_to_go_on(operator: Client, job: Job) -> None:
    driver = job.drivers.get(number=2)
    log = write(driver, b"a\nb")
    page = operator.get(f"/jobs/{job.pk}/logs/").content.decode()
    assert 'data-next="2"' in page
    with log.open("ab") as file:
        file.write(b"c\nERROR d\n")
    answer = operator.get(f"/jobs/{job.pk}/logs/2/data?from=2").json()
    assert [(line["text"], line["tone"]) for line in answer["entries"]] == [
        ("bc", ""),
        ("ERROR d", "bad"),
    ]
    assert (answer["next"], answer["unfinished"], answer["has_later"]) == (13, "", False)
    assert (answer["status"]["text"], answer["newest"]) == ("Running", 2)
    log.write_bytes(b"anew\n")
    answer = operator.get(f"/jobs/{job.pk}/logs/2/data?from=13").json()
    assert (answer["is_rotated"], answer["next"]) == (True, 5)
    log.unlink()
    assert operator.get(f"/jobs/{job.pk}/logs/2/data?from=5").status_code == 404


def test_the_download_is_the_log_as_it_is(operator: Client, job: Job) -> None:
    write(job.drivers.get(number=2), b"\x1b[1mraw\xff\r\n")
    response = operator.get(f"/jobs/{job.pk}/logs/2/download")
    assert b"".join(response) == b"\x1b[1mraw\xff\r\n"
    assert response["Content-Disposition"] == f'attachment; filename="{job.pk}-driver-2.log"'
    assert response["Content-Type"].startswith("text/plain")
    assert operator.get(f"/jobs/{job.pk}/logs/1/download").status_code == 404


def test_a_log_that_hangs_in_its_download_is_given_up(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(job.drivers.get(number=2), b"a line\n")
    answers = threading.Event()
    readers = FileThreads(1, "hung")
    monkeypatch.setattr(driver_files, "log_readers", readers)
    response = operator.get(f"/jobs/{job.pk}/logs/2/download")
    monkeypatch.setattr(readers, "run", partial(readers.run, wait_s=0.01))
    monkeypatch.setattr(LastBytes, "read", lambda last, length: answers.wait(20))
    try:
        with pytest.raises(TimeoutError, match="did not answer"):
            list(response)
    finally:
        answers.set()
        readers.close()


def test_a_log_that_is_not_there_says_why(operator: Client, job: Job) -> None:
    page = operator.get(f"/jobs/{job.pk}/logs/?driver=1").content.decode()
    assert "Its launcher ran on node-7." in page
    assert "rotated away" in page
    job.drivers.filter(number=2).update(status="requested")
    page = operator.get(f"/jobs/{job.pk}/logs/").content.decode()
    assert "This driver has not been launched yet" in page
    assert "No driver yet" in operator.get(f"/jobs/{factories.job('x').pk}/logs/").content.decode()
    write(job.drivers.get(number=2), b"")
    assert (
        "has written nothing to its log yet"
        in operator.get(f"/jobs/{job.pk}/logs/").content.decode()
    )


@pytest.mark.parametrize("query", ["driver=3", "driver=x", "driver=-1", f"driver={'9' * 12}"])
def test_unknown_drivers_are_404(operator: Client, job: Job, query: str) -> None:
    assert operator.get(f"/jobs/{job.pk}/logs/?{query}").status_code == 404
    assert operator.get(f"/jobs/{job.pk}/logs/99999999999/data").status_code == 404
    assert operator.get("/jobs/none/logs/").status_code == 404


@pytest.mark.parametrize("query", ["end=x", "from=-1", f"from={'9' * 19}", "end=" + "9" * 40])
def test_places_that_are_none_lead_to_the_end(operator: Client, job: Job, query: str) -> None:
    write(job.drivers.get(number=2), b"a\n")
    page = operator.get(f"/jobs/{job.pk}/logs/?{query}").content.decode()
    assert lines(page) == ["a"]


def test_text_of_others_is_escaped(operator: Client, job: Job) -> None:
    job.drivers.update(cause=SCRIPT, launched_by=SCRIPT)
    write(job.drivers.get(number=2), f"{SCRIPT}\n{SCRIPT}".encode())
    for address in (f"/jobs/{job.pk}/logs/", f"/jobs/{job.pk}/logs/?driver=1"):
        page = operator.get(address).content.decode()
        assert SCRIPT not in page
        assert "&lt;script&gt;" in page


def weir_line(message: str, level: str = "info", **fields: object) -> bytes:
    """A line as Weir's driver writes it."""
    line = {
        "at": "2026-03-01T10:20:30.405+00:00",
        "level": level,
        "logger": "weir.jobmaster",
        "message": message,
        **fields,
    }
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def test_a_line_is_time_level_and_message_and_the_rest_is_behind_it(
    operator: Client, job: Job
) -> None:
    data = weir_line(
        f"it says {SCRIPT}", "error", thread="loop", traceback="Traceback (…)\nKeyError"
    )
    write(job.drivers.get(number=2), data + b"26/03/01 11:20:31 WARN Utils: no address\n")
    page = operator.get(f"/jobs/{job.pk}/logs/").content.decode()
    assert lines(page) == ["it says &lt;script&gt;alert(1)&lt;/script&gt;", "no address"]
    first, second = re.findall(r"<details class=\"line.*?</details>", page, re.DOTALL)
    for words in (
        'data-tone="bad"',
        ' datetime="2026-03-01T10:20:30.405Z">2026-03-01 10:20:30.405 UTC</time>',
        '<span class="level">ERROR</span>',
        "<dt>thread</dt><dd>loop</dd>",
        ">Traceback (…)\nKeyError</pre>",
    ):
        assert words in first
    for words in ('data-tone="warn"', ">2026-03-01 11:20:31<", "<dt>logger</dt><dd>Utils</dd>"):
        assert words in second
    near = f'href="?driver=2&amp;from={len(data)}"'
    assert near in second
    assert lines(operator.get(f"/jobs/{job.pk}/logs/?from={len(data)}").content.decode()) == [
        "no address"
    ]


def test_a_search_goes_on_where_the_last_one_stopped(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "BLOCK_BYTES", 4_000)
    monkeypatch.setattr(log_search, "SEARCHED_BYTES_MAX", 40_000)
    filler = b"".join(b"line %06d\n" % n for n in range(10_000))
    data = weir_line("a rare & strange one") + filler + weir_line("a rare one, too", "error")
    write(job.drivers.get(number=2), data)
    at, addresses, seen = f"/jobs/{job.pk}/logs/", [], []
    query = "?driver=2&q=RARE"
    while query:
        page = operator.get(at + query).content.decode()
        seen += lines(page)
        onward = re.search(r'rel="prev" href="([^"]+)"', page)
        assert ("Not searched: the" in page) == (onward is not None)
        addresses.append(query)
        query = unescape(onward[1]) if onward else ""
    assert seen == ["a rare one, too", "a rare &amp; strange one"]
    assert 3 <= len(addresses) <= 5
    assert "No line was found so far." in operator.get(at + addresses[1]).content.decode()
    assert lines(operator.get(f"{at}?q=rare&level=error").content.decode()) == ["a rare one, too"]
    assert 'value="error" selected' in operator.get(f"{at}?level=error").content.decode()


def test_following_keeps_the_filter(operator: Client, job: Job) -> None:
    data = weir_line("one") + weir_line("two", "warning")
    write(job.drivers.get(number=2), data)
    page = operator.get(f"/jobs/{job.pk}/logs/?level=warning").content.decode()
    assert 'data-filters="level=warning"' in page
    address = f"/jobs/{job.pk}/logs/2/data?from=0&q=&level=warning"
    answer = operator.get(address).json()
    assert [line["text"] for line in answer["entries"]] == ["two"]
    assert (answer["count"], answer["next"]) == (2, len(data))


def test_the_number_of_queries_is_fixed(operator: Client, job: Job) -> None:
    asked = []
    for more in range(2):
        for number in range(3, 30):
            factories.driver(job, 30 * more + number, status="lost")
        with CaptureQueriesContext(connection) as queries:
            operator.get(f"/jobs/{job.pk}/logs/")
        asked.append(len(queries))
    assert asked[0] == asked[1]
    page = operator.get(f"/jobs/{job.pk}/logs/").content.decode()
    assert "Older drivers are not listed." in page
