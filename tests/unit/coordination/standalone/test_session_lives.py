"""How sessions begin, go on over connections, and end."""

import struct

import pytest

from metaq.coordination.standalone.codes import OpCode
from metaq.coordination.standalone.jute import encode_buffer, encode_text
from metaq.coordination.standalone.sessions import password_of
from metaq.coordination.standalone.words import WORDS
from tests.unit.coordination.standalone.harness import EPHEMERAL, TICK_MS, Client, Reply, Server

FIRST_FRAME_MS = 10_000


@pytest.mark.parametrize(("wanted", "granted"), [(0, 2 * TICK_MS), (5000, 5000), (10**6, 60_000), (-1, 2 * TICK_MS)])
def test_a_session_is_granted_between_two_ticks_and_the_maximum(server: Server, wanted: int, granted: int):
    assert server.client(wanted_ms=wanted).timeout_ms == granted


def test_ids_and_passwords_differ(server: Server):
    first, second = server.client(), server.client()
    assert first.session != second.session
    assert first.password != second.password


def test_an_old_client_gets_no_byte_for_read_only(server: Server):
    client = Client(server)
    body = struct.pack("!iqiq", 0, 0, 5000, 0) + encode_buffer(bytes(16))
    client.send(struct.pack("!i", len(body)) + body)
    (old,) = client.frames()
    assert len(old) == 36
    new = Client(server)
    assert new.connect() == b"\0"


def test_a_session_goes_on_at_another_connection(server: Server):
    first = server.client()
    first.create("/e", mode=EPHEMERAL)
    second = Client(server)
    second.connect(session=first.session, password=first.password)
    assert (second.session, first.closed) == (first.session, True)
    server.core.lost(first.connection)
    assert second.has("/e")


def test_passwords_are_those_that_apache_gives(server: Server):
    """Seen at ZooKeeper 3.9.5."""
    assert password_of(0x010002FCB1CD0000) == b"\x29\x1f\x59\x6f\x02\x4c\x52\x8f\xaf\xf4\x2c\x6c\x1b\xb1\xef\x5b"
    client = server.client()
    assert client.password == password_of(client.session)


@pytest.mark.parametrize("password", [bytes(16), b"", b"x" * 16])
def test_a_wrong_password_opens_nothing_and_disturbs_nobody(server: Server, password: bytes):
    first, second = server.client(), Client(server)
    second.connect(session=first.session, password=password)
    assert (second.session, second.timeout_ms, second.password, second.closed) == (0, 0, bytes(16), True)
    assert not first.closed


def test_who_has_seen_more_than_this_server_is_turned_away(server: Server):
    server.client().create("/a")
    zxid = server.core.database.zxid
    ahead, level = Client(server), Client(server)
    ahead.connect(seen=zxid + 1)
    level.connect(seen=zxid)
    assert (ahead.session, ahead.closed, level.session != 0) == (0, True, True)


def test_a_silent_session_expires_within_a_tick_of_its_time(server: Server):
    client, other = server.client(wanted_ms=2000), server.client(wanted_ms=60_000)
    client.create("/e", mode=EPHEMERAL)
    server.wait(2000)
    assert other.has("/e")
    server.wait(TICK_MS)
    assert not other.has("/e")


def test_a_ping_keeps_a_session(server: Server):
    client = server.client(wanted_ms=2000)
    for _ in range(5):
        server.wait(1500)
        assert client.ask(OpCode.PING, xid=-2).code == 0


@pytest.mark.parametrize("known", [True, False])
def test_an_expired_session_is_not_taken_up_again_and_an_unknown_one_is_refused_like_it(server: Server, known: bool):
    client = server.client(wanted_ms=2000)
    server.wait(3000)
    again = Client(server)
    again.connect(session=client.session if known else 12345, password=client.password)
    assert (again.session, again.closed) == (0, True)


def test_a_reconnect_renews_the_time_with_what_it_asks_for(server: Server):
    client = server.client(wanted_ms=2000)
    server.core.lost(client.connection)
    server.wait(1500)
    again = Client(server)
    again.connect(wanted_ms=10_000, session=client.session, password=client.password)
    server.wait(8000)
    assert again.ask(OpCode.PING, xid=-2).code == 0


def test_requests_behind_the_end_of_a_session_are_not_done(server: Server):
    client = server.client()
    client.post(OpCode.CLOSE_SESSION)
    client.post(OpCode.EXISTS, encode_text("/") + b"\0")
    assert [reply.code for reply in client.replies()] == [0]
    assert client.closed


def test_a_connection_that_says_nothing_is_closed(server: Server):
    silent, cut = Client(server), Client(server)
    cut.send(b"\0\0")
    server.wait(FIRST_FRAME_MS - TICK_MS)
    assert not silent.closed
    server.wait(2 * TICK_MS)
    assert silent.closed
    assert cut.closed


def test_a_first_packet_that_is_none_closes_the_connection(server: Server):
    client = Client(server)
    client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert client.closed


@pytest.mark.parametrize("word", sorted(WORDS))
def test_four_letters_are_answered_and_the_connection_is_closed(server: Server, word: bytes):
    server.client().create("/e", mode=EPHEMERAL)
    asker = Client(server)
    asker.send(word + b"\r\n")
    assert b"".join(asker.connection.take())
    assert asker.closed


def test_statistics_read_as_apaches(server: Server):
    client = server.client()
    client.create("/e", mode=EPHEMERAL)
    client.data("/e", watch=True)
    asker = Client(server)
    asker.send(b"srvr")
    said = b"".join(asker.connection.take()).decode()
    assert said.startswith("Zookeeper version: 3.9.")
    assert said.splitlines()[1:] == [
        *("Latency min/avg/max: 0/0.0/0", "Received: 4", "Sent: 3", "Connections: 2", "Outstanding: 0"),
        *("Zxid: 0x2", "Mode: standalone", "Node count: 6"),
    ]
    asker = Client(server)
    asker.send(b"mntr")
    pairs = dict(line.split("\t") for line in b"".join(asker.connection.take()).decode().splitlines())
    names = ("server_state", "znode_count", "ephemerals_count", "watch_count")
    assert [pairs[f"zk_{name}"] for name in names] == ["standalone", "6", "1", "1"]


def test_a_peer_that_lets_events_pile_up_is_dropped(server: Server, monkeypatch: pytest.MonkeyPatch):
    """When it is back it asks what it missed."""
    monkeypatch.setattr("metaq.coordination.standalone.outbox.MOST_UNSENT_BYTES", 100_000)
    client, slow = server.client(), server.client()
    path = "/" + "x" * 10_000
    client.create(path)
    slow.add_watch(path, mode=0)
    for _ in range(9):
        client.set_data(path, b"")
    assert not slow.closed
    for _ in range(3):
        client.set_data(path, b"")
    assert slow.closed
    assert client.ask(OpCode.PING, xid=-2).code == 0


def test_requests_of_a_peer_that_takes_no_answers_wait(server: Server):
    client = server.client()
    client.create("/a", bytes(900_000))
    for _ in range(10):
        client.post(OpCode.GET_DATA, encode_text("/a") + b"\0")
    assert client.connection.unsent < 2_000_000
    answered: list[Reply] = []
    while len(answered) < 10:
        found = client.replies()
        assert found
        answered += found
        server.work()
    assert [reply.xid for reply in answered] == list(range(2, 12))
