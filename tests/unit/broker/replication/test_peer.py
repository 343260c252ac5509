"""A connection between master and slave: answers by opaque, time limits, and its end."""

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import Clock

from metaq.broker.replication import peer as peer_module
from metaq.broker.replication.peer import KeptPeer, Peer
from metaq.coordination.runtime.backoff import Backoff
from metaq.protocol.client_stream import Reply
from metaq.protocol.errors import PeerLost, PeerTimedOut
from metaq.protocol.text import Result, encode_version
from tests.unit.broker.harness import Harness, Transport

Found = list[tuple[Reply | None, Exception | None]]


class Open:
    """An open connection, and what its requests were answered."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.transport = Transport()
        self.transport.setTcpNoDelay = lambda enabled: None  # type: ignore[attr-defined]
        self.peer = Peer(self.clock, "meta://m:1")
        self.peer.makeConnection(self.transport)
        self.found: Found = []
        self.lost: list[Exception] = []
        self.peer.on_lost = self.lost.append

    def ask(self, timeout: float = 5.0) -> None:
        self.peer.send(lambda opaque: (encode_version(opaque),), lambda *found: self.found.append(found), timeout)


@pytest.fixture
def connection() -> Open:
    return Open()


def test_answers_are_matched_by_opaque(connection: Open):
    connection.ask()
    connection.ask()
    assert connection.transport.value() == b"version 1\r\nversion 2\r\n"
    connection.peer.dataReceived(b"result 200 1 2\r\nbresult 200 1 9\r\nxresult 200 1 1\r\na")
    assert [reply.text for reply, _ in connection.found if isinstance(reply, Result)] == ["b", "a"]
    assert connection.peer.waiting == 0


def test_a_request_without_an_answer_ends_and_its_late_answer_is_dropped(connection: Open):
    connection.ask(1.0)
    connection.clock.pump([0.1] * 9)
    assert not connection.found
    connection.clock.pump([0.1] * 3)
    ((reply, error),) = connection.found
    assert reply is None
    assert isinstance(error, PeerTimedOut)
    connection.peer.dataReceived(b"result 200 1 1\r\na")
    assert len(connection.found) == 1
    assert connection.peer.lost is None


def test_nonsense_ends_the_connection_and_whoever_waits_hears_of_it(connection: Open):
    connection.ask()
    connection.peer.dataReceived(b"HTTP/1.1 400\r\n")
    assert isinstance(connection.found[0][1], PeerLost)
    assert len(connection.lost) == 1
    assert connection.transport.aborted
    connection.ask()
    assert isinstance(connection.found[1][1], PeerLost)


def test_a_lost_connection_is_told_once_with_its_first_reason(connection: Open):
    connection.peer.dataReceived(b"HTTP/1.1 400\r\n")
    connection.peer.connectionLost()
    (lost,) = connection.lost
    assert connection.peer.lost is lost
    assert "HTTP/1.1 400" in str(lost)


def test_a_connection_that_is_lost_before_it_is_used_is_made_again(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    lost, kept = Open().peer, Open().peer
    lost.connectionLost()
    made = [lost, kept]
    monkeypatch.setattr(peer_module, "connect", lambda *where, frames: succeed(made.pop(0)))
    used = []

    async def where() -> tuple[str, int]:
        return "m", 1

    async def serve(peer: Peer, ended: Deferred[None]) -> None:
        used.append(peer)
        await ended

    link = KeptPeer(harness.broker, Backoff(0.1, 1.0), "no connection: %s")
    ending = ensureDeferred(link.keep(where, serve, lambda: None))
    assert used == [kept]
    link.stop()
    assert ending.called
