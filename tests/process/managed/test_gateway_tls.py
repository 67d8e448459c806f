"""The driver's line to a control plane over HTTPS with a certificate of a private authority."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.certificates import Authority, make_authority
from tests.process.managed.control_plane import JOB, TOKEN
from weir.managed.gateway_line import GatewayAddress, Line, Version


class Answers(BaseHTTPRequestHandler):
    """Answers every request, and notes the tokens that came with them."""

    tokens: list[str | None]

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def https_server(authority: Authority, directory: Path) -> Iterator[tuple[str, list[str | None]]]:
    """The URL of a server, and the tokens that it got."""
    context = authority.server_context(directory)
    tokens: list[str | None] = []
    handler = type("Handler", (Answers,), {"tokens": tokens})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # Refused handshakes.
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}", tokens
        finally:
            server.shutdown()
            thread.join()


def test_the_token_goes_only_to_a_server_of_the_given_authority(tmp_path: Path) -> None:
    ours, other = make_authority(), make_authority()
    with https_server(ours, tmp_path) as (url, tokens):
        for authority in ("", other.certificate):
            line = Line(GatewayAddress(url, JOB, TOKEN, authority=authority), Version())
            _, problem = line.ask("GET", "/", 10.0)
            assert "CERTIFICATE_VERIFY_FAILED" in problem
            line.close()
        assert tokens == []
        line = Line(GatewayAddress(url, JOB, TOKEN, authority=ours.certificate), Version())
        assert line.ask("GET", "/", 10.0)[1] == "204: "
        line.close()
        assert tokens == [f"Bearer {TOKEN}"]
