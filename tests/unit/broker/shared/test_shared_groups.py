"""ACQUIRE and SETTLE through the whole broker without a port: what is leased, answered, written down and read again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metaq.broker import tuning
from metaq.broker.account import Shares
from metaq.broker.shared.rows import SharedKey, leased_section, state_section
from metaq.broker.shared.rows import encode_body as encode_rows
from metaq.broker.shared.state import HeldState, Limits, SharedState
from metaq.broker.store.sequence_rows import internal_record
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import ATTRIBUTE_FLAG, HEADER_BYTES, attribute_of, decode_attribute, encode_body
from metaq.protocol.shared import (
    AcquireReply,
    AcquireRequest,
    Leased,
    SettleAction,
    Settlement,
    SettleOutcome,
    SettleRequest,
    SharedForgetRequest,
    SharedStatusRequest,
    decode_leased,
    decode_outcomes,
    encode_settlements,
)
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.properties import LISTED, body_with
from tests.unit.broker.harness import Harness, Peer, put

Make = Callable[..., Harness]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Harness] = []

    def make_one(**more: Any) -> Harness:
        made.append(Harness(tmp_path, **more))
        return made[-1]

    yield make_one
    for harness in made[-1:]:
        harness.close()


def acquire(
    member: str = "m",
    most: int = 10,
    *,
    topic: str = "t",
    group: str = "g",
    lease_ms: int = 30_000,
    partition: int = 0,
    **more: Any,
) -> bytes:
    request = AcquireRequest(topic, partition, group, member, most, 1 << 20, lease_ms, **more)
    return encode_frame(RequestCode.ACQUIRE, 5, request.to_ext())


def settle(*settlements: Settlement, topic: str = "t", group: str = "g") -> bytes:
    body = encode_settlements(settlements)
    request = SettleRequest(topic, 0, group, len(settlements))
    return encode_frame(RequestCode.SETTLE, 6, request.to_ext(), len(body)) + body


def leased(harness: Harness, peer: Peer, request: bytes) -> list[Leased]:
    """What an ACQUIRE is answered; [] for nothing."""
    peer.send(request)
    harness.turn()
    harness.threads.run()
    (frame,) = peer.frames()
    if frame.code == ResponseCode.PULL_NOT_FOUND:
        return []
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    return decode_leased(memoryview(frame.body), AcquireReply.from_ext(frame.ext).records)


def one_by_one(harness: Harness, peer: Peer, count: int, member: str = "m", **more: Any) -> list[Leased]:
    """So many messages of leases that have ended without a word, each acknowledged before the next one is asked for."""
    found = []
    for _ in range(count):
        (each,) = leased(harness, peer, acquire(member, **more))
        assert leased(harness, peer, acquire(member, **more)) == []
        assert settled(harness, peer, ack(each)) == [SettleOutcome.DONE]
        found.append(each)
    return found


def bodies(found: list[Leased]) -> list[bytes]:
    return [bytes(each.record[HEADER_BYTES:]) for each in found]


def settled(harness: Harness, peer: Peer, *settlements: Settlement, **more: Any) -> list[SettleOutcome]:
    peer.send(settle(*settlements, **more))
    harness.turn()
    harness.threads.run()
    (frame,) = peer.frames()
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    return decode_outcomes(frame.body, len(settlements))


def ack(each: Leased) -> Settlement:
    return Settlement(each.offset, each.token, 0, SettleAction.ACK)


def filled(harness: Harness, count: int, topic: str = "t", flag: int = 0, first: int = 0) -> Peer:
    peer = harness.connect()
    send(harness, peer, [b"%d" % number for number in range(first, first + count)], topic, flag)
    return peer


def send(harness: Harness, peer: Peer, bodies: list[bytes], topic: str = "t", flag: int = 0) -> None:
    for body in bodies:
        peer.send(put(topic, 0, body, flag=flag))
    harness.threads.run()
    harness.turn()
    peer.answers()


def numbered(found: list[Leased]) -> list[object]:
    """The property n of each."""
    raw = [attribute_of(each.record[HEADER_BYTES:], LISTED) for each in found]
    return [decode_attribute(each, LISTED).properties["n"] for each in raw]


def status(harness: Harness, peer: Peer) -> dict[str, Any]:
    import simplejson

    frame = peer.ask_frame(encode_frame(RequestCode.SHARED_STATUS, 9, SharedStatusRequest("g").to_ext()))
    (found,) = simplejson.loads(bytes(frame.body))
    assert isinstance(found, dict)
    return found


def test_two_members_get_different_messages_and_what_is_acknowledged_never_comes_again(make: Make) -> None:
    harness = make()
    peer = filled(harness, 5)
    first = leased(harness, peer, acquire("a", 2))
    second = leased(harness, peer, acquire("b", 10))
    assert (bodies(first), bodies(second)) == ([b"0", b"1"], [b"2", b"3", b"4"])
    assert {each.attempts for each in (*first, *second)} == {1}
    assert settled(harness, peer, *map(ack, first)) == [SettleOutcome.DONE] * 2
    harness.reactor.advance(31)
    again = one_by_one(harness, peer, 1, "a")
    assert settled(harness, peer, ack(second[0])) == [SettleOutcome.GONE]
    again += leased(harness, peer, acquire("a"))
    assert settled(harness, peer, ack(second[1])) == [SettleOutcome.LOST]
    assert settled(harness, peer, ack(again[1])) == [SettleOutcome.DONE]
    again += one_by_one(harness, peer, 1, "a")
    assert [(bytes(each.record[HEADER_BYTES:]), each.attempts) for each in again] == [(b"2", 1), (b"3", 1), (b"4", 1)]
    found = status(harness, peer)
    assert (found["left"], found["leased"], found["available"]) == (0, 0, 0)


def test_a_waiting_request_is_answered_when_a_message_comes_or_a_lease_ends_or_one_is_released(make: Make) -> None:
    harness = make()
    peer, other = filled(harness, 1), harness.connect()
    (first,) = leased(harness, peer, acquire("a", lease_ms=10_000))
    other.send(acquire("b", wait_ms=60_000, lease_ms=10_000))
    harness.turn()
    assert other.frames() == []
    harness.reactor.advance(10)
    harness.turn()
    (frame,) = other.frames()
    assert AcquireReply.from_ext(frame.ext).records == 1
    (held,) = decode_leased(memoryview(frame.body), 1)
    assert (held.offset, held.attempts, AcquireReply.from_ext(frame.ext).suspect) == (first.offset, 1, 2)
    peer.send(acquire("a", wait_ms=60_000))
    harness.turn()
    settled(harness, other, Settlement(held.offset, held.token, 0, SettleAction.RELEASE))
    harness.turn()
    (frame,) = peer.frames()
    assert decode_leased(memoryview(frame.body), 1)[0].attempts == 2
    peer.send(acquire("a", wait_ms=60_000))
    harness.turn()
    filled(harness, 1, first=7)
    harness.reactor.advance(0)
    harness.turn()
    harness.turn()
    (frame,) = peer.frames()
    assert bodies(decode_leased(memoryview(frame.body), 1)) == [b"7"]


def test_what_a_member_has_waiting_is_answered_at_once_when_it_wants_no_more(make: Make) -> None:
    harness = make()
    peer, other = harness.connect(), harness.connect()
    peer.send(acquire("a", wait_ms=20_000))
    peer.send(acquire("a", wait_ms=20_000, partition=1))
    other.send(acquire("b", wait_ms=20_000))
    harness.turn()
    assert peer.frames() == []
    peer.send(acquire("a", 0))
    harness.turn()
    assert [frame.code for frame in peer.frames()] == [ResponseCode.PULL_NOT_FOUND] * 2  # to itself, and to the first
    filled(harness, 1)
    harness.turn()
    assert [frame.code for frame in other.frames()] == [ResponseCode.SUCCESS]
    harness.reactor.advance(20)
    assert len(peer.frames()) == 1  # that of the other partition, when its time is over


def test_nobody_ends_what_another_connection_waits_for_by_naming_its_member(make: Make) -> None:
    harness = make()
    peer, stranger = harness.connect(), harness.connect()
    peer.send(acquire("a", wait_ms=20_000))
    stranger.send(acquire("a", 0))
    harness.turn()
    assert [frame.code for frame in stranger.frames()] == [ResponseCode.PULL_NOT_FOUND]
    assert peer.frames() == []
    filled(harness, 1)
    harness.turn()
    assert [frame.code for frame in peer.frames()] == [ResponseCode.SUCCESS]


@pytest.mark.parametrize("end", [Peer.half_close, Peer.lose])
@pytest.mark.parametrize("waits", [True, False])
def test_what_was_leased_to_a_member_whose_connection_has_ended_goes_to_others_at_once(
    make: Make, end: Callable[[Peer], None], waits: bool
) -> None:
    """Before the answer was there: it is made when the lease was written down."""
    harness = make()
    other = harness.connect() if waits else filled(harness, 2)
    gone = harness.connect()
    gone.send(acquire("gone", wait_ms=20_000))
    if waits:
        other.send(put("t", 0, b"0") + put("t", 0, b"1"))
        harness.reactor.callLater(0, end, gone)  # behind the lease, and before it is written down
        harness.turn()
        assert len(other.answers()) == 2
    else:
        end(gone)
    assert harness.broker.shared.leased == 2
    harness.turn()
    again = leased(harness, other, acquire("b"))
    assert [(body, each.attempts) for body, each in zip(bodies(again), again, strict=True)] == [(b"0", 1), (b"1", 1)]
    assert harness.broker.shared.queues("g")[0].state.suspects() == []
    assert [frame for frame in gone.frames() if frame.code == ResponseCode.SUCCESS] == []


def test_what_there_is_no_room_to_answer_goes_to_others_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = make()
    peer = filled(harness, 2)
    monkeypatch.setattr("metaq.broker.account.REFUSED_ANSWER_BYTES", 1)
    unsent = harness.broker.account.unsent
    unsent.hold("127.0.0.1", harness.broker.account.limits.unsent_bytes)
    peer.send(acquire("a"))
    harness.turn()
    (refused,) = peer.frames()
    assert (refused.code, "unsentBytes" in refused.remark) == (ResponseCode.SYSTEM_BUSY, True)
    unsent.hold("127.0.0.1", -harness.broker.account.limits.unsent_bytes)
    again = leased(harness, peer, acquire("b"))
    assert [(body, each.attempts) for body, each in zip(bodies(again), again, strict=True)] == [(b"0", 1), (b"1", 1)]


def test_members_that_wait_share_what_comes(make: Make) -> None:
    harness = make()
    filled(harness, 1)
    waiting = [harness.connect() for _ in range(4)]
    leased(harness, waiting[0], acquire("x"))
    for number, peer in enumerate(waiting):
        peer.send(acquire(f"m{number}", wait_ms=60_000))
    harness.turn()
    source = harness.connect()
    source.send(b"".join(put("t", 0, b"%d" % number) for number in range(8)))
    for _ in range(4):
        harness.turn()
    counts = [AcquireReply.from_ext(frame.ext).records for peer in waiting for frame in peer.frames()]
    assert counts == [2, 2, 2, 2]


def test_urgent_messages_are_handed_out_before_those_that_came_first(make: Make) -> None:
    harness = make()
    filled(harness, 30)
    peer = filled(harness, 2, flag=9 << 4, first=100)
    assert bodies(leased(harness, peer, acquire("a", 4))) == [b"100", b"101", b"0", b"1"]


def test_a_group_begins_where_it_said_first(make: Make) -> None:
    harness = make()
    peer = filled(harness, 3)
    assert leased(harness, peer, acquire(start="latest")) == []
    filled(harness, 1, first=3)
    assert bodies(leased(harness, peer, acquire(start="earliest"))) == [b"3"]
    assert bodies(leased(harness, peer, acquire(group="other"))) == [b"0", b"1", b"2", b"3"]


def test_leases_attempts_and_acknowledgements_outlive_the_broker(make: Make) -> None:
    harness = make()
    peer = filled(harness, 6)
    first = leased(harness, peer, acquire("a", 3, lease_ms=20_000))
    settled(
        harness,
        peer,
        ack(first[1]),
        Settlement(first[2].offset, first[2].token, 5000, SettleAction.RELEASE),
    )
    harness.store.close()  # as a kill would leave it: nothing more is said to the groups
    harness = make()
    peer = harness.connect()
    assert bodies(leased(harness, peer, acquire("b"))) == [b"3", b"4", b"5"]
    harness.reactor.advance(5)
    harness.time += 5
    again = leased(harness, peer, acquire("b"))
    assert [(bytes(each.record[HEADER_BYTES:]), each.attempts) for each in again] == [(b"2", 2)]
    assert settled(harness, peer, ack(first[0])) == [SettleOutcome.DONE]
    harness.reactor.advance(31)
    assert bodies(one_by_one(harness, peer, 4, "b")) == [b"2", b"3", b"4", b"5"]


def test_with_group_commit_an_acknowledgement_is_answered_when_it_is_on_the_disk(make: Make) -> None:
    harness = make()
    peer = filled(harness, 1, "safe")
    peer.send(acquire(topic="safe"))
    harness.turn()
    (frame,) = peer.frames()
    (found,) = decode_leased(memoryview(frame.body), 1)
    harness.threads.run()
    peer.send(settle(ack(found), topic="safe"))
    harness.turn()
    assert peer.frames() == []
    harness.threads.run()
    assert [frame.code for frame in peer.frames()] == [ResponseCode.SUCCESS]


def refused(peer: Peer, request: bytes) -> str:
    frame = peer.ask_frame(request)
    assert frame.code == ResponseCode.SHARED_REFUSED
    return str(frame.remark)


def test_the_filter_is_the_groups_and_a_member_with_another_one_is_refused_at_once_and_changes_nothing(
    make: Make,
) -> None:
    harness = make()
    peer = harness.connect()
    send(harness, peer, [body_with({"n": number}) for number in range(6)], flag=LISTED)
    found = leased(harness, peer, acquire(most=1, where="n > 1", tags=()))
    assert numbered(found) == [2]
    for other in ({"where": "n < 2"}, {}, {"where": "n > 1", "tags": ("a",)}, {"where": "n > 1", "ordered": True}):
        assert "where='n > 1', ordered_by_key=False" in refused(peer, acquire("x", wait_ms=60_000, **other))
    assert "this member (x)" in refused(peer, acquire("x", where="n < 2"))
    assert "wants where='n < 2', tags=['a', 'b'], ordered_by_key=True" in refused(
        peer, acquire("x", where="n < 2", tags=("b", "a"), ordered=True)
    )
    found += leased(harness, peer, acquire("other", where=" n > 1 "))
    assert numbered(found) == [2, 3, 4, 5]
    settled(harness, peer, *map(ack, found))
    assert status(harness, peer)["left"] == 0


def test_of_members_that_begin_at_once_on_different_partitions_the_first_says_the_filter_of_all_partitions(
    make: Make,
) -> None:
    harness = make()
    peer, other = harness.connect(), harness.connect()
    for partition in (0, 1):
        for number in range(4):
            peer.send(put("t", partition, body_with({"n": number}), flag=LISTED))
    harness.threads.run()
    harness.turn()
    peer.answers()
    assert numbered(leased(harness, peer, acquire("a", where="n < 2", partition=0))) == [0, 1]
    assert "n < 2" in refused(other, acquire("b", where="n >= 2", partition=1))
    assert numbered(leased(harness, peer, acquire("a", where="n < 2", partition=1))) == [0, 1]


def test_the_filter_outlives_the_broker_and_a_log_that_was_made_shorter(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 100)
    harness = make()
    peer = harness.connect()
    leased(harness, peer, acquire(where="n > 1", tags=("ä", "b"), ordered=True))
    harness.store.close()  # as a kill would leave it
    for _ in range(2):
        harness = make()
        peer = harness.connect()
        assert "where='n > 1', tags=['b', 'ä'], ordered_by_key=True" in refused(peer, acquire("x"))
        leased(harness, peer, acquire(where="n > 1", tags=("ä", "b"), ordered=True))
        for _ in range(4):
            harness.broker.shared.tick()
            harness.turn()
            harness.threads.run()
        harness.store.close()
    (log,) = make().store.internal_logs("/shared")
    assert log.first_offset > 0


def test_the_filter_changes_when_nobody_has_asked_for_a_minute_and_nothing_is_leased(make: Make) -> None:
    harness = make()
    peer = harness.connect()
    send(harness, peer, [body_with({"n": number}) for number in range(4)], flag=LISTED)
    assert numbered(leased(harness, peer, acquire(where="n < 2", lease_ms=100_000))) == [0, 1]
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    refused(peer, acquire("x"))  # something is leased
    harness.reactor.advance(100 - tuning.SHARED_MEMBER_SECONDS)
    send(harness, peer, [body_with({"n": 4})], flag=LISTED)
    found = (
        leased(harness, peer, acquire("x")) + leased(harness, peer, acquire("y")) + leased(harness, peer, acquire("z"))
    )
    assert numbered(found) == [0, 1, 4]  # 2 and 3 were left out while it held
    assert "ordered_by_key=False, and" in refused(peer, acquire(where="n < 2"))
    harness.close()
    harness = make()
    peer = harness.connect()
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS - 1)
    refused(peer, acquire(where="n < 2"))  # a member may have asked before the restart
    harness.reactor.advance(1)
    found = one_by_one(harness, peer, 3, where="n < 1")
    assert numbered(found) == [0, 1, 4]  # held: their member judges them


def test_a_partition_that_was_not_asked_since_the_filter_changed_has_the_new_one_after_a_restart(make: Make) -> None:
    harness = make()
    peer = harness.connect()
    for partition in (0, 1):
        leased(harness, peer, acquire(where="n < 2", partition=partition))
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    leased(harness, peer, acquire(where="n > 2", partition=1))
    harness.close()
    harness = make()
    assert "where='n > 2'" in refused(harness.connect(), acquire(where="n < 2", partition=0))


def test_the_log_of_an_earlier_version_has_no_filter_and_the_first_who_asks_says_it(make: Make) -> None:
    harness = make()
    peer = filled(harness, 2)
    queue_key = SharedKey("g", "t", 0)
    state = SharedState(0, Limits(10, 10, 10, 10, 10, 8, 5))
    state.look(40, np.array([0], np.int64), np.array([HEADER_BYTES + 1], np.int32), None, None)
    grants = state.acquire(1, 100, 0.0, 77, "m")
    until = int(harness.time * 1000) + 30_000
    rows = [
        state_section(queue_key, SharedState(0, state._limits), 0.0, 0),
        leased_section(queue_key, grants, 77, until, "m"),
    ]
    log = harness.store.internal_log("/shared", False)
    data, unit = internal_record(encode_rows(9, rows), 1, 0)
    log.append((data,), unit)
    harness.close()
    harness = make()
    peer = harness.connect()
    assert bodies(leased(harness, peer, acquire(ordered=True))) == [b"1"]
    assert "ordered_by_key=True" in refused(peer, acquire())
    assert settled(harness, peer, Settlement(0, 77, 0, SettleAction.ACK)) == [SettleOutcome.DONE]


def test_a_filter_that_is_too_large_to_be_kept_is_refused(make: Make) -> None:
    tags = tuple(f"tag-{number:06}" for number in range(5000))
    assert "at most 60000" in refused(make().connect(), acquire(tags=tags))


@pytest.mark.parametrize("shorter", [False, True])
def test_suspects_and_their_attempts_outlive_the_broker(
    make: Make, monkeypatch: pytest.MonkeyPatch, shorter: bool
) -> None:
    """An attempt is the end without a word of a lease beside which the member has nothing."""
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 100 if shorter else 1 << 20)
    harness = make()
    peer = filled(harness, 5)
    assert len(leased(harness, peer, acquire("dead", 2))) == 2

    elapsed = 0.0

    def restarted() -> Harness:
        nonlocal elapsed
        elapsed += 31
        for _ in range(4):
            harness.broker.shared.tick()
            harness.turn()
            harness.threads.run()
        harness.store.close()
        again = make()
        again.reactor.advance(elapsed)  # a new broker begins at the same time
        again.time += elapsed
        return again

    for attempts in (1, 2, 3):
        harness = restarted()
        peer = harness.connect()
        (first,) = leased(harness, peer, acquire("a"))
        assert (bodies([first]), first.attempts) == ([b"0"], attempts)
    harness = restarted()
    peer = harness.connect()
    others = leased(harness, peer, acquire("b", 1, lease_ms=60_000))
    assert [each.attempts for each in others] == [4]
    (beside,) = leased(harness, peer, acquire("c", 1, lease_ms=60_000))  # in its first lease alone
    assert (bodies([beside]), beside.attempts) == ([b"1"], 1)
    assert bodies(leased(harness, peer, acquire("d"))) == [b"2", b"3", b"4"]


def test_an_answer_says_that_its_message_is_a_suspect(make: Make) -> None:
    harness = make()
    peer = filled(harness, 4)

    def suspect(member: str) -> int:
        peer.send(acquire(member, 1))
        harness.turn()
        (frame,) = peer.frames()
        return AcquireReply.from_ext(frame.ext).suspect

    assert [suspect("dead"), suspect("dead"), suspect("dead")] == [0, 0, 0]
    harness.reactor.advance(29)
    assert suspect("busy") == 0
    harness.reactor.advance(2)
    assert [suspect("busy"), suspect("idle")] == [1, 2]


def test_who_waits_because_of_a_suspect_gets_messages_when_it_is_settled_on_whatever_partition(make: Make) -> None:
    harness = make()
    peer = filled(harness, 1)
    leased(harness, peer, acquire("dead", lease_ms=1000))
    harness.reactor.advance(1.1)
    (suspect,) = leased(harness, peer, acquire("a"))
    peer.send(put("t", 1, b"elsewhere"))
    harness.threads.run()
    harness.turn()
    peer.answers()
    other = harness.connect()
    other.send(acquire("a", partition=1, wait_ms=60_000))
    harness.turn()
    assert other.frames() == []
    settled(harness, peer, ack(suspect))
    harness.turn()
    harness.turn()
    (frame,) = other.frames()
    assert AcquireReply.from_ext(frame.ext).records == 1


def test_who_has_a_message_again_because_its_lease_ended_may_acknowledge_its_first_lease(make: Make) -> None:
    harness = make()
    peer = filled(harness, 1)
    for member, outcome in (("a", SettleOutcome.DONE), ("b", SettleOutcome.LOST)):
        group = f"of-{member}"
        (first,) = leased(harness, peer, acquire("a", group=group, lease_ms=1000))
        harness.reactor.advance(1.1)
        (again,) = leased(harness, peer, acquire(member, group=group))
        assert again.attempts == 1  # handed out once
        assert settled(harness, peer, ack(first), group=group) == [outcome]


ACTIONS = [
    (SettleAction.ACK, 0),
    (SettleAction.RELEASE, 0),
    (SettleAction.RELEASE, 5000),
    (SettleAction.EXTEND, 60_000),
    (SettleAction.RETURN, 0),
]


def known(harness: Harness) -> list[tuple[Any, ...]]:
    """What is known of each message that is held, as far as it does not depend on the lease's number."""
    (queue,) = harness.broker.shared.queues("g")
    queue.state.expire(harness.reactor.seconds())
    return [
        (offset, each.attempts, each.suspicion, each.has_ended, each.state is HeldState.LEASED, each.next_suspicion)
        for offset, each in sorted(queue.state.items())
    ]


@pytest.mark.parametrize("is_suspect", [False, True])
@pytest.mark.parametrize("second", ACTIONS)
@pytest.mark.parametrize("first", ACTIONS)
def test_settlements_of_one_message_in_one_request_do_what_they_do_one_after_the_other(
    tmp_path: Path, first: tuple[SettleAction, int], second: tuple[SettleAction, int], is_suspect: bool
) -> None:
    """Also over a restart."""
    found = []
    for together in (True, False):
        directory = tmp_path / str(together)
        harness = Harness(directory)
        peer = filled(harness, 2)
        if is_suspect:
            leased(harness, peer, acquire("dead", 1))
            harness.reactor.advance(31)
            harness.time += 31
        (mine,) = leased(harness, peer, acquire("a", 1))
        rows = [Settlement(mine.offset, mine.token, ms, action) for action, ms in (first, second)]
        requests = [rows] if together else [[each] for each in rows]
        outcomes = [outcome for each in requests for outcome in settled(harness, peer, *each)]
        before = known(harness)
        harness.store.close()
        again = Harness(directory)
        again.reactor.advance(harness.reactor.seconds())
        again.time = harness.time
        found.append((outcomes, before, known(again)))
        again.close()
    assert found[0] == found[1]
    outcomes, before, after = found[0]
    assert outcomes[0] is SettleOutcome.DONE
    assert after == before


def test_nobody_can_guess_the_token_of_somebody_elses_lease(make: Make) -> None:
    harness = make()
    peer, stranger = filled(harness, 40), harness.connect()
    tokens = set()
    for _ in range(20):
        (victims,) = leased(harness, peer, acquire(most=1))
        (own,) = leased(harness, stranger, acquire(most=1, group="stranger"))
        for token in (own.token, own.token - 1, own.token + 1):
            guess = Settlement(victims.offset, token, 0, SettleAction.ACK)
            assert settled(harness, stranger, guess) == [SettleOutcome.LOST]
        tokens |= {victims.token, own.token}
        assert all(abs(victims.token - each) > 1000 for each in tokens - {victims.token})
    assert len(tokens) == 40
    assert max(tokens) <= INT64_MAX
    assert max(tokens) > INT64_MAX // 4  # they have all 63 bits
    assert not any(str(token) in str(status(harness, peer)) for token in tokens)


def test_the_internal_log_is_made_shorter_and_says_the_same(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 2000)
    harness = make()
    peer = filled(harness, 50)
    for number in range(40):
        (found,) = leased(harness, peer, acquire("a", 1))
        if number % 2:
            settled(harness, peer, ack(found))
    (log,) = harness.store.internal_logs("/shared")
    assert log.first_offset == 0
    for _ in range(4):
        harness.broker.shared.tick()
        harness.turn()
        harness.threads.run()
    assert log.first_offset > 0
    harness.store.close()
    harness = make()
    peer = harness.connect()
    assert len(leased(harness, peer, acquire("b", 100))) == 10
    harness.reactor.advance(31)
    again = one_by_one(harness, peer, 30, "b")
    assert {each.attempts for each in again} == {1}
    assert leased(harness, peer, acquire("b", 100)) == []


def test_a_group_without_members_is_forgotten_and_begins_anew(make: Make) -> None:
    harness = make()
    peer = filled(harness, 2)
    settled(harness, peer, *map(ack, leased(harness, peer, acquire())))
    forget = encode_frame(RequestCode.SHARED_FORGET, 9, SharedForgetRequest("g").to_ext())
    assert peer.ask_frame(forget).code == ResponseCode.SHARED_REFUSED
    harness.reactor.advance(61)
    peer.send(forget)
    harness.turn()
    assert [frame.code for frame in peer.frames()] == [ResponseCode.SUCCESS]
    assert bodies(leased(harness, peer, acquire())) == [b"0", b"1"]
    harness.store.close()
    harness = make()
    assert leased(harness, harness.connect(), acquire()) == []


@pytest.mark.parametrize("ordered", [False, True])
def test_what_groups_know_of_messages_counts_for_who_made_them(make: Make, ordered: bool) -> None:
    """Who has spent it, and nobody else, leases few messages and looks few ahead, until some are acknowledged."""
    harness = make()
    memory = harness.broker.shared._memory = Shares("bytes of shared groups", "sharedBytes", 220_000, 50)
    peer, other = filled(harness, 900), harness.connect("10.0.0.2")
    most = tuning.SHARED_SCARCE
    with_keys: dict[str, Any] = {"ordered": True} if ordered else {}
    first = leased(harness, peer, acquire(most=400, **with_keys))
    assert len(first) == 400
    assert memory.room("127.0.0.1") < 0
    assert leased(harness, peer, acquire(most=200, **with_keys)) == []
    assert len(leased(harness, peer, acquire(most=200, group="second", **with_keys))) == most
    queue = harness.broker.shared._queues[SharedKey("second", "t", 0)]
    assert (queue.state.held, queue.state.available) == (most, most)
    memory.limit = 1 << 20
    assert len(leased(harness, other, acquire("o", 100, group="other", **with_keys))) == 100
    memory.limit = 220_000
    settled(harness, peer, *map(ack, first))
    again = leased(harness, peer, acquire(most=50, **with_keys))
    assert bodies(again) == [b"%d" % number for number in range(400, 450)]
    harness.reactor.advance(100)
    for group in ("g", "second", "other"):
        harness.broker.shared.forget(group)
    assert (memory.used, memory.largest) == (0, 0)


def test_a_damaged_message_is_passed_over_and_counted(make: Make, tmp_path: Path) -> None:
    harness = make()
    peer = filled(harness, 3)
    (file,) = (tmp_path / "data" / "t-0").glob("*.meta")
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + 1 + HEADER_BYTES] ^= 0xFF
    file.write_bytes(data)
    assert bodies(leased(harness, peer, acquire())) == [b"0", b"2"]
    harness.threads.run()
    harness.turn()
    harness.threads.run()
    assert status(harness, peer)["damagedBytes"] == HEADER_BYTES + 1
    assert harness.broker.metrics.damaged_bytes == HEADER_BYTES + 1
    harness.reactor.advance(31)
    assert bodies(one_by_one(harness, peer, 2)) == [b"0", b"2"]


def test_the_version_says_that_messages_are_leased_here(make: Make) -> None:
    answer = make().connect().ask(b"version 1\r\n")
    assert "shared/1" in answer.text.split()


def test_a_frame_without_a_member_is_refused(make: Make) -> None:
    frame: Frame = make().connect().ask_frame(encode_frame(RequestCode.ACQUIRE, 1, {"topic": "t", "partition": 0}))
    assert frame.code == ResponseCode.MESSAGE_ILLEGAL


def test_what_a_filter_leaves_out_is_done_for_the_group_over_restarts_and_what_it_holds_for_is_not(make: Make) -> None:
    harness = make()
    peer = harness.connect()
    send(harness, peer, [body_with({"n": number}) for number in range(6)], flag=LISTED)
    assert leased(harness, peer, acquire(where="n = 7 OR n = 9")) == []
    send(harness, peer, [body_with({"n": number}) for number in range(6, 12)], flag=LISTED)
    found = leased(harness, peer, acquire(where="n = 7 OR n = 9"))
    assert numbered(found) == [7, 9]
    assert status(harness, peer)["left"] == 2
    settled(harness, peer, ack(found[1]))
    harness.close()
    harness = make()
    peer = harness.connect()
    assert status(harness, peer)["left"] == 1
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    assert numbered(leased(harness, peer, acquire())) == [7]


def test_messages_with_other_tags_are_done_for_the_group_also_together_with_a_filter(make: Make) -> None:
    harness = make()
    peer = harness.connect()
    tagged = [body_with({"TAGS": tag, "n": number}) for number, tag in enumerate(["a", "b", "c", "a", "b"])]
    send(harness, peer, [*tagged, body_with({"n": 5})], flag=LISTED)
    assert numbered(leased(harness, peer, acquire(group="both", tags=("b", "c"), where="n > 1"))) == [2, 4]
    found = leased(harness, peer, acquire(tags=("a", "c")))
    assert numbered(found) == [0, 2, 3]
    settled(harness, peer, *map(ack, found))
    assert status(harness, peer)["left"] == 0
    harness.close()
    harness = make()
    peer = harness.connect()
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    assert leased(harness, peer, acquire()) == []  # the others are done for the group
    send(harness, peer, [body_with({"TAGS": "b", "n": 6})], flag=LISTED)
    assert numbered(leased(harness, peer, acquire())) == [6]


def test_a_message_with_a_lone_tag_passes_and_so_does_one_that_is_leased_again_with_another_filter(make: Make) -> None:
    harness = make()
    peer = harness.connect()
    for tag in (b"a", b"b"):
        send(harness, peer, [encode_body(tag, ATTRIBUTE_FLAG, tag)], flag=ATTRIBUTE_FLAG)
    (first,) = leased(harness, peer, acquire(tags=("b",)))
    assert bodies([first])[0].endswith(b"b")
    settled(harness, peer, Settlement(first.offset, first.token, 0, SettleAction.RELEASE))
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    (again,) = leased(harness, peer, acquire(tags=("a",)))
    assert (again.offset, again.attempts) == (first.offset, 2)  # its member judges what the group has had to do with


def test_operators_see_no_lease_that_has_ended_and_may_forget_its_group(make: Make) -> None:
    harness = make()
    peer = filled(harness, 2)
    leased(harness, peer, acquire("gone", lease_ms=3000))
    assert (status(harness, peer)["leased"], status(harness, peer)["members"]) == (2, {"gone": 2})
    harness.reactor.advance(3.1)
    assert (status(harness, peer)["leased"], status(harness, peer)["members"]) == (0, {"gone": 0})
    harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    assert status(harness, peer)["members"] == {}
    peer.send(encode_frame(RequestCode.SHARED_FORGET, 9, SharedForgetRequest("g").to_ext()))
    harness.turn()
    harness.threads.run()
    assert [frame.code for frame in peer.frames()] == [ResponseCode.SUCCESS]


def test_a_filter_that_cannot_be_read_is_refused(make: Make) -> None:
    harness = make()
    peer = filled(harness, 1)
    frame = peer.ask_frame(acquire(where="n >"))
    assert frame.code == ResponseCode.MESSAGE_ILLEGAL
    assert "where" in frame.remark


def test_a_broker_in_the_replication_of_1_x_leases_nothing(make: Make) -> None:
    harness = make()
    peer = filled(harness, 1)
    harness.broker.partitions.takes_puts = False
    frame = peer.ask_frame(acquire())
    assert frame.code != ResponseCode.SUCCESS
    assert "in metaq 1.x's replication, which copies no leases" in frame.remark
