"""A connection that is handed over or reset while it still has requests: nothing more is done for it."""

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.address import IPv4Address

from metaq.broker import tuning
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from tests.unit.broker.harness import Peer, put

LIST = encode_frame(RequestCode.SHARED_STATUS, 1, {})


class Stream:
    """What a connection of a set's follower becomes."""

    on_gone: Any = None

    def makeConnection(self, transport: Any) -> None:  # noqa: N802
        self.transport = transport


@pytest.mark.parametrize(
    "behind", [b"", encode_frame(RequestCode.FOLLOW, 2, {}), put("t", 0)], ids=["", "FOLLOW", "put"]
)
def test_a_connection_is_handed_over_once_and_what_comes_behind_is_not_served(factory, harness, behind):
    streams: list[Stream] = []

    def accept(frame: Any, become: Any, hosts: Any) -> None:
        streams.append(Stream())
        become(streams[-1])

    harness.broker.member = SimpleNamespace(accept=accept)
    peer = Peer(factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1)))
    transport: Any = peer.transport
    transport.unregisterProducer = lambda: None
    peer.send(encode_frame(RequestCode.FOLLOW, 1, {}) + behind)
    assert len(streams) == 1
    assert list(harness.store.logs()) == []
    assert harness.broker.account.connections.used == 1
    streams[0].on_gone()
    assert harness.broker.account.connections.used == 0


@pytest.mark.parametrize("read_later", [False, True], ids=["at once", "in a later turn"])
def test_a_connection_that_is_handed_over_is_read_though_its_request_had_to_wait(factory, harness, read_later):
    """A leader that never read a follower's next message sent it nothing: the follower stayed out of sync for good."""
    streams: list[Stream] = []

    def accept(frame: Any, become: Any, hosts: Any) -> None:
        assert peer.is_read is not read_later
        streams.append(Stream())
        become(streams[-1])

    harness.broker.member = SimpleNamespace(accept=accept)
    peer = Peer(factory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 1)))
    transport: Any = peer.transport
    if read_later:  # the turns of others have used up this iteration of the reactor
        harness.broker.turns.wait(lambda: None, 0, "127.0.0.2")
        harness.broker.turns._until = harness.reactor.seconds()
    peer.send(encode_frame(RequestCode.FOLLOW, 1, {}))
    assert len(streams) == (not read_later)
    harness.reactor.advance(0)
    assert streams[0].transport is transport
    assert peer.is_read


def test_a_list_for_a_client_that_has_reset_the_connection_is_not_made(peer):
    peer.transport.reset = True
    peer.send(LIST + LIST)
    assert peer.received() == b""
    assert peer.transport.aborted


def test_nor_is_one_that_waited_for_its_place_meanwhile(harness, monkeypatch):
    monkeypatch.setattr(tuning, "MAX_LISTINGS", 1)
    listing = harness.broker.turns.listing
    listing.begin(lambda: None, "another")
    peer, next_one = harness.connect("127.0.0.2"), harness.connect("127.0.0.3")
    peer.send(LIST)
    next_one.send(LIST)
    peer.transport.reset = True
    listing.end()
    for _ in range(3):
        harness.turn()
    assert (peer.received(), peer.transport.aborted) == (b"", True)
    assert len(next_one.frames()) == 1
