"""A full disk or memory, of this machine, PostgreSQL or Redis, is told as that; nothing is lost."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection
from django.test import RequestFactory
from pytest_django import Settings
from redis import Redis as Client
from redis.exceptions import ResponseError
from rest_framework.test import APIClient

from controlplane.accounts import services
from controlplane.accounts.models import Role
from controlplane.audit.models import AuditEntry
from controlplane.base import problems, threads
from controlplane.base.requests import RequestMiddleware
from controlplane.embedded.redis import Redis
from jobs.models import Artifact
from tests import factories
from tests.process.controlplane.test_handler import ask
from tests.process.controlplane.test_streams import served_here
from tests.process.controlplane.web import Web
from weir.protocol.messages import SCHEMA_VERSION

SCRIPT = b"print('streams')\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def api(db: None) -> APIClient:
    secret = services.create_token(None, factories.user(role=Role.OPERATOR), "test", Role.OPERATOR)[
        1
    ]
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def upload(api: APIClient, content: bytes) -> HTTPResponse:
    file = SimpleUploadedFile("orders.py", content)
    return api.post("/api/v1/uploads", {"file": file}, format="multipart")


def test_an_upload_onto_a_full_disk_leaves_nothing(
    api: APIClient, small_disk: Path, settings: Settings
) -> None:
    settings.WEIR_UPLOADS = small_disk
    assert upload(api, SCRIPT).status_code == 201
    kept = sorted(small_disk.iterdir())
    refused = upload(api, SCRIPT * 10_000)
    assert (refused.status_code, refused.json()["code"]) == (507, "disk_full")
    assert "a disk of the control plane is full" in refused.json()["detail"]
    assert sorted(small_disk.iterdir()) == kept
    assert Artifact.objects.count() == AuditEntry.objects.filter(action="upload.store").count() == 1
    assert upload(api, SCRIPT + b"# again").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_a_body_that_fits_nowhere_is_refused(
    small_disk: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ROOT_URLCONF = "tests.process.controlplane.test_handler"
    settings.MIDDLEWARE = ["controlplane.base.requests.RequestMiddleware"]
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 1_000
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    secret = services.create_token(None, factories.user(role=Role.OPERATOR), "test", Role.OPERATOR)[
        1
    ]
    try:
        answer = ask(
            "echo",
            *[b"x" * 10_000] * 20,
            method="POST",
            authorization=f"Bearer {secret}",
            content_length="200000",
        )
    finally:
        threads.close()
    assert answer.status == 507
    assert b"disk_full" in answer.body
    assert list(small_disk.iterdir()) == []


@pytest.mark.django_db(transaction=True)
def test_a_drivers_batch_that_fits_nowhere_is_to_be_sent_again(
    small_disk: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.driver(factories.job("orders", id="orders-1"), token="driver's")
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with served_here() as web:
        answer = web.request(
            "POST",
            "/gateway/v1/jobs/orders-1/events",
            iter([b" " * 100_000] * 20),
            Authorization="Bearer driver's",
            Weir_Schema_Version=str(SCHEMA_VERSION),
        )
    assert (answer.status, answer.json["code"]) == (507, "disk_full")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("state", "where"),
    [("53100", "the disk of PostgreSQL is full"), ("53200", "the memory of PostgreSQL is full")],
)
def test_a_full_database_is_told_as_that(state: str, where: str) -> None:
    def view(_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE 'no space' USING ERRCODE = '{state}'; END $$")

    request = RequestFactory().get("/api/v1/jobs")
    with pytest.raises(OperationalError) as raised:
        view(request)
    for answer in (
        problems.of_exception(request, raised.value),
        RequestMiddleware(lambda _: None).process_exception(request, raised.value),
    ):
        assert answer is not None
        assert answer.status_code == 507
        assert where in answer.content.decode()


def test_a_redis_whose_memory_is_full_is_told_as_that(web: Web, redis: Redis) -> None:
    with Client.from_url(redis.url) as client:
        try:
            client.config_set("maxmemory", 1)
            answer = web.request("GET", "/readyz")
        finally:
            client.config_set("maxmemory", 256 << 20)
    assert answer.status == 503
    assert answer.json["checks"]["redis"] == "the memory of Redis is full"


def test_errors_of_redis_say_what_is_full(redis: Redis) -> None:
    with Client.from_url(redis.url) as client:
        for said, where in (
            ("OOM command not allowed when used memory > 'maxmemory'.", "the memory of Redis"),
            ("MISCONF Errors writing to the AOF file: No space left", "the disk of Redis"),
            ("ERR no such key", None),
        ):
            with pytest.raises(ResponseError) as raised:
                client.eval(f'return redis.error_reply("{said}")', 0)
            assert problems.redis_full(raised.value) == where
