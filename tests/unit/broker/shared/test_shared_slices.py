"""What is asked of shared groups is done in slices, however much it is: counted here, measured by bench/worst.py."""

from typing import Any
from weakref import WeakSet

import pytest
import simplejson

from metaq.broker import tuning
from metaq.broker.requests import acquire as acquire_module
from metaq.broker.shared import status
from metaq.broker.shared.queue import SharedQueue
from metaq.broker.shared.state import SharedState
from metaq.protocol.frames import encode_frame
from metaq.protocol.limits import MAX_ACQUIRED, MAX_LISTED_GROUPS
from metaq.protocol.record import Buffer
from metaq.protocol.shared import (
    SettleAction,
    Settlement,
    SettleOutcome,
    SharedStatusRequest,
    decode_outcomes,
    decode_settlements,
)
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness, batch, put, worked_off
from tests.unit.broker.http.test_http_pages import dashboard, parsed
from tests.unit.broker.shared.test_shared_groups import Talk, ack, acquire, codes, settle
from tests.unit.broker.shared.test_shared_state import fresh
from tests.unit.broker.test_slices import turns

STATUS = encode_frame(RequestCode.SHARED_STATUS, 9, SharedStatusRequest("").to_ext())


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is one row or member, and a turn one slice."""
    monkeypatch.setattr(tuning, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "SHARED_SLICE_SECONDS", 0.0)
    for name in ("SHARED_SETTLED", "SHARED_COUNTED", "STATS_LINES"):
        monkeypatch.setattr(tuning, name, 1)


@pytest.fixture
def talk(talk: Talk) -> Talk:
    talk.fill(6)
    return talk


@pytest.fixture
def harness(talk: Talk) -> Harness:
    return talk.harness


def due(harness: Harness) -> int:
    """Do what is due now, and not what comes of it; how many calls."""
    now = harness.reactor.seconds()
    calls: list[Any] = [call for call in harness.reactor.calls if call.time <= now]
    for call in calls:
        if call in harness.reactor.calls:
            harness.reactor.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)
    harness.threads.run()
    return len(calls)


def held(harness: Harness) -> int:
    (queue,) = harness.broker.shared.queues("g")
    return queue.state.held


def served_meanwhile(harness: Harness) -> int:
    """How many puts of another connection are answered until nothing is left to do."""
    other, answered = harness.connect(), []
    turns(harness, lambda turn: answered.append(other.ask(put("t", 1, b"other", turn)).code))
    assert set(answered) == {200}
    return len(answered)


# --- SETTLE -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def found(talk):
    return talk.leased(most=5)


def test_others_are_served_between_the_rows_of_a_settle(harness, talk, found, slices):
    rows = [ack(each) for each in found]
    rows[2:2] = [rows[1], Settlement(found[2].offset, 99, 0, SettleAction.ACK)]
    talk.peer.send(settle(*rows))
    assert talk.peer.received() == b""
    assert served_meanwhile(harness) > len(rows)
    (frame,) = talk.peer.frames()
    done, gone, lost = SettleOutcome
    assert decode_outcomes(frame.body, 7) == [done, done, lost, gone, done, done, done]
    assert held(harness) == 0


def test_a_settle_with_a_wrong_row_at_the_end_does_nothing(harness, talk, found, slices):
    talk.peer.send(settle(*map(ack, found), Settlement(0, 1, 0, 9)))
    turns(harness)
    assert (codes(talk.peer), held(harness)) == ([ResponseCode.MESSAGE_ILLEGAL], 5)


class _Rows(list[Settlement]):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_the_rows_of_a_settle_are_not_all_held_at_once(harness, talk, found, slices, monkeypatch):
    held_at_once: list[int] = []
    alive: WeakSet[_Rows] = WeakSet()

    def decoded(body: Buffer) -> _Rows:
        rows = _Rows(decode_settlements(body))
        alive.add(rows)
        held_at_once.append(len(alive))
        return rows

    monkeypatch.setattr(acquire_module, "decode_settlements", decoded)
    talk.peer.send(settle(*map(ack, found)))
    turns(harness)
    assert held(harness) == 0
    assert max(held_at_once) <= 2


def test_a_settle_is_done_to_its_end_though_its_connection_has_gone(harness, talk, found, slices):
    talk.peer.send(settle(*map(ack, found)))
    talk.peer.lose()
    turns(harness)
    assert (held(harness), talk.peer.received()) == (0, b"")


def test_a_settle_of_a_node_that_stops_to_lead_is_answered_that_nobody_knows(harness, talk, found, slices):
    """Not that the rest is gone: the next leader has it leased."""
    talk.peer.send(settle(*map(ack, found)))
    while held(harness) == 5:
        due(harness)
    harness.broker.shared.follow()
    while due(harness):
        pass
    assert codes(talk.peer) == [ResponseCode.NOT_LEADER]
    harness.broker.shared.lead()
    assert 0 < held(harness) < 5


def test_a_settle_whose_leases_end_in_between_is_done_all_the_same(harness, talk, found, slices):
    talk.peer.send(settle(*map(ack, found)))
    while held(harness) == 5:
        due(harness)
    harness.reactor.advance(31)
    (frame,) = talk.peer.frames()
    assert decode_outcomes(frame.body, 5) == [SettleOutcome.DONE] * 5


# --- leases that end --------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> SharedState:
    """With five leases, whose ends are looked at two at a time."""
    monkeypatch.setattr(tuning, "SHARED_EXPIRED", 2)
    state = fresh(5)
    state.acquire(5, 1 << 20, 10.0, 1, "m")
    return state


def test_leases_end_some_at_a_time_and_their_time_stays_come(ended: SharedState) -> None:
    counts = []
    while ended.next_time is not None and ended.next_time <= 11.0:
        counts.append(ended.expire(11.0))
    assert (counts, ended.leased, ended.available) == ([2, 2, 1], 0, 5)


def test_released_messages_come_back_some_at_a_time(ended: SharedState) -> None:
    for number in range(5):
        ended.release(number * 50, 1, 0.0, 5.0)
    assert [ended.expire(6.0) for _ in range(4)] == [2, 2, 1, 0]


def test_a_lease_whose_end_was_not_looked_at_yet_counts_no_more(ended: SharedState) -> None:
    assert ended.has_leases(9.0)
    ended.expire(11.0)
    assert (ended.leased, ended.has_leases(11.0)) == (3, False)
    ended.extend(200, 1, 20.0)
    assert ended.has_leases(11.0)


def test_a_member_that_waits_gets_what_comes_back_in_later_steps(harness, talk, found, monkeypatch):
    """Suspects, one after the other; the last one's lease ends in the third step."""
    monkeypatch.setattr(tuning, "SHARED_EXPIRED", 2)
    harness.reactor.advance(31)
    offsets = []
    for _ in range(5):
        (each,) = talk.leased("n", 1, wait_ms=1000)
        talk.peer.send(settle(ack(each)))
        turns(harness)
        talk.peer.received()
        offsets.append(each.offset)
    assert sorted(offsets) == [each.offset for each in found]


# --- ACQUIRE ----------------------------------------------------------------------------------------------------------


def test_an_acquire_is_given_so_many_messages_at_most(talk, monkeypatch):
    monkeypatch.setattr(tuning, "SHARED_LEASED", 4)
    assert [len(talk.leased(most=MAX_ACQUIRED)) for _ in range(2)] == [4, 2]


def asking(harness: Harness, count: int, **more: Any) -> list[Any]:
    """So many members, each of which has asked for a message."""
    peers = [harness.connect() for _ in range(count)]
    for number, each in enumerate(peers):
        each.send(acquire(f"m{number}", 1, **more))
    return peers


def test_members_that_wait_are_served_in_turns_and_in_their_order(harness, slices):
    peers = asking(harness, 4, partition=1, wait_ms=1000)
    while due(harness):
        pass
    harness.connect().send(batch("t", 1, [b"1", b"2", b"3"]))
    order: list[int] = []
    while due(harness):
        came = [number for number, each in enumerate(peers) if number not in order and each.transport.value()]
        assert len(came) <= 1
        order.extend(came)
    assert order == [0, 1, 2]


def test_what_was_leased_in_one_turn_is_answered_in_several(harness, slices):
    peers, counts = asking(harness, 3), []
    turns(harness, lambda turn: counts.append(sum(bool(each.transport.value()) for each in peers)))
    assert {1, 2} <= set(counts)
    assert [codes(each) for each in peers] == [[ResponseCode.SUCCESS]] * 3


def test_messages_in_order_are_looked_at_a_few_at_a_time(harness, talk, monkeypatch):
    monkeypatch.setattr(tuning, "SHARED_SCAN_ORDERED", 2)
    assert len(talk.leased(ordered=True)) == 2
    (queue,) = harness.broker.shared.queues("g")
    turns(harness)
    assert queue.state.available == 4


# --- what operators are told ------------------------------------------------------------------------------------------


@pytest.fixture
def groups(talk):
    names = ["a", "b", "c"]
    for name in names:
        talk.leased(group=name, lease_ms=10)
    talk.harness.reactor.advance(61)
    return names


@pytest.mark.parametrize("request_", [STATUS, b"stats shared 7\r\n"], ids=["SHARED_STATUS", "stats"])
def test_others_are_served_between_the_groups_that_are_told_of(harness, talk, groups, slices, request_):
    talk.peer.send(request_)
    assert talk.peer.received() == b""
    assert served_meanwhile(harness) >= 3 * 6  # each of the six messages of each group
    text = talk.peer.received()
    assert all(name in text for name in (b"a", b"b", b"c"))


def test_a_group_that_is_forgotten_meanwhile_is_left_out(harness, talk, groups, slices):
    talk.peer.send(STATUS)
    turns(harness, lambda turn: harness.broker.shared.forget("b") if turn == 1 else None)
    (frame,) = talk.peer.frames()
    assert [each["group"] for each in simplejson.loads(bytes(frame.body))] == ["a", "c"]


@pytest.mark.parametrize("again", [False, True])
def test_a_status_of_a_node_that_stops_to_lead_is_refused(harness, talk, groups, slices, again):
    """Else it would lack groups that there are."""

    def between(turn: int) -> None:
        if turn == 1:
            harness.broker.shared.follow()
            if again:
                harness.broker.shared.lead()

    talk.peer.send(STATUS)
    turns(harness, between)
    assert codes(talk.peer) == [ResponseCode.NOT_LEADER]


def test_what_is_leased_is_counted_some_at_a_time(slices: None) -> None:
    state = fresh(4)
    state.acquire(2, 1 << 20, 10.0, 1, "a")
    state.acquire(2, 1 << 20, 10.0, 2, "b")
    state.release(0, 1, 0.0, 5.0)
    figures = state.figures()
    next(figures)
    assert worked_off(figures) == (1, 1, {"a": 1, "b": 2})


def test_few_lists_are_in_the_making_at_once_and_none_for_a_client_that_left(harness, groups, slices, monkeypatch):
    """Each keeps what it has: 3 MB of 10,000 groups."""
    monkeypatch.setattr(tuning, "MAX_LISTINGS", 1)
    described: list[str] = []
    describe = status._described

    def counted(queue: SharedQueue, now_ms: int) -> Any:
        described.append(queue.key.group)
        return describe(queue, now_ms)

    monkeypatch.setattr(status, "_described", counted)
    peers = [harness.connect() for _ in range(5)]
    for peer in peers:
        peer.send(STATUS)
    peers[1].lose()
    peers[3].lose()
    turns(harness)
    names = described[: len(groups)]
    assert sorted(names) == sorted(groups)
    assert described == names * 3
    assert [len(peer.frames()) for peer in peers] == [1, 0, 1, 0, 1]
    peers[0].send(STATUS)
    peers[0].lose()
    turns(harness)
    assert len(described) <= 3 * len(names) + 1
    peers[2].send(STATUS)
    turns(harness)
    assert len(peers[2].frames()) == 1


def test_a_page_of_figures_is_made_in_turns(harness, groups, slices):
    transport = dashboard(harness).send("GET", "/stats/shared")
    assert turns(harness) > len(groups)
    _, _, body = parsed(transport.value())
    assert all(f"{name} t-0 left 6".encode() in body for name in groups)


def test_so_many_producer_groups_are_listed_at_most(talk, monkeypatch):
    monkeypatch.setattr("metaq.broker.requests.half_verbs.MAX_LISTED_GROUPS", 2)
    assert MAX_LISTED_GROUPS == 1000
    for name in ("c", "a", "b"):
        talk.peer.send(encode_frame(RequestCode.CHECK_HALVES, 1, {"group": name, "limit": "1", "waitMs": "1000"}))
    frame = talk.peer.ask_frame(encode_frame(RequestCode.LIST_HALVES, 2, {"limit": "0"}))
    assert list(simplejson.loads(bytes(frame.body))["groups"]) == ["a", "c"]
