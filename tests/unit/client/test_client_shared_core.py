"""What a shared consumer says of the messages that it was leased, without a broker."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from metaq import Message, SharedConfig, SharedMessage, TopicPartition
from metaq.client.serializers import deserializers
from metaq.client.shared.core import Acquiring, Settle, SharedCore
from metaq.errors import ClientError, ValueUnreadable
from metaq.protocol.record import EXPIRES_FLAG, PRIORITY_SHIFT, encode_attributes, encode_body
from metaq.protocol.shared import SettleAction, Settlement, SettleOutcome
from metaq.protocol.where import parse_where
from metaq.serializers import Json
from tests.properties import LISTED, body_with

T = TopicPartition("t", 0, 0)
AGAIN = TopicPartition("%RETRY%g", 0, 0)
NOW_MS = 1_000_000
ACK, EXTEND, RELEASE, RETURN = SettleAction.ACK, SettleAction.EXTEND, SettleAction.RELEASE, SettleAction.RETURN


class Leasing:
    """A core with one partition, whose broker leases for ten seconds what a test says. Seconds pass as a test says.

    What is leased first has places from 0 and tokens from 100; what arrives later has tokens from 500.
    """

    def __init__(self, where: str | None = None, partition=T, linger_ms=0, ordered=False, **more: Any) -> None:
        self.lost: list[SharedMessage] = []
        self.now = 0.0
        self.partition = partition
        config = SharedConfig(settle_linger_ms=linger_ms, lease_seconds=10.0)
        more |= {"where": None if where is None else parse_where(where), "now_ms": self._clock}
        self.core = SharedCore(config, self.lost.append, ordered=ordered, **more)
        self.core.use([partition])
        self.core.waiting[self] = 10

    def _clock(self) -> int:
        return NOW_MS + round(self.now * 1000)

    def _arrive(self, messages, places, token, waited, suspect=0) -> None:
        arrived = []
        for message, place in zip(messages, places, strict=True):
            shared = SharedMessage(*message)
            shared.leased_from, shared.leased_at, shared.token = self.partition, place, token + place
            shared.lease_until = self.now + 10.0
            arrived.append(shared)
        self.core.arrived(self.partition, arrived, waited, self.now, suspect)

    def lease(self, *messages: Message) -> None:
        assert self.kinds() == [Acquiring]
        self._arrive(messages, range(len(messages)), 100, 0)

    def arrive(self, *places: int, waited=0, suspect=0) -> None:
        """Of another lease."""
        self._arrive([message()] * len(places), places, 500, waited, suspect)

    def taken(self, count: int) -> list[SharedMessage]:
        self.lease(*[message()] * count)
        return self.take(count)

    def take(self, count=9, **how) -> list[SharedMessage]:
        return self.core.take(count, self.now, **how)

    def ack(self, *messages: SharedMessage) -> None:
        for each in messages:
            self.core.ack(each, self.now)

    def actions(self, at: float | None = None):
        self.now = self.now if at is None else at
        return self.core.actions(self.now)

    def kinds(self, at: float | None = None):
        return [type(each) for each in self.actions(at)]

    def settlements(self, at: float | None = None) -> list[Settlement]:
        """What is said, before it is answered."""
        return [each for action in self.actions(at) if isinstance(action, Settle) for each in action.settlements]

    def said(self, outcome=SettleOutcome.DONE, at: float | None = None) -> list[Settlement]:
        said = self.settlements(at)
        self.core.settled(self.partition, [outcome] * len(said))
        return said


@pytest.fixture
def leasing() -> Leasing:
    return Leasing()


@pytest.fixture
def lingering() -> Leasing:
    return Leasing(linger_ms=100)


def message(payload=b"x", flag=0) -> Message:
    return Message(T, 7, 8, flag, payload)


def settled(action: SettleAction, *places: int, token=100, ms=0) -> list[Settlement]:
    return [Settlement(each, token + each, ms, action) for each in places]


def tagged(*tags: str, **properties: int) -> list[Message]:
    return [message(body_with({"TAGS": each, **properties}), LISTED) for each in tags]


def test_what_the_filters_do_not_hold_for_is_acknowledged_unseen():
    leasing = Leasing("amount > 10", tags=frozenset({"a", "b"}))
    leasing.lease(*tagged("a", "c", "b", amount=11), message(), *tagged("a", amount=1), *tagged("b", amount=25))
    assert [(each.tag, each.properties["amount"]) for each in leasing.take()] == [("a", 11), ("b", 11), ("b", 25)]
    assert leasing.said() == settled(ACK, 1, 3, 4)


@pytest.mark.parametrize("options", [{"tags": frozenset({"a"})}, {"where": "amount > 10"}])
def test_a_message_that_comes_to_the_group_again_has_passed_its_filters_already(options):
    leasing = Leasing(partition=AGAIN, **options)
    leasing.lease(*tagged("c", amount=5))
    (taken,) = leasing.take(1)
    leasing.ack(taken)
    assert (taken.partition, taken.offset) == (T, 7)  # where it was first, and not where the lease is
    assert leasing.said() == settled(ACK, 0)


def test_the_value_is_read_by_the_consumers_deserializer_and_the_error_without_one_says_what_to_write():
    leasing = Leasing(reader=deserializers("deserializer", Json()))
    leasing.lease(message(b'{"a": 1}'), message(b"none"))
    good, bad = leasing.take()
    assert good.value == {"a": 1}
    with pytest.raises(ValueUnreadable, match="offset 7"):
        bad.value  # noqa: B018
    copied = pickle.loads(pickle.dumps(good))
    assert (copied, copied.token, copied.leased_at) == (good, 100, 0)
    with pytest.raises(ClientError, match=r"write SharedConsumer\(deserializer=…\)"):
        copied.value  # noqa: B018


@pytest.mark.parametrize(("seconds", "comes"), [(0.0, True), (2.0, False)])
def test_what_expires_while_it_is_here_is_acknowledged_unseen(leasing, seconds, comes):
    flag, text = encode_attributes(reserved={"metaq.expires": str(NOW_MS + 1000)})
    leasing.lease(message(encode_body(b"x", flag, text), flag | EXPIRES_FLAG), message())
    leasing.now = seconds
    assert [each.payload for each in leasing.take()] == [b"x"] * (1 + comes)
    assert leasing.said() == ([] if comes else settled(ACK, 0))


def test_a_message_that_waited_for_half_of_its_lease_goes_back_unworked(leasing):
    leasing.lease(message())
    leasing.now = 5.1
    assert leasing.take(1) == []
    assert leasing.said() == settled(RETURN, 0)


def test_what_nobody_takes_goes_back_after_half_of_its_lease_and_nothing_more_is_leased_until_somebody_does(leasing):
    core = leasing.core
    core.wakes_at, core.is_due = math.inf, False
    leasing.lease(message(), message(), message(flag=9 << PRIORITY_SHIFT))
    assert (core.wakes_at, core.is_due) == (5.0, True)
    core.waiting.clear()  # the caller works on what it got
    (handed,) = leasing.take(1)
    leasing.now = 1.0
    leasing.arrive(8)
    assert core.next_time(1.0) == 5.0
    assert leasing.said(at=4.9) == []
    assert leasing.said(at=5.0) == settled(RETURN, 0, 1)
    assert (core.buffered, core.next_time(5.0)) == (1, 6.0)
    assert leasing.said(at=6.0) == settled(RETURN, 8, token=500)
    assert (core.next_time(6.0), core.is_low) == (math.inf, False)

    leasing.arrive(9)  # a request was under way
    assert leasing.said() == settled(RETURN, 9, token=500)
    leasing.ack(handed)
    assert len(leasing.said()) == 1
    assert leasing.take(1) == []
    core.waiting[leasing] = 1
    assert leasing.kinds() == [Acquiring]
    leasing.arrive(9)
    assert len(leasing.take(1)) == 1


def test_who_waits_and_was_not_woken_in_time_still_gets_what_comes(leasing):
    leasing.lease(message())
    assert leasing.kinds(at=5.0) == [Settle, Acquiring]
    leasing.arrive(0)
    assert len(leasing.take(1)) == 1


def test_an_acknowledgement_that_came_too_late_is_told(leasing):
    first, second = leasing.taken(2)
    leasing.ack(first)
    leasing.said(SettleOutcome.LOST)
    leasing.core.release(second, 1.5, leasing.now)
    assert leasing.said() == settled(RELEASE, 1, ms=1500)
    assert (leasing.lost, leasing.core.acknowledged, leasing.core.lost) == ([first], 0, 1)


def test_who_extends_and_acknowledges_is_told_once_that_it_was_too_late_and_not_if_only_an_answer_was_lost(leasing):
    late, repeated, forgotten = leasing.taken(3)
    for each in (late, repeated):
        leasing.core.extend(each, 20.0, leasing.now)
        leasing.ack(each)
    assert [each.action for each in leasing.settlements()] == [EXTEND, ACK] * 2
    leasing.core.unsettled(T, leasing.now, 0.0)  # the broker has done it
    assert [each.action for each in leasing.settlements()] == [ACK] * 2
    leasing.core.settled(T, [SettleOutcome.LOST, SettleOutcome.GONE])
    assert (leasing.lost, leasing.core.lost, leasing.core.acknowledged) == ([late], 1, 1)

    leasing.core.extend(forgotten, 1.0, leasing.now)
    leasing.core.extend(forgotten, 2.0, leasing.now)
    assert len(leasing.said(SettleOutcome.LOST)) == 2
    assert (leasing.lost, forgotten.is_settled) == ([late, forgotten], True)


@pytest.mark.parametrize("reached", [True, False])
def test_what_is_extended_and_acknowledged_and_reaches_no_broker_in_time_is_lost_once(leasing, reached):
    (late,) = leasing.taken(1)
    leasing.core.extend(late, 10.0, leasing.now)
    leasing.ack(late)
    if reached:
        leasing.said(SettleOutcome.LOST)
    else:
        leasing.actions()
        leasing.core.unsettled(T, 20.1, 0.0)
    assert (leasing.lost, leasing.core.lost, leasing.core.unsettled_count) == ([late], 1, 0)


def test_a_lease_is_kept_while_a_handler_works_and_not_after_that(leasing):
    leasing.lease(message())
    (taken,) = leasing.take(1, keep=True)
    assert leasing.said(at=5.1) == settled(EXTEND, 0, ms=10_000)
    leasing.ack(taken)
    assert leasing.said(at=11.0) == settled(ACK, 0)
    assert leasing.said() == []


def test_acknowledgements_gather_until_the_first_has_waited_or_one_is_released(lingering):
    first, second, third, fourth = lingering.taken(4)
    lingering.ack(first)
    lingering.core.ack(second, 0.05)
    assert lingering.said(at=0.09) == []
    assert lingering.said(at=0.1) == settled(ACK, 0, 1)
    lingering.core.ack(third, 0.2)
    lingering.core.release(fourth, 0.0, 0.21)
    assert lingering.said(at=0.21) == settled(ACK, 2) + settled(RELEASE, 3)


def test_the_next_of_a_key_a_suspect_and_a_flush_wait_for_no_others(lingering):
    ordered, suspects = Leasing(linger_ms=100, ordered=True), Leasing(linger_ms=100)
    for each in (ordered, lingering):
        each.ack(*each.taken(1))
    suspects.arrive(0, suspect=1)
    suspects.ack(*suspects.take())
    assert (ordered.said(), suspects.said()) == (settled(ACK, 0), settled(ACK, 0, token=500))
    assert lingering.said() == []
    lingering.core.settle_now(0.0)
    assert lingering.said() == settled(ACK, 0)


def test_nothing_goes_to_a_broker_that_has_failed_before_its_pause_is_over(leasing):
    first, second = leasing.taken(2)
    leasing.ack(first)
    assert leasing.settlements() == settled(ACK, 0)
    leasing.core.unsettled(T, 0.0, 1.0)
    leasing.core.release(second, 0.0, 0.5)
    assert leasing.said(at=0.9) == []
    assert leasing.said(at=1.0) == settled(ACK, 0) + settled(RELEASE, 1)


def test_a_member_that_asks_for_nothing_more_gives_back_what_it_has_and_pauses_behind_a_broker_that_fails(lingering):
    (first,) = lingering.taken(1)
    lingering.lease(message())
    lingering.core.close(0.0)
    assert [each.action for each in lingering.settlements()] == [RETURN]
    lingering.core.unsettled(T, 0.0, 1.0)
    lingering.core.ack(first, 0.5)
    assert lingering.actions(0.9) == []
    assert [each.action for each in lingering.said(at=1.0)] == [RETURN, ACK]


def test_who_closes_withdraws_what_it_has_asked_for_until_that_is_answered_and_gives_back_what_comes(leasing):
    core = leasing.core
    assert leasing.kinds() == [Acquiring]
    core.close(0.0)
    assert core.actions(0.0) == [Acquiring(T, 0, 0)]
    assert (core.is_closed, core.actions(0.05)) == (False, [])
    assert 0.05 < core.next_time(0.05) < 0.2
    assert core.actions(0.2) == [Acquiring(T, 0, 0)]
    leasing.arrive(0)
    assert not core.is_closed
    assert leasing.said() == settled(RETURN, 0, token=500)
    assert (core.is_closed, core.actions(1.0), core.next_time(1.0)) == (True, [], math.inf)


def test_who_closes_waits_for_no_broker_that_refuses_the_withdrawal(leasing):
    leasing.actions()
    leasing.core.close(0.0)
    assert not leasing.core.is_closed
    leasing.core.refused(T, 0.0, None)
    assert leasing.core.is_closed


# --- what lies here once more, or comes late --------------------------------------------------------------------------


def places(messages: list[SharedMessage]) -> list[int]:
    return [each.leased_at for each in messages]


def test_who_acknowledges_late_what_lies_here_once_more_acknowledges_that_and_does_not_get_it_again(leasing):
    first, second, third = leasing.taken(3)
    leasing.now = 10.5
    leasing.arrive(0, 1, 7)
    leasing.ack(first)
    leasing.core.release(second, 0.0, leasing.now)
    assert leasing.said() == settled(ACK, 0, token=500) + settled(RELEASE, 1, token=500)
    assert places(leasing.take()) == [7]
    leasing.ack(third)
    assert leasing.said() == settled(ACK, 2)
    assert (leasing.core.acknowledged, leasing.lost) == (2, [])


def test_a_copy_that_comes_behind_a_late_acknowledgement_or_was_taken_before_is_not_worked_on_or_lost(leasing):
    first, second = leasing.taken(2)
    leasing.now = 10.5
    leasing.arrive(0)
    (copy,) = leasing.take()
    leasing.ack(first, second)
    assert leasing.said() == settled(ACK, 0, 1)
    leasing.arrive(1)
    assert leasing.take() == []
    leasing.ack(copy)
    assert leasing.said(SettleOutcome.GONE) == settled(ACK, 0, token=500)
    assert (leasing.core.acknowledged, leasing.lost) == (2, [])


@pytest.mark.parametrize("outcome", [SettleOutcome.LOST, SettleOutcome.GONE])
def test_one_whose_late_acknowledgement_was_refused_is_lost_and_worked_on_again(leasing, outcome):
    (first,) = leasing.taken(1)
    leasing.now = 10.5
    leasing.ack(first)
    leasing.said(outcome)
    assert leasing.lost == [first]
    leasing.arrive(0)
    assert places(leasing.take()) == [0]


def test_what_is_leased_again_while_its_acknowledgement_has_no_answer_is_not_worked_on_again(leasing):
    """The broker was killed when it got the acknowledgement, and the lease has ended before it was back."""
    (taken,) = leasing.taken(1)
    leasing.ack(taken)
    assert leasing.settlements()
    leasing.core.unsettled(T, 0.1, 0.0)
    leasing.now = 10.5
    leasing.arrive(0)
    assert leasing.take(1) == []
    assert [each.action for each in leasing.settlements()] == [ACK]
    leasing.core.settled(T, [SettleOutcome.DONE])
    assert (leasing.lost, leasing.core.acknowledged) == ([], 1)


def test_only_so_many_late_acknowledgements_are_remembered(leasing, monkeypatch):
    monkeypatch.setattr("metaq.client.shared.tuning.LATE_ACKNOWLEDGED", 2)
    found = leasing.taken(3)
    leasing.now = 10.5
    leasing.ack(*found)
    leasing.said()
    leasing.arrive(0, 1, 2)
    assert places(leasing.take()) == [0]


# --- suspects ---------------------------------------------------------------------------------------------------------


def test_beside_one_that_is_to_be_alone_nothing_is_asked_for_and_its_acknowledgement_waits_for_no_others(lingering):
    assert lingering.kinds() == [Acquiring]
    lingering.arrive(0, suspect=2)
    (alone,) = lingering.take()
    assert (lingering.actions(), lingering.core.next_time(0.0)) == ([], 10.0)
    lingering.arrive(7, suspect=2)  # of a broker that did not know
    assert lingering.said() == settled(RETURN, 7, token=500)
    lingering.ack(alone)
    settle, ask = lingering.actions()
    assert settle.settlements == tuple(settled(ACK, 0, token=500))
    assert isinstance(ask, Acquiring)  # behind it


def test_one_that_is_to_be_alone_and_that_nobody_takes_goes_back_in_time_and_who_takes_asks_for_more(leasing):
    leasing.core.waiting.clear()
    leasing.arrive(0, suspect=2)
    assert leasing.core.next_time(0.0) == 5.0
    (settle,) = leasing.actions(5.0)
    assert settle.settlements == tuple(settled(RETURN, 0, token=500))
    assert (leasing.take(1), leasing.kinds()) == ([], [Acquiring])


def test_one_that_was_taken_alone_and_is_never_settled_holds_up_nothing_behind_its_lease(leasing):
    leasing.arrive(0, suspect=2)
    leasing.take()
    assert (leasing.actions(9.9), leasing.kinds(10.0)) == ([], [Acquiring])


# --- when more is asked for -------------------------------------------------------------------------------------------


def test_acknowledgements_go_with_the_request_for_more_once_they_are_some(lingering):
    for count, along in ((7, []), (9, [*range(7), *range(9)])):
        lingering.ack(*lingering.taken(count))
        assert [each.offset for each in lingering.settlements()] == along
        lingering.core.refused(T, lingering.now, 0.0)


def test_the_driver_is_to_look_when_the_lease_of_a_message_that_is_worked_on_has_to_be_extended(leasing):
    leasing.lease(message())
    leasing.core.wakes_at, leasing.core.is_due = math.inf, False
    leasing.take(1, keep=True)
    assert (leasing.core.wakes_at, leasing.core.is_due) == (5.0, True)


def test_the_most_urgent_message_is_taken_first_also_when_it_comes_last(leasing):
    leasing.lease(message(b"low"), message(b"low too"))
    leasing.lease(message(b"urgent", 9 << PRIORITY_SHIFT), message(b"high", 5 << PRIORITY_SHIFT))
    order = [each.payload for _ in range(2) for each in leasing.take(3)]
    assert order == [b"urgent", b"high", b"low", b"low too"]


def test_more_is_asked_for_when_half_of_what_was_leased_ahead_is_left_and_that_is_not_under_way(lingering):
    core = lingering.core
    core.waiting[lingering] = 1
    (first,) = lingering.taken(1)
    lingering.now = 0.01
    lingering.ack(first)  # ten milliseconds each
    lingering.arrive(waited=1)
    (ask,) = (action for action in lingering.actions() if isinstance(action, Acquiring))
    core.waiting.clear()
    lingering.arrive(*range(20), waited=1)
    assert (ask.records, core.is_low) == (21, False)
    lingering.take(9)
    assert not core.is_low
    lingering.take(1)
    assert core.is_low
    assert lingering.kinds() == [Acquiring]
    assert not core.is_low


def test_a_broker_that_does_not_wait_for_messages_is_asked_with_pauses_that_grow(leasing):
    asked = 0
    for _ in range(1000):  # 10 s
        if leasing.actions(leasing.now + 0.01):
            asked += 1
            leasing.core.arrived(T, [], asked % 2, leasing.now + 0.001)
    assert 20 <= asked <= 45  # most pauses are 0.25 … 0.5 s


def test_a_broker_that_waits_for_messages_is_asked_again_at_once(leasing):
    for _ in range(3):
        assert len(leasing.actions()) == 1
        leasing.now += 15.0
        leasing.arrive()
    leasing.lease(message())
