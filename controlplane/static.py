"""The static files of ``collectstatic``, compressed for clients that accept gzip."""

import os
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, PathLike, StaticFiles
from starlette.types import Scope

from controlplane.base.static_storage import SUFFIX, is_current


class Static(StaticFiles):
    """The static files of a directory, which may be created after the process has started.

    Browsers cache the files and revalidate them each time: names stay the same between versions,
    and a page must not run with a script of an older version.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, check_dir=False)
        self._directory = directory

    async def check_config(self) -> None:
        """Check that the directory exists; called before each request until it does."""
        if not self._directory.is_dir():
            raise HTTPException(404, "there are no static files; run manage.py collectstatic")

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, or 304 if the browser has it."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response

    def file_response(
        self,
        full_path: PathLike,
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """The file or its compressed copy, each with its own ETag; or 304."""
        compressed = Path(os.fspath(full_path) + SUFFIX)
        if not is_current(compressed, stat_result):
            return super().file_response(full_path, stat_result, scope, status_code)
        headers = Headers(scope=scope)
        # By its name the copy has the content's type; gzip is declared as the encoding.
        response: Response
        if accepts_gzip(headers.get("Accept-Encoding", "")):
            response = FileResponse(compressed, status_code, stat_result=compressed.stat())
            response.headers["Content-Encoding"] = "gzip"
        else:
            response = FileResponse(full_path, status_code, stat_result=stat_result)
        response.headers["Vary"] = "Accept-Encoding"
        if self.is_not_modified(response.headers, headers):
            return NotModifiedResponse(response.headers)
        return response


def accepts_gzip(accepted: str) -> bool:
    """Whether an ``Accept-Encoding`` names gzip with a weight above 0."""
    for item in accepted.lower().replace(" ", "").split(","):
        name, _, weight = item.partition(";q=")
        if name == "gzip":
            return not weight or weight.strip("0.") != ""
    return False
