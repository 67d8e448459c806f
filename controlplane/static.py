"""Static files as ``collectstatic`` left them, compressed for those who take that."""

import os
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, PathLike, StaticFiles
from starlette.types import Scope

from controlplane.base.static_storage import SUFFIX, is_current


class Static(StaticFiles):
    """Files of a directory, which may come to be after the process started.

    Browsers keep them and ask each time whether they still hold: names stay the same between
    versions, and a page must not meet the script of an older one.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory=directory, check_dir=False)
        self._directory = directory

    async def check_config(self) -> None:
        """Asked before each request until it succeeds."""
        if not self._directory.is_dir():
            raise HTTPException(404, "no static files: run manage.py collectstatic")

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, or 304."""
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
        """The file or the compressed one beside it, each with its own ETag; or 304."""
        compressed = Path(os.fspath(full_path) + SUFFIX)
        if not is_current(compressed, stat_result):
            return super().file_response(full_path, stat_result, scope, status_code)
        headers = Headers(scope=scope)
        # Named so, it is of the type of what is in it, and that it is compressed an encoding.
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
    """Whether an ``Accept-Encoding`` names gzip, and not with the weight of nothing."""
    for item in accepted.lower().replace(" ", "").split(","):
        name, _, weight = item.partition(";q=")
        if name == "gzip":
            return not weight or weight.strip("0.") != ""
    return False
