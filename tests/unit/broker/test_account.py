"""What clients may have of a broker's memory and places, together and from one address."""

from sys import getsizeof
from typing import Any, cast

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.web.resource import Resource

from metaq.broker import tuning
from metaq.broker.assembly.server import SessionFactory
from metaq.broker.http.browsers import OwnNames
from metaq.broker.http.dashboard import Dashboard, RecentLog
from metaq.broker.http.ports import GuardedSite
from metaq.broker.runtime.account import (
    LOST_BYTES,
    NOBODY,
    SPACE_READ_BYTES,
    WAITING_BYTES,
    Account,
    Quotas,
    Shares,
    account_address,
)
from metaq.broker.runtime.turns import ConnectionTurns
from metaq.broker.shared.rows import SharedKey
from metaq.protocol.errors import AccountSpent
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import CheckHalvesRequest
from metaq.protocol.remoting import StatsRequest
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness, Lives, Peer, many, pull, put, record
from tests.unit.broker.test_slices import step

# --- one budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "takes", "room"),
    [
        pytest.param({}, [("a", 150, True), ("a", 1, False), ("b", 10, True)], {}, id="alone has all but the reserve"),
        pytest.param(
            {NOBODY: 160},
            [("a", 4, True), ("b", 7, False)],
            {"a": 6, "b": 6},
            id="does not pay what was there at the start, and that does not use up the reserve",
        ),
        pytest.param(
            {"b": 1},
            [("a", 80, True), ("a", 1, False), ("b", 79, True), ("c", 1, False), ("b", -80, True), ("a", 70, True)],
            {},
            id="beside others has its share",
        ),
    ],
)
def test_an_address_that_is(there, takes, room):
    budget = Shares("cups", "cups", 160, 50)
    for address, amount in there.items():
        budget.add(address, amount)
    for address, amount, given in takes:
        if amount < 0:
            budget.add(address, amount)
        else:
            assert budget.take(address, amount) == given
    assert budget.used == sum(there.values()) + sum(amount for _, amount, given in takes if given)
    assert budget.refused == sum(not given for _, _, given in takes)
    assert {address: budget.room(address) for address in room} == room


def test_what_is_given_back_is_there_for_others():
    budget = Shares("cups", "cups", 16, 50)
    for _ in range(100):
        assert budget.take("a", 15)
        budget.add("a", -15)
    assert (budget.used, budget.largest) == (0, 0)


def test_a_refusal_names_the_numbers_and_the_option():
    budget = Shares("cups", "maxCups", 160, 25)
    budget.add("b", 1)
    budget.add("10.0.0.5", 40)
    with pytest.raises(AccountSpent) as refused:
        budget.check("10.0.0.5")
    assert str(refused.value) == (
        "too many cups: this broker has 41 of at most 160, 40 of them from 10.0.0.5; one address may have 40 beside "
        "others, 150 alone (see maxCups=160 and addressShare in [limits] of server.ini)"
    )


ADDRESSES = {
    "10.0.0.5": "10.0.0.5",
    "?": "?",
    "::1": "::",
    "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::",
    "2001:db8:1:2::9": "2001:db8:1:2::",
    "fe80::1%eth0": "fe80::",
    "::ffff:10.0.0.5": "10.0.0.5",
}


@pytest.mark.parametrize(("host", "address"), ADDRESSES.items())
def test_a_network_of_ipv6_is_one_address(host, address):
    assert account_address(host) == address


# --- unfinished requests ----------------------------------------------------------------------------------------------

FRAME = 1 << 20
READ = 10_000
LARGE = (15 * FRAME).to_bytes(4, "big") + bytes(100_000)


def begun(size):
    """The first `size` bytes of a frame of FRAME bytes."""
    head = encode_frame(RequestCode.HEARTBEAT, 1, {})
    return ((FRAME - 4).to_bytes(4, "big") + head[4:] + bytes(size))[:size]


@pytest.fixture
def small(tmp_path):
    """A broker that takes four frames of unfinished requests."""
    harness = Harness(tmp_path)
    harness.broker.account = Account(Quotas(unfinished_bytes=4 * FRAME - 1000), harness.reactor)
    yield harness
    harness.close()


def used(harness):
    return dict(harness.broker.account.budgets())["unfinished_bytes"].used


def beginning(harness, count, data, *hosts):
    """So many connections that have sent that, from hosts."""
    peers = [harness.connect(*hosts) for _ in range(count)]
    for peer in peers:
        peer.send(data)
    return peers


def test_unfinished_requests_beyond_the_bound_are_not_read_but_for_the_oldest(small):
    *peers, late = beginning(small, 5, begun(FRAME - 10))
    assert [peer.is_read for peer in (*peers, late)] == [True, True, True, False, False]
    account = small.broker.account.unfinished
    assert account.waiting == 2
    for peer in peers[:2]:
        peer.send(bytes(10))
        assert len(peer.frames()) == 1
    small.turn()
    assert (peers[3].is_read, late.is_read) == (True, False)
    peers[3].lose()
    small.turn()
    assert late.is_read
    for peer in (peers[2], late):
        peer.lose()
    assert (account.waiting, used(small)) == (0, 0)


def test_who_becomes_the_oldest_goes_on_though_the_former_has_begun_another_one(small):
    peers = beginning(small, 4, begun(FRAME - 10))
    for peer in peers[1:3]:
        peer.send(bytes(1))
    assert [peer.is_read for peer in peers] == [True, False, False, False]
    peers[0].send(bytes(10) + begun(FRAME - 10))
    small.turn()
    assert [peer.is_read for peer in peers] == [False, True, False, False]


def test_whole_requests_that_wait_for_their_turn_count_too(small):
    waiting = [small.connect() for _ in range(4)]
    for peer in waiting:
        peer.session.pauseProducing()  # its client takes no answers
        peer.send(begun(FRAME))
    assert used(small) == 4 * FRAME
    late = small.connect()
    late.send(begun(FRAME - 10))
    assert not late.is_read
    for peer in waiting[:2]:
        peer.session.resumeProducing()
        assert len(peer.frames()) == 1
    small.turn()
    assert late.is_read
    assert used(small) == 3 * FRAME - 10


@pytest.fixture
def under_way(small, monkeypatch):
    """A connection, and a request that is done in slices."""
    monkeypatch.setattr(tuning, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(tuning, "SEND_SLICE_SECONDS", -1.0)
    return small.connect(), in_slices(b"hello")


def in_slices(message):
    return many([("t", number % 2, [record(message)]) for number in range(400)])


def test_a_request_under_way_counts_until_it_is_done_though_its_client_has_gone(small, under_way):
    peer, request = under_way
    peer.send(request)
    assert used(small) == len(request)
    peer.lose()
    assert used(small) == len(request)
    for _ in range(1000):
        small.turn()
    assert used(small) == 0
    assert small.broker.account.unfinished._begun == {}


def test_requests_under_way_let_no_others_in_beyond_the_bound(small, under_way, monkeypatch):
    """The oldest goes on without room, so that one completes: the next one when that is done, not when it has come."""
    monkeypatch.setattr(tuning, "SEND_PARTS", 1)
    request = in_slices(bytes(2000))
    peers = [small.connect() for _ in range(20)]
    unsent = dict.fromkeys(peers, request)
    most = 0
    while any(unsent.values()) or small.reactor.getDelayedCalls():
        for peer in [peer for peer, rest in unsent.items() if rest and peer.is_read]:
            peer.send(unsent[peer][:READ])
            unsent[peer] = unsent[peer][READ:]
            most = max(most, used(small))
        if small.reactor.getDelayedCalls():
            step(small)
    assert [len(peer.frames()) for peer in peers] == [1] * 20
    assert used(small) == 0
    assert most <= 4 * FRAME + 2 * len(request) + 20 * READ


def test_whole_requests_that_wait_for_their_turn_let_no_others_in_beyond_the_bound(small, monkeypatch):
    peers = beginning(small, 20, begun(FRAME)[:READ])
    waiting: list[Any] = []
    monkeypatch.setattr(ConnectionTurns, "defers", lambda self, busy: True)
    monkeypatch.setattr(ConnectionTurns, "wait", lambda self, turn, busy, address: waiting.append(turn))
    coming = dict.fromkeys(peers, FRAME - READ)
    most = 0
    while any(coming.values()) or waiting:
        if not (ready := [peer for peer, left in coming.items() if left and peer.is_read]):
            waiting.pop(0)()
        for peer in ready:
            count = min(len(peer.session.space), coming[peer], READ)
            coming[peer] -= count
            peer.session.received(count)
        most = max(most, used(small))
        small.turn()
    assert most <= 6 * FRAME
    assert used(small) == 0
    assert [len(peer.frames()) for peer in peers] == [1] * 20


def test_who_has_nothing_left_is_read_again_though_there_is_no_room(small, under_way):
    peer, request = under_way
    (oldest,) = beginning(small, 1, begun(100))
    oldest.session.pauseProducing()
    oldest.send(begun(FRAME)[100:] + begun(FRAME) * 3)
    peer.send(request)
    assert not peer.is_read
    for _ in range(1000):
        small.turn()
    assert len(peer.frames()) == 1
    assert peer.is_read
    assert used(small) == 4 * FRAME


def test_a_request_under_way_is_not_cut(small, under_way):
    peer, request = under_way
    peer.send(request)
    assert peer.is_read
    for _ in range(20):
        small.broker.account.unfinished.look()
    assert not peer.transport.aborted


def test_an_address_beside_others_is_held_back_first(small):
    (other,) = beginning(small, 1, begun(100), "10.0.0.2")
    strangers = beginning(small, 3, begun(FRAME - 1000), "10.0.0.1")
    assert [peer.is_read for peer in (*strangers, other)] == [True, True, False, True]
    other.send(begun(FRAME)[100:])
    assert len(other.frames()) == 1


def test_bytes_that_come_one_by_one_count_what_they_take(small):
    peer = small.connect()
    request = put("t", 0, bytes(2000))
    for byte in request[:-1]:
        peer.send(bytes([byte]))
    assert used(small) > 1900 * 64
    assert peer.ask(request[-1:]).code == 200
    assert used(small) == 0
    peer.ask(put("t", 0))  # what is answered at once takes no part
    assert small.broker.account.unfinished._begun == {}


def test_a_connection_brings_a_bounded_piece_before_it_is_counted(harness):
    (peer,) = beginning(harness, 1, LARGE)
    assert len(peer.session.space) == SPACE_READ_BYTES
    peer.session.received(SPACE_READ_BYTES)
    assert used(harness) == SPACE_READ_BYTES + 100_004
    peer.lose()
    assert peer.session._reader.held_bytes == 0


def test_who_may_not_go_on_brings_one_byte_more_and_then_waits(small):
    """However many had begun while there was room."""
    oldest, *peers = beginning(small, 6, LARGE)
    oldest.session.received(len(oldest.session.space))
    bringing = [len(peer.session.space) for peer in peers]
    for peer in peers:
        peer.session.received(len(peer.session.space))
    assert bringing[0] == SPACE_READ_BYTES
    assert [len(peer.session.space) for peer in peers] == [1] * 5
    assert used(small) <= 4 * FRAME
    for peer in peers:
        peer.session.received(1)
    assert [peer.is_read for peer in peers] == [False] * 5
    assert len(oldest.session.space) == SPACE_READ_BYTES


def test_memory_of_many_requests_that_never_came_whole_is_given_back(small, monkeypatch):
    given = []
    monkeypatch.setattr("metaq.broker.runtime.account.give_back", lambda: given.append(1))
    for _ in range(LOST_BYTES // 100_000 + 1):
        assert given == []
        (peer,) = beginning(small, 1, LARGE)
        peer.lose()
        small.turn()
    assert given == [1]


def test_a_request_that_does_not_come_whole_in_time_ends_its_connection(factory, harness, caplog):
    caplog.set_level("INFO")
    (peer,) = beginning(harness, 1, begun(100))
    quick = harness.connect()
    for _ in range(5):
        harness.reactor.advance(5)
        for data in (put("t", 0) + b"put t", put("t", 0)[5:], b"put t", put("t", 0)[5:]):
            quick.send(data)
    assert not peer.transport.aborted
    harness.reactor.advance(5)
    assert not peer.transport.aborted
    harness.reactor.advance(5)
    assert (peer.transport.aborted, quick.transport.aborted) == (True, False)
    assert "for 30 s a request came at less than 16384 bytes a second" in caplog.text
    assert harness.broker.account.unfinished.cut == 1


def test_a_request_that_comes_fast_enough_has_more_time(factory, harness):
    (peer,) = beginning(harness, 1, begun(100_000))
    for _ in range(9):
        harness.reactor.advance(5)
        peer.send(bytes(100_000))
    harness.reactor.pump([5] * 7)
    assert not peer.transport.aborted
    harness.reactor.advance(5)
    assert peer.transport.aborted


def test_time_in_which_a_connection_is_not_read_does_not_count(factory, harness):
    (peer,) = beginning(harness, 1, begun(100))
    peer.session.pauseProducing()
    harness.reactor.pump([5] * 20)
    peer.session.resumeProducing()
    harness.reactor.pump([5] * 6)
    assert not peer.transport.aborted
    harness.reactor.advance(5)
    assert peer.transport.aborted


def test_a_broker_that_stood_still_cuts_nobody(factory, harness):
    (peer,) = beginning(harness, 1, begun(100))
    harness.reactor.advance(3600)
    assert not peer.transport.aborted


def test_limits_have_defaults():
    account = Account(Quotas(), Clock())
    assert dict(account.budgets())["unfinished_bytes"].limit == 128 << 20


# --- requests that wait -----------------------------------------------------------------------------------------------


def waiting(harness):
    return harness.broker.account.waiting.used


def check_halves(group, wait_ms=1000, opaque=1, **more):
    return encode_frame(RequestCode.CHECK_HALVES, opaque, CheckHalvesRequest(group, 1, wait_ms, **more).to_ext())


def test_a_pull_that_waits_counts_what_it_says(harness):
    peer = harness.connect()
    peer.send(pull("t", 0, 0, wait_ms=1000))
    assert waiting(harness) == WAITING_BYTES
    peer.send(pull("t", 0, 0, wait_ms=1000, tags=tuple(map(str, range(1000)))))
    assert waiting(harness) == 2 * WAITING_BYTES + 4000
    where = f"x IN ({', '.join(map(repr, map('é{}'.format, range(400))))})"
    peer.send(pull("t", 0, 0, wait_ms=1000, where=where))
    assert waiting(harness) == 3 * WAITING_BYTES + 4000 + getsizeof(where)
    harness.reactor.advance(2)
    assert waiting(harness) == 0
    assert len(peer.frames()) == 3
    peer.send(pull("t", 0, 0, wait_ms=1000) * 3)
    peer.send(put("t", 0))
    harness.turn()
    assert waiting(harness) == 0
    peer.send(pull("t", 1, 0, wait_ms=1000) * 3)
    peer.half_close()
    harness.turn()
    assert waiting(harness) == 0


def test_one_address_does_not_take_the_places_of_all(harness):
    harness.broker.account = Account(Quotas(waiting_bytes=160 * WAITING_BYTES), harness.reactor)
    crowd = beginning(harness, 4, pull("t", 0, 0, wait_ms=1000) * 50, "10.0.0.1")
    assert waiting(harness) == 150 * WAITING_BYTES
    assert [frame.code for frame in crowd[3].frames()] == [ResponseCode.SYSTEM_BUSY] * 50
    (other,) = beginning(harness, 1, pull("t", 0, 0, wait_ms=1000) * 10, "10.0.0.2")
    assert other.frames() == []
    for peer in (*crowd, other):
        peer.lose()
    harness.turn()
    assert waiting(harness) == 0


def test_questions_for_half_messages_count_while_they_wait(harness):
    harness.broker.account = Account(Quotas(waiting_bytes=32 * WAITING_BYTES), harness.reactor)
    peer = harness.connect()
    for number in range(16):
        peer.send(check_halves(f"g{number}"))
    (refused,) = peer.frames()
    assert (refused.code, "waitingBytes=32768" in refused.remark) == (ResponseCode.SYSTEM_BUSY, True)
    assert waiting(harness) == 30 * WAITING_BYTES
    harness.reactor.advance(2)
    assert len(peer.frames()) == 15
    assert waiting(harness) == 0
    peer.send(check_halves("g", topics=frozenset({"t"})))
    peer.lose()
    assert waiting(harness) == 0


def test_a_connection_asks_for_the_half_messages_of_a_bounded_number_of_groups(harness):
    peer = harness.connect()
    for number in range(1025):
        peer.send(check_halves(f"g{number}", 0, producer="p"))
    codes = [frame.code for frame in peer.frames()]
    assert codes == [ResponseCode.SUCCESS] * 1024 + [ResponseCode.MESSAGE_ILLEGAL]
    assert waiting(harness) == 0
    assert peer.ask_frame(check_halves("g0", 0, producer="p")).code == ResponseCode.SUCCESS


# --- places -----------------------------------------------------------------------------------------------------------


def address(host: str) -> Any:
    return IPv4Address("TCP", host, 1)


def test_a_host_with_all_connections_leaves_some_to_others(harness):
    factory = SessionFactory(harness.broker, harness.gate, 160)
    here, there = map(address, ("10.0.0.1", "10.0.0.2"))
    made = [session for _ in range(200) if (session := factory.buildProtocol(here))]
    assert len(made) == 150
    assert factory.buildProtocol(there)
    Peer(made[0], "10.0.0.1").lose()
    assert factory.buildProtocol(here) is None
    assert factory.buildProtocol(there)
    assert harness.broker.account.connections.used == 151


def test_the_http_ports_have_a_part_of_the_connections(harness):
    SessionFactory(harness.broker, harness.gate, 1000, http=True)
    account = harness.broker.account
    assert (account.connections.limit, account.http.limit) == (750, 250)
    site = GuardedSite(cast(Any, Resource()), OwnNames([]), harness.broker, Clock())
    channels = [site.buildProtocol(address("10.0.0.1")) for _ in range(300)]
    assert channels.count(None) == 300 - 235
    transport: Any = StringTransport()
    channels[0].makeConnection(transport)
    assert transport.bufferSize == tuning.HTTP_READ_BYTES
    channels[0].connectionLost(Failure(ConnectionDone()))
    assert account.http.used == 234
    assert site.buildProtocol(address("10.0.0.2")) is not None


def test_pages_that_wait_for_zookeeper_leave_threads_to_messages(harness):
    dashboard = Dashboard(harness.broker, harness.gate, lambda: cast(Any, object()), RecentLog())
    shown: list[Any] = [dashboard.cluster() for _ in range(6)]
    assert len(harness.threads.waiting) == 4
    failures: list[Any] = []
    for each in shown[4:]:
        each.addErrback(failures.append)
    assert ["too many pages that wait for ZooKeeper" in str(failure.value) for failure in failures] == [True, True]
    harness.threads.run()
    for each in shown[:4]:
        each.addErrback(lambda failure: None)
    assert harness.broker.account.pages.used == 0


def acquire(group):
    request = AcquireRequest("t", 0, group, "m", max_records=1, max_bytes=100, lease_ms=1000)
    return encode_frame(RequestCode.ACQUIRE, 1, request.to_ext())


def test_one_address_does_not_make_all_shared_groups(harness):
    shares = Shares("shared groups", "sharedGroups", 16, 50)
    harness.broker.shared._places = harness.broker.account.shared_groups = shares
    crowd, other = harness.connect("10.0.0.1"), harness.connect("10.0.0.2")
    for number in range(16):
        crowd.send(acquire(f"g{number}"))
    refused = crowd.frames()[-1]
    assert (refused.code, "sharedGroups=16" in refused.remark) == (ResponseCode.SHARED_REFUSED, True)
    assert other.ask_frame(acquire("mine")).code != ResponseCode.SHARED_REFUSED
    assert crowd.ask_frame(acquire("g1")).code != ResponseCode.SHARED_REFUSED
    harness.reactor.advance(100)
    harness.broker.shared._queues[SharedKey("g1", "t", 0)].state.expire(harness.reactor.seconds())
    harness.broker.shared.forget("g1")
    assert harness.broker.account.shared_groups.used == 15


def test_one_address_does_not_make_all_topics(harness):
    harness.broker.account.made_topics = Shares("topics without a section", "madeTopics", 16, 50)
    crowd, other = harness.connect("10.0.0.1"), harness.connect("10.0.0.2")
    for number in range(15):
        assert crowd.ask(put(f"%RETRY%g{number}", 0)).code == 200
    refused = crowd.ask(put("%RETRY%more", 0))
    said = "too many topics without a section: this broker has 15 of at most 16, 15 of them from 10.0.0.1"
    assert (refused.code, said in refused.text) == (503, True)
    assert other.ask(put("%RETRY%mine", 0)).code == 200
    assert crowd.ask(put("%RETRY%g1", 0)).code == 200
    assert crowd.ask(put("t", 0)).code == 200
    assert harness.broker.account.made_topics.used == 16


def test_a_group_that_is_new_after_a_restart_still_gets_its_topics(tmp_path):
    lives = Lives(tmp_path, topics="[limits]\nmadeTopics=16\n")
    for number in range(16):
        assert lives.harness.connect(f"10.0.0.{1 + number % 2}").ask(put(f"%RETRY%g{number}", 0)).code == 200
    lives.restart()
    assert lives.broker.account.made_topics.used == 16
    assert lives.harness.connect("10.0.0.3").ask(put("%RETRY%new", 0)).code == 200
    lives.end()


def test_an_item_of_stats_that_is_none_is_not_repeated_at_length(peer):
    frames = [encode_frame(RequestCode.STATS, 1, StatsRequest("x" * count).to_ext()) for count in (240, 241)]
    assert peer.ask_frame(frames[0]).code == 0
    answer = peer.ask_frame(frames[1])
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "extFields.item has 241 characters" in answer.remark
