"""Static files as ``collectstatic`` left them."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope


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
