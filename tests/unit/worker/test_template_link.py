import os
import socket

import pytest

from weir.worker.template import LoadProgram, TemplateLink


def test_a_message_that_arrived_whole_is_sent_although_the_peer_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A template that becomes the worker ends the connection as soon as it has the request."""
    ours, theirs = socket.socketpair()
    link, peer = TemplateLink(ours), TemplateLink(theirs)
    send_fds, received = socket.send_fds, []

    def send_to_one_that_leaves(sock: socket.socket, data: list[bytes], fds: tuple[int]) -> int:
        count = send_fds(sock, data, fds)
        received.extend(peer.receive())
        peer.close()
        return count

    monkeypatch.setattr(socket, "send_fds", send_to_one_that_leaves)
    link.send(LoadProgram("module:Worker"), (2,))
    assert received == [LoadProgram("module:Worker")]
    os.close(*peer.take_fds(1))
    with pytest.raises(BrokenPipeError):
        link.send(LoadProgram("module:Worker"))
    link.close()
