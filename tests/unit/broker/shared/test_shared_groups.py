"""ACQUIRE and SETTLE through the whole broker without a port: what is leased, answered, written down and read again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejson

from metaq.broker import tuning
from metaq.broker.memory.records import internal_record
from metaq.broker.runtime.account import Shares
from metaq.broker.shared.rows import SharedKey, leased_section, state_section
from metaq.broker.shared.rows import encode_body as encode_rows
from metaq.broker.shared.state import HeldState, Limits, SharedState
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.segments import Segments
from metaq.protocol.errors import DiskFull
from metaq.protocol.frames import encode_frame
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
from tests.raising import raising
from tests.unit.broker.harness import Harness, Peer, put

FORGET = encode_frame(RequestCode.SHARED_FORGET, 9, SharedForgetRequest("g").to_ext())
N_OVER_1 = {"where": "n > 1"}


def acquire(member: str = "m", most: int = 10, *, topic: str = "t", group: str = "g", **more: Any) -> bytes:
    fields = {"partition": 0, "max_bytes": 1 << 20, "lease_ms": 30_000} | more
    request = AcquireRequest(topic, group=group, member=member, max_records=most, **fields)
    return encode_frame(RequestCode.ACQUIRE, 5, request.to_ext())


def settle(*settlements: Settlement, topic: str = "t", group: str = "g") -> bytes:
    body = encode_settlements(settlements)
    request = SettleRequest(topic, 0, group, len(settlements))
    return encode_frame(RequestCode.SETTLE, 6, request.to_ext(), len(body)) + body


def ack(each: Leased) -> Settlement:
    return Settlement(each.offset, each.token, 0, SettleAction.ACK)


def given_back(each: Leased, delay_ms: int = 0) -> Settlement:
    return Settlement(each.offset, each.token, delay_ms, SettleAction.RELEASE)


def bodies(found: list[Leased]) -> list[bytes]:
    return [bytes(each.record[HEADER_BYTES:]) for each in found]


def attempts(found: list[Leased]) -> list[tuple[bytes, int]]:
    """The body of each, and how often it was handed out."""
    return [(body, each.attempts) for body, each in zip(bodies(found), found, strict=True)]


def numbered(found: list[Leased]) -> list[object]:
    """The property n of each."""
    raw = [attribute_of(each.record[HEADER_BYTES:], LISTED) for each in found]
    return [decode_attribute(each, LISTED).properties["n"] for each in raw]


def codes(peer: Peer) -> list[int]:
    """Of what came since the last call."""
    return [frame.code for frame in peer.frames()]


class Talk:
    """With a broker over its lives, by a connection of its own where no other one is named."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.start()

    def start(self) -> None:
        self.harness = Harness(self._directory)
        self.peer = self.harness.connect()

    def again(self, *, killed: bool = False) -> None:
        """Another life. killed: nothing more is said to the groups."""
        (self.harness.store.close if killed else self.harness.close)()
        self.start()

    def run(self) -> None:
        self.harness.turn()
        self.harness.threads.run()

    def send(self, request: bytes, peer: Peer | None = None) -> None:
        (peer or self.peer).send(request)
        self.harness.turn()

    def put(self, *messages: bytes, topic: str = "t", partition: int = 0, flag: int = 0) -> None:
        for body in messages:
            self.peer.send(put(topic, partition, body, flag=flag))
        self.harness.threads.run()
        self.harness.turn()
        self.peer.answers()

    def fill(self, count: int, first: int = 0, **more: Any) -> None:
        self.put(*(b"%d" % number for number in range(first, first + count)), **more)

    def put_numbered(self, numbers: range, **more: Any) -> None:
        """Messages with the property n."""
        self.put(*(body_with({"n": number}) for number in numbers), flag=LISTED, **more)

    def leased(self, member: str = "m", most: int = 10, peer: Peer | None = None, **more: Any) -> list[Leased]:
        """What an ACQUIRE is answered; [] for nothing."""
        self.send(acquire(member, most, **more), peer)
        self.harness.threads.run()
        return self.answered(peer)

    def answered(self, peer: Peer | None = None) -> list[Leased]:
        (frame,) = (peer or self.peer).frames()
        if frame.code == ResponseCode.PULL_NOT_FOUND:
            return []
        assert frame.code == ResponseCode.SUCCESS, frame.remark
        return decode_leased(memoryview(frame.body), AcquireReply.from_ext(frame.ext).records)

    def settled(self, *rows: Settlement, peer: Peer | None = None, **more: Any) -> list[SettleOutcome]:
        self.send(settle(*rows, **more), peer)
        self.harness.threads.run()
        (frame,) = (peer or self.peer).frames()
        assert frame.code == ResponseCode.SUCCESS, frame.remark
        return decode_outcomes(frame.body, len(rows))

    def one_by_one(self, count: int, member: str = "m", **more: Any) -> list[Leased]:
        """So many messages of leases that have ended without a word, each acknowledged before the next is asked for."""
        found = []
        for _ in range(count):
            (each,) = self.leased(member, **more)
            assert self.leased(member, **more) == []
            assert self.settled(ack(each)) == [SettleOutcome.DONE]
            found.append(each)
        return found

    def refused(self, member: str = "m", peer: Peer | None = None, **more: Any) -> str:
        """What an ACQUIRE is refused with, at once."""
        frame = (peer or self.peer).ask_frame(acquire(member, **more))
        assert frame.code == ResponseCode.SHARED_REFUSED
        return str(frame.remark)

    def status(self) -> dict[str, Any]:
        frame = self.peer.ask_frame(encode_frame(RequestCode.SHARED_STATUS, 9, SharedStatusRequest("g").to_ext()))
        (found,) = simplejson.loads(bytes(frame.body))
        assert isinstance(found, dict)
        return found

    def shorten(self) -> None:
        """The log, if it is longer than it may be."""
        for _ in range(4):
            self.harness.broker.shared.tick()
            self.run()


def test_two_members_get_different_messages_and_what_is_acknowledged_never_comes_again(talk: Talk) -> None:
    talk.fill(5)
    first, second = talk.leased("a", 2), talk.leased("b", 10)
    assert attempts(first + second) == [(b"%d" % number, 1) for number in range(5)]
    assert talk.settled(*map(ack, first)) == [SettleOutcome.DONE] * 2
    talk.harness.reactor.advance(31)
    again = talk.one_by_one(1, "a")
    assert talk.settled(ack(second[0])) == [SettleOutcome.GONE]
    again += talk.leased("a")
    assert talk.settled(ack(second[1]), ack(again[1])) == [SettleOutcome.LOST, SettleOutcome.DONE]
    again += talk.one_by_one(1, "a")
    assert attempts(again) == [(b"2", 1), (b"3", 1), (b"4", 1)]
    assert {"left": 0, "leased": 0, "available": 0}.items() <= talk.status().items()


def test_a_waiting_request_is_answered_when_a_message_comes_or_a_lease_ends_or_one_is_released(talk: Talk) -> None:
    talk.fill(1)
    other = talk.harness.connect()
    (first,) = talk.leased("a", lease_ms=10_000)
    talk.send(acquire("b", wait_ms=60_000, lease_ms=10_000), other)
    assert other.frames() == []
    talk.harness.reactor.advance(10)
    talk.harness.turn()
    (frame,) = other.frames()
    (held,) = decode_leased(memoryview(frame.body), 1)
    reply = AcquireReply.from_ext(frame.ext)
    assert (held.offset, held.attempts, reply.records, reply.suspect) == (first.offset, 1, 1, 2)
    talk.send(acquire("a", wait_ms=60_000))
    talk.settled(given_back(held), peer=other)
    talk.harness.turn()
    assert [each.attempts for each in talk.answered()] == [2]
    talk.send(acquire("a", wait_ms=60_000))
    source = talk.harness.connect()
    source.send(put("t", 0, b"7"))
    for _ in range(3):
        talk.harness.turn()
    assert bodies(talk.answered()) == [b"7"]


def test_what_a_member_has_waiting_is_answered_at_once_when_it_wants_no_more(talk: Talk) -> None:
    member, other = talk.harness.connect(), talk.harness.connect()
    for partition in (0, 1):
        talk.send(acquire("a", wait_ms=20_000, partition=partition), member)
    talk.send(acquire("b", wait_ms=20_000), other)
    assert member.frames() == []
    talk.send(acquire("a", 0), member)
    assert codes(member) == [ResponseCode.PULL_NOT_FOUND] * 2  # to itself, and to the first
    talk.fill(1)
    talk.harness.turn()
    assert codes(other) == [ResponseCode.SUCCESS]
    talk.harness.reactor.advance(20)
    assert len(member.frames()) == 1  # that of the other partition, when its time is over


def test_nobody_ends_what_another_connection_waits_for_by_naming_its_member(talk: Talk) -> None:
    member, stranger = talk.harness.connect(), talk.harness.connect()
    member.send(acquire("a", wait_ms=20_000))
    talk.send(acquire("a", 0), stranger)
    assert (codes(stranger), codes(member)) == ([ResponseCode.PULL_NOT_FOUND], [])
    talk.fill(1)
    talk.harness.turn()
    assert codes(member) == [ResponseCode.SUCCESS]


@pytest.mark.parametrize("end", [Peer.half_close, Peer.lose])
@pytest.mark.parametrize("waits", [True, False])
def test_what_was_leased_to_a_member_whose_connection_has_ended_goes_to_others_at_once(talk, end, waits) -> None:
    """Before the answer was there: it is made when the lease was written down."""
    gone, harness = talk.harness.connect(), talk.harness
    if not waits:
        talk.fill(2)
    gone.send(acquire("gone", wait_ms=20_000))
    if waits:
        talk.peer.send(put("t", 0, b"0") + put("t", 0, b"1"))
        harness.reactor.callLater(0, end, gone)  # behind the lease, and before it is written down
        harness.turn()
        assert len(talk.peer.answers()) == 2
    else:
        end(gone)
    assert harness.broker.shared.leased == 2
    harness.turn()
    assert attempts(talk.leased("b")) == [(b"0", 1), (b"1", 1)]
    assert harness.broker.shared.queues("g")[0].state.suspects() == []
    assert ResponseCode.SUCCESS not in codes(gone)


def test_what_there_is_no_room_to_answer_goes_to_others_at_once(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.fill(2)
    monkeypatch.setattr("metaq.broker.runtime.account.REFUSED_ANSWER_BYTES", 1)
    account = talk.harness.broker.account
    account.unsent.hold("127.0.0.1", account.limits.unsent_bytes)
    talk.send(acquire("a"))
    (refused,) = talk.peer.frames()
    assert (refused.code, "unsentBytes" in refused.remark) == (ResponseCode.SYSTEM_BUSY, True)
    account.unsent.hold("127.0.0.1", -account.limits.unsent_bytes)
    assert attempts(talk.leased("b")) == [(b"0", 1), (b"1", 1)]


def test_members_that_wait_share_what_comes(talk: Talk) -> None:
    talk.fill(1)
    waiting = [talk.harness.connect() for _ in range(4)]
    talk.leased("x")
    for number, peer in enumerate(waiting):
        talk.send(acquire(f"m{number}", wait_ms=60_000), peer)
    talk.peer.send(b"".join(put("t", 0, b"%d" % number) for number in range(8)))
    for _ in range(4):
        talk.harness.turn()
    assert [len(talk.answered(peer)) for peer in waiting] == [2, 2, 2, 2]


def test_urgent_messages_are_handed_out_before_those_that_came_first(talk: Talk) -> None:
    talk.fill(30)
    talk.fill(2, first=100, flag=9 << 4)
    assert bodies(talk.leased("a", 4)) == [b"100", b"101", b"0", b"1"]


def test_a_group_begins_where_it_said_first(talk: Talk) -> None:
    talk.fill(3)
    assert talk.leased(start="latest") == []
    talk.fill(1, first=3)
    assert bodies(talk.leased(start="earliest")) == [b"3"]
    assert bodies(talk.leased(group="other")) == [b"0", b"1", b"2", b"3"]


def test_leases_attempts_and_acknowledgements_outlive_the_broker(talk: Talk) -> None:
    talk.fill(6)
    first = talk.leased("a", 3, lease_ms=20_000)
    talk.settled(ack(first[1]), given_back(first[2], 5000))
    talk.again(killed=True)
    assert bodies(talk.leased("b")) == [b"3", b"4", b"5"]
    talk.harness.reactor.advance(5)
    talk.harness.time += 5
    assert attempts(talk.leased("b")) == [(b"2", 2)]
    assert talk.settled(ack(first[0])) == [SettleOutcome.DONE]
    talk.harness.reactor.advance(31)
    assert bodies(talk.one_by_one(4, "b")) == [b"2", b"3", b"4", b"5"]


def test_with_group_commit_an_acknowledgement_is_answered_when_it_is_on_the_disk(talk: Talk) -> None:
    talk.fill(1, topic="safe")
    talk.send(acquire(topic="safe"))
    (found,) = talk.answered()
    talk.harness.threads.run()
    talk.send(settle(ack(found), topic="safe"))
    assert talk.peer.frames() == []
    talk.harness.threads.run()
    assert codes(talk.peer) == [ResponseCode.SUCCESS]


def test_the_filter_is_the_groups_and_a_member_with_another_one_is_refused_at_once_and_changes_nothing(talk) -> None:
    talk.put_numbered(range(6))
    found = talk.leased(most=1, tags=(), **N_OVER_1)
    assert numbered(found) == [2]
    for other in ({"where": "n < 2"}, {}, N_OVER_1 | {"tags": ("a",)}, N_OVER_1 | {"ordered": True}):
        assert "where='n > 1', ordered_by_key=False" in talk.refused("x", wait_ms=60_000, **other)
    told = talk.refused("x", where="n < 2", tags=("b", "a"), ordered=True)
    assert "this member (x) wants where='n < 2', tags=['a', 'b'], ordered_by_key=True" in told
    found += talk.leased("other", where=" n > 1 ")
    assert numbered(found) == [2, 3, 4, 5]
    talk.settled(*map(ack, found))
    assert talk.status()["left"] == 0


def test_of_members_that_begin_at_once_on_different_partitions_the_first_says_the_filter_of_all_partitions(talk):
    for partition in (0, 1):
        talk.put_numbered(range(4), partition=partition)
    assert numbered(talk.leased("a", where="n < 2")) == [0, 1]
    assert "n < 2" in talk.refused("b", talk.harness.connect(), where="n >= 2", partition=1)
    assert numbered(talk.leased("a", where="n < 2", partition=1)) == [0, 1]


def test_the_filter_outlives_the_broker_and_a_log_that_was_made_shorter(talk, monkeypatch) -> None:
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 100)
    mine: dict[str, Any] = N_OVER_1 | {"tags": ("ä", "b"), "ordered": True}
    talk.leased(**mine)
    for _ in range(2):
        talk.again(killed=True)
        assert "where='n > 1', tags=['b', 'ä'], ordered_by_key=True" in talk.refused("x")
        talk.leased(**mine)
        talk.shorten()
    talk.again(killed=True)
    (log,) = talk.harness.store.internal_logs("/shared")
    assert log.first_offset > 0


def test_the_filter_changes_when_nobody_has_asked_for_a_minute_and_nothing_is_leased(talk: Talk) -> None:
    talk.put_numbered(range(4))
    assert numbered(talk.leased(where="n < 2", lease_ms=100_000)) == [0, 1]
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    talk.refused("x")  # something is leased
    talk.harness.reactor.advance(100 - tuning.SHARED_MEMBER_SECONDS)
    talk.put_numbered(range(4, 5))
    found = [each for member in "xyz" for each in talk.leased(member)]
    assert numbered(found) == [0, 1, 4]  # 2 and 3 were left out while it held
    assert "ordered_by_key=False, and" in talk.refused(where="n < 2")
    talk.again()
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS - 1)
    talk.refused(where="n < 2")  # a member may have asked before the restart
    talk.harness.reactor.advance(1)
    assert numbered(talk.one_by_one(3, where="n < 1")) == [0, 1, 4]  # held: their member judges them


def test_nothing_is_passed_over_when_the_filter_changes_while_messages_are_read(talk: Talk, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "SHARED_SCAN_RECORDS", 2)
    talk.put_numbered(range(1))
    talk.settled(*map(ack, talk.leased(where="n < 9")))
    monkeypatch.setattr(Segments, "read", lambda *asked: None)  # not in memory
    for number in range(1, 7):
        talk.send(put("t", 0, body_with({"n": number}), flag=LISTED))
    talk.peer.received()
    (queue,) = talk.harness.broker.shared.queues("g")
    queue.look()
    talk.harness.threads.run_one()
    assert queue.state.available == 1
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    found = [each for _ in range(6) for each in talk.leased(where="n < 8")]
    assert numbered(found) == [1, 2, 3, 4, 5, 6]


def test_a_partition_that_was_not_asked_since_the_filter_changed_has_the_new_one_after_a_restart(talk: Talk) -> None:
    for partition in (0, 1):
        talk.leased(where="n < 2", partition=partition)
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    talk.leased(where="n > 2", partition=1)
    talk.again()
    assert "where='n > 2'" in talk.refused(where="n < 2")


def test_the_log_of_an_earlier_version_has_no_filter_and_the_first_who_asks_says_it(talk: Talk) -> None:
    talk.fill(2)
    queue_key = SharedKey("g", "t", 0)
    state = SharedState(0, Limits(10, 10, 10, 10, 10, 8, 5))
    state.look(40, np.array([0], np.int64), np.array([HEADER_BYTES + 1], np.int32), None, None)
    until = int(talk.harness.time * 1000) + 30_000
    rows = [
        state_section(queue_key, SharedState(0, state._limits), 0.0, 0),
        leased_section(queue_key, state.acquire(1, 100, 0.0, 77, "m"), 77, until, "m"),
    ]
    data, unit = internal_record(encode_rows(9, rows), 1, 0)
    talk.harness.store.internal_log("/shared", False).append((data,), unit)
    talk.again()
    assert bodies(talk.leased(ordered=True)) == [b"1"]
    assert "ordered_by_key=True" in talk.refused()
    assert talk.settled(Settlement(0, 77, 0, SettleAction.ACK)) == [SettleOutcome.DONE]


def test_a_filter_that_is_too_large_to_be_kept_is_refused(talk: Talk) -> None:
    assert "at most 60000" in talk.refused(tags=tuple(f"tag-{number:06}" for number in range(5000)))


@pytest.mark.parametrize("shorter", [False, True])
def test_suspects_and_their_attempts_outlive_the_broker(talk, monkeypatch, shorter) -> None:
    """An attempt is the end without a word of a lease beside which the member has nothing."""
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 100 if shorter else 1 << 20)
    talk.fill(5)
    assert len(talk.leased("dead", 2)) == 2
    for life in range(1, 5):
        talk.shorten()
        talk.again(killed=True)
        talk.harness.reactor.advance(31 * life)  # a new broker begins at the same time
        talk.harness.time += 31 * life
        if life < 4:
            assert attempts(talk.leased("a")) == [(b"0", life)]
    assert attempts(talk.leased("b", 1, lease_ms=60_000)) == [(b"0", 4)]
    assert attempts(talk.leased("c", 1, lease_ms=60_000)) == [(b"1", 1)]  # in its first lease alone
    assert bodies(talk.leased("d")) == [b"2", b"3", b"4"]


def test_an_answer_says_that_its_message_is_a_suspect(talk: Talk) -> None:
    talk.fill(4)

    def suspect(member: str) -> int:
        talk.send(acquire(member, 1))
        (frame,) = talk.peer.frames()
        return AcquireReply.from_ext(frame.ext).suspect

    assert [suspect("dead"), suspect("dead"), suspect("dead")] == [0, 0, 0]
    talk.harness.reactor.advance(29)
    assert suspect("busy") == 0
    talk.harness.reactor.advance(2)
    assert [suspect("busy"), suspect("idle")] == [1, 2]


def test_who_waits_because_of_a_suspect_gets_messages_when_it_is_settled_on_whatever_partition(talk: Talk) -> None:
    talk.fill(1)
    talk.leased("dead", lease_ms=1000)
    talk.harness.reactor.advance(1.1)
    (suspect,) = talk.leased("a")
    talk.put(b"elsewhere", partition=1)
    other = talk.harness.connect()
    talk.send(acquire("a", partition=1, wait_ms=60_000), other)
    assert other.frames() == []
    talk.settled(ack(suspect))
    talk.harness.turn()
    talk.harness.turn()
    assert bodies(talk.answered(other)) == [b"elsewhere"]


@pytest.mark.parametrize(("member", "outcome"), [("a", SettleOutcome.DONE), ("b", SettleOutcome.LOST)])
def test_who_has_a_message_again_because_its_lease_ended_may_acknowledge_its_first_lease(talk, member, outcome) -> None:
    talk.fill(1)
    (first,) = talk.leased("a", lease_ms=1000)
    talk.harness.reactor.advance(1.1)
    assert [each.attempts for each in talk.leased(member)] == [1]  # handed out once
    assert talk.settled(ack(first)) == [outcome]


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
        talk = Talk(tmp_path / str(together))
        talk.fill(2)
        if is_suspect:
            talk.leased("dead", 1)
            talk.harness.reactor.advance(31)
        talk.harness.time += (now := talk.harness.reactor.seconds())
        (mine,) = talk.leased("a", 1)
        rows = [Settlement(mine.offset, mine.token, ms, action) for action, ms in (first, second)]
        requests = [rows] if together else [[each] for each in rows]
        outcomes = [outcome for each in requests for outcome in talk.settled(*each)]
        before = known(talk.harness)
        talk.again(killed=True)
        talk.harness.reactor.advance(now)
        talk.harness.time += now
        found.append((outcomes, before, known(talk.harness)))
        talk.harness.close()
    assert found[0] == found[1]
    outcomes, before, after = found[0]
    assert (outcomes[0], after) == (SettleOutcome.DONE, before)


def test_nobody_can_guess_the_token_of_somebody_elses_lease(talk: Talk) -> None:
    talk.fill(40)
    stranger, tokens = talk.harness.connect(), set()
    for _ in range(20):
        (victims,) = talk.leased(most=1)
        (own,) = talk.leased(most=1, group="stranger", peer=stranger)
        for token in (own.token, own.token - 1, own.token + 1):
            guess = Settlement(victims.offset, token, 0, SettleAction.ACK)
            assert talk.settled(guess, peer=stranger) == [SettleOutcome.LOST]
        tokens |= {victims.token, own.token}
        assert all(abs(victims.token - each) > 1000 for each in tokens - {victims.token})
    assert len(tokens) == 40
    assert INT64_MAX // 4 < max(tokens) <= INT64_MAX  # they have all 63 bits
    assert not any(str(token) in str(talk.status()) for token in tokens)


def test_the_internal_log_is_made_shorter_and_says_the_same(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 2000)
    talk.fill(50)
    for number in range(40):
        (found,) = talk.leased("a", 1)
        if number % 2:
            talk.settled(ack(found))
    (log,) = talk.harness.store.internal_logs("/shared")
    assert log.first_offset == 0
    for _ in range(9):
        talk.harness.broker.shared.tick()
        talk.harness.turn()
        if talk.harness.threads.waiting and not log.first_offset:
            talk.harness.threads.run_one()
    assert log.first_offset > 0
    assert log.synced_end == log.end_offset, "what is older went, and this is not on the disk"
    talk.again(killed=True)
    assert len(talk.leased("b", 100)) == 10
    talk.harness.reactor.advance(31)
    assert {each.attempts for each in talk.one_by_one(30, "b")} == {1}
    assert talk.leased("b", 100) == []


def test_a_group_without_members_is_forgotten_and_begins_anew(talk: Talk) -> None:
    talk.fill(2)
    talk.settled(*map(ack, talk.leased()))
    assert talk.peer.ask_frame(FORGET).code == ResponseCode.SHARED_REFUSED
    talk.harness.reactor.advance(61)
    talk.send(FORGET)
    assert codes(talk.peer) == [ResponseCode.SUCCESS]
    assert bodies(talk.leased()) == [b"0", b"1"]
    talk.again(killed=True)
    assert talk.leased() == []


@pytest.mark.parametrize("with_keys", [{}, {"ordered": True}], ids=["in any order", "ordered"])
def test_what_groups_know_of_messages_counts_for_who_made_them(talk: Talk, with_keys: dict[str, Any]) -> None:
    """Who has spent it, and nobody else, leases few messages and looks few ahead, until some are acknowledged."""
    shared = talk.harness.broker.shared
    memory = shared._memory = Shares("bytes of shared groups", "sharedBytes", 220_000, 50)
    talk.fill(900)
    other, most = talk.harness.connect("10.0.0.2"), tuning.SHARED_SCARCE
    first = talk.leased(most=400, **with_keys)
    assert len(first) == 400
    assert memory.room("127.0.0.1") < 0
    assert talk.leased(most=200, **with_keys) == []
    assert len(talk.leased(most=200, group="second", **with_keys)) == most
    queue = shared._queues[SharedKey("second", "t", 0)]
    assert (queue.state.held, queue.state.available) == (most, most)
    memory.limit = 1 << 20
    assert len(talk.leased("o", 100, other, group="other", **with_keys)) == 100
    memory.limit = 220_000
    talk.settled(*map(ack, first))
    assert bodies(talk.leased(most=50, **with_keys)) == [b"%d" % number for number in range(400, 450)]
    talk.harness.reactor.advance(100)
    for group in ("g", "second", "other"):
        shared.forget(group)
    assert (memory.used, memory.largest) == (0, 0)


def test_a_damaged_message_is_passed_over_and_counted(talk: Talk, tmp_path: Path) -> None:
    talk.fill(3)
    (file,) = (tmp_path / "data" / "t-0").glob("*.meta")
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + 1 + HEADER_BYTES] ^= 0xFF
    file.write_bytes(data)
    assert bodies(talk.leased()) == [b"0", b"2"]
    talk.harness.threads.run()
    talk.run()
    assert talk.status()["damagedBytes"] == talk.harness.broker.metrics.damaged_bytes == HEADER_BYTES + 1
    talk.harness.reactor.advance(31)
    assert bodies(talk.one_by_one(2)) == [b"0", b"2"]


def test_the_version_says_that_messages_are_leased_here(talk: Talk) -> None:
    assert "shared/1" in talk.peer.ask(b"version 1\r\n").text.split()


def test_what_a_filter_leaves_out_is_done_for_the_group_over_restarts_and_what_it_holds_for_is_not(talk: Talk) -> None:
    talk.put_numbered(range(6))
    assert talk.leased(where="n = 7 OR n = 9") == []
    talk.put_numbered(range(6, 12))
    found = talk.leased(where="n = 7 OR n = 9")
    assert numbered(found) == [7, 9]
    assert talk.status()["left"] == 2
    talk.settled(ack(found[1]))
    talk.again()
    assert talk.status()["left"] == 1
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    assert numbered(talk.leased()) == [7]


def test_messages_with_other_tags_are_done_for_the_group_also_together_with_a_filter(talk: Talk) -> None:
    talk.put(*(body_with({"TAGS": tag, "n": number}) for number, tag in enumerate("abcab")), flag=LISTED)
    talk.put_numbered(range(5, 6))
    assert numbered(talk.leased(group="both", tags=("b", "c"), where="n > 1")) == [2, 4]
    found = talk.leased(tags=("a", "c"))
    assert numbered(found) == [0, 2, 3]
    talk.settled(*map(ack, found))
    assert talk.status()["left"] == 0
    talk.again()
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    assert talk.leased() == []  # the others are done for the group
    talk.put(body_with({"TAGS": "b", "n": 6}), flag=LISTED)
    assert numbered(talk.leased()) == [6]


def test_a_message_with_a_lone_tag_passes_and_so_does_one_that_is_leased_again_with_another_filter(talk: Talk) -> None:
    talk.put(*(encode_body(tag, ATTRIBUTE_FLAG, tag) for tag in (b"a", b"b")), flag=ATTRIBUTE_FLAG)
    (first,) = talk.leased(tags=("b",))
    assert bodies([first])[0].endswith(b"b")
    talk.settled(given_back(first))
    talk.harness.reactor.advance(tuning.SHARED_MEMBER_SECONDS)
    (again,) = talk.leased(tags=("a",))
    assert (again.offset, again.attempts) == (first.offset, 2)  # its member judges what the group has had to do with


def test_operators_see_no_lease_that_has_ended_and_may_forget_its_group(talk: Talk) -> None:
    talk.fill(2)
    talk.leased("gone", lease_ms=3000)
    for seconds, leases, members in ((0, 2, {"gone": 2}), (3.1, 0, {"gone": 0}), (tuning.SHARED_MEMBER_SECONDS, 0, {})):
        talk.harness.reactor.advance(seconds)
        assert {"leased": leases, "members": members}.items() <= talk.status().items()
    talk.send(FORGET)
    talk.harness.threads.run()
    assert codes(talk.peer) == [ResponseCode.SUCCESS]


@pytest.mark.parametrize(
    ("request_", "code", "word"),
    [
        (encode_frame(RequestCode.ACQUIRE, 1, {"topic": "t", "partition": 0}), ResponseCode.MESSAGE_ILLEGAL, ""),
        (acquire(where="n >"), ResponseCode.MESSAGE_ILLEGAL, "where"),
    ],
    ids=["without a member", "with a filter that cannot be read"],
)
def test_a_request_that_makes_no_sense_is_refused(talk: Talk, request_: bytes, code: ResponseCode, word: str) -> None:
    frame = talk.peer.ask_frame(request_)
    assert (frame.code, word in frame.remark) == (code, True)


def test_a_broker_in_the_replication_of_1_x_leases_nothing(talk: Talk) -> None:
    talk.fill(1)
    talk.harness.broker.partitions.takes_puts = False
    frame = talk.peer.ask_frame(acquire())
    assert frame.code != ResponseCode.SUCCESS
    assert "in metaq 1.x's replication, which copies no leases" in frame.remark


def test_nothing_older_goes_when_what_is_known_could_not_be_written(talk: Talk, monkeypatch) -> None:
    monkeypatch.setattr("metaq.broker.tuning.SHARED_LOG_BYTES", 100)
    talk.fill(5)
    talk.settled(*map(ack, talk.leased("a", 3)))
    (log,) = talk.harness.store.internal_logs("/shared")
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", raising(DiskFull(log.directory, "0 MiB are free")))
        talk.shorten()
    assert log.first_offset == 0
    talk.again(killed=True)
    assert bodies(talk.leased("b")) == [b"3", b"4"]
