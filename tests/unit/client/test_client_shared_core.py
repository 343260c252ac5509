"""What a shared consumer says of the messages that it was leased, without a broker."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from metaq.client.consumer_config import SharedConfig
from metaq.client.message import Message
from metaq.client.serializers import deserializers
from metaq.client.shared.core import Acquiring, Settle, SharedCore
from metaq.client.shared.message import SharedMessage
from metaq.client.values import TopicPartition
from metaq.errors import ClientError, ValueUnreadable
from metaq.protocol.record import EXPIRES_FLAG, PRIORITY_SHIFT, encode_attributes, encode_body
from metaq.protocol.shared import SettleAction, Settlement, SettleOutcome
from metaq.protocol.where import parse_where
from metaq.serializers import Json
from tests.properties import LISTED, body_with

T = TopicPartition("t", 0, 0)
NOW_MS = 1_000_000


class Leasing:
    """A core with one partition, whose broker leases what a test says. Seconds pass as a test says."""

    def __init__(
        self,
        where: str | None = None,
        partition: TopicPartition = T,
        linger_ms: int = 0,
        ordered: bool = False,
        **more: Any,
    ) -> None:
        self.lost: list[SharedMessage] = []
        self.now = 0.0
        self.partition = partition
        config = SharedConfig(settle_linger_ms=linger_ms, lease_seconds=10.0)
        chosen = None if where is None else parse_where(where)

        def clock() -> int:
            return NOW_MS + round(self.now * 1000)

        self.core = SharedCore(config, self.lost.append, ordered=ordered, where=chosen, now_ms=clock, **more)
        self.core.use([partition])
        self.core.waiting[self] = 10

    def lease(self, *messages: Message) -> None:
        assert [type(each) for each in self.core.actions(self.now)] == [Acquiring]
        arrived = []
        for number, message in enumerate(messages):
            shared = SharedMessage(*message)
            shared.leased_from, shared.leased_at, shared.token = self.partition, number, 100 + number
            shared.lease_until = self.now + 10.0
            arrived.append(shared)
        self.core.arrived(self.partition, arrived, 0, self.now)

    def said(self, outcome: SettleOutcome = SettleOutcome.DONE) -> list[Settlement]:
        said: list[Settlement] = []
        for action in self.core.actions(self.now):
            if isinstance(action, Settle):
                said += action.settlements
                self.core.settled(action.partition, [outcome] * len(action.settlements))
        return said


def message(payload: bytes = b"x", flag: int = 0, partition: TopicPartition = T) -> Message:
    return Message(partition, 7, 8, flag, payload)


def orders(*amounts: int) -> list[Message]:
    return [message(body_with({"amount": each}), LISTED) for each in amounts]


def test_what_the_filter_does_not_hold_for_is_acknowledged_unseen() -> None:
    leasing = Leasing("amount > 10")
    leasing.lease(*orders(5, 15, 25, 6))
    taken = leasing.core.take(10, leasing.now)
    assert [each.properties["amount"] for each in taken] == [15, 25]
    assert leasing.said() == [Settlement(number, 100 + number, 0, SettleAction.ACK) for number in (0, 3)]


def tagged(*tags: str, **properties: int) -> list[Message]:
    return [message(body_with({"TAGS": each, **properties}), LISTED) for each in tags]


def test_a_message_without_one_of_the_tags_is_acknowledged_unseen() -> None:
    leasing = Leasing("amount > 10", tags=frozenset({"a", "b"}))
    leasing.lease(*tagged("a", "c", "b", amount=11), message(), *tagged("a", amount=1))
    assert [each.tag for each in leasing.core.take(10, leasing.now)] == ["a", "b"]
    assert leasing.said() == [Settlement(number, 100 + number, 0, SettleAction.ACK) for number in (1, 3, 4)]


def test_a_message_with_another_tag_that_comes_to_the_group_again_has_passed_already() -> None:
    leasing = Leasing(partition=TopicPartition("%RETRY%g", 0, 0), tags=frozenset({"a"}))
    leasing.lease(*tagged("c"))
    assert len(leasing.core.take(1, leasing.now)) == 1


def test_the_value_is_read_by_the_consumers_deserializer_and_the_error_without_one_says_what_to_write() -> None:
    leasing = Leasing(reader=deserializers("deserializer", Json()))
    leasing.lease(message(b'{"a": 1}'), message(b"none"))
    good, bad = leasing.core.take(2, leasing.now)
    assert good.value == {"a": 1}
    with pytest.raises(ValueUnreadable, match="offset 7"):
        bad.value  # noqa: B018
    copied = pickle.loads(pickle.dumps(good))
    assert (copied, copied.token, copied.leased_at) == (good, 100, 0)
    with pytest.raises(ClientError, match=r"write SharedConsumer\(deserializer=…\)"):
        copied.value  # noqa: B018


def test_a_message_that_comes_to_the_group_again_has_passed_the_filter_already() -> None:
    leasing = Leasing("amount > 10", TopicPartition("%RETRY%g", 0, 0))
    leasing.lease(*orders(5))
    (taken,) = leasing.core.take(1, leasing.now)
    leasing.core.ack(taken, leasing.now)
    assert (taken.partition, taken.offset) == (T, 7)  # where it was first, and not where the lease is
    assert leasing.said() == [Settlement(0, 100, 0, SettleAction.ACK)]


@pytest.mark.parametrize(("seconds", "comes"), [(0.0, True), (2.0, False)])
def test_what_expires_while_it_is_here_is_acknowledged_unseen(seconds: float, comes: bool) -> None:
    flag, text = encode_attributes(reserved={"metaq.expires": str(NOW_MS + 1000)})
    leasing = Leasing()
    leasing.lease(message(encode_body(b"x", flag, text), flag | EXPIRES_FLAG), message())
    leasing.now = seconds
    assert [each.payload for each in leasing.core.take(10, leasing.now)] == [b"x"] * (1 + comes)
    assert leasing.said() == ([] if comes else [Settlement(0, 100, 0, SettleAction.ACK)])


def test_a_message_that_waited_for_half_of_its_lease_goes_back_unworked() -> None:
    leasing = Leasing()
    leasing.lease(message())
    leasing.now = 5.1
    assert leasing.core.take(1, leasing.now) == []
    assert leasing.said() == [Settlement(0, 100, 0, SettleAction.RETURN)]


def test_what_nobody_takes_goes_back_after_half_of_its_lease_and_nothing_more_is_leased_until_somebody_does() -> None:
    leasing = Leasing()
    core = leasing.core
    core.wakes_at, core.is_due = math.inf, False
    leasing.lease(message(), message(), message(flag=9 << PRIORITY_SHIFT))
    assert (core.wakes_at, core.is_due) == (5.0, True)
    core.waiting.clear()  # the caller works on what it got
    (handed,) = core.take(1, leasing.now)
    leasing.now = 1.0
    arrive(leasing, 8)
    assert core.next_time(1.0) == 5.0
    leasing.now = 4.9
    assert leasing.said() == []
    leasing.now = 5.0
    assert leasing.said() == [Settlement(each, 100 + each, 0, SettleAction.RETURN) for each in (0, 1)]
    assert (core.buffered, core.next_time(5.0)) == (1, 6.0)
    leasing.now = 6.0
    assert leasing.said() == [Settlement(8, 508, 0, SettleAction.RETURN)]
    assert core.next_time(6.0) == math.inf
    assert not core.is_low

    arrive(leasing, 9)  # a request was under way
    assert leasing.said() == [Settlement(9, 509, 0, SettleAction.RETURN)]
    core.ack(handed, leasing.now)
    assert len(leasing.said()) == 1
    assert core.take(1, leasing.now) == []
    core.waiting[leasing] = 1
    assert [type(each) for each in core.actions(leasing.now)] == [Acquiring]
    arrive(leasing, 9)
    assert len(core.take(1, leasing.now)) == 1


def test_who_waits_and_was_not_woken_in_time_still_gets_what_comes() -> None:
    leasing = Leasing()
    leasing.lease(message())
    leasing.now = 5.0
    settle, ask = leasing.core.actions(leasing.now)
    assert isinstance(settle, Settle)
    assert isinstance(ask, Acquiring)
    arrive(leasing, 0)
    assert len(leasing.core.take(1, leasing.now)) == 1


def test_an_acknowledgement_that_came_too_late_is_told() -> None:
    leasing = Leasing()
    leasing.lease(message(), message())
    first, second = leasing.core.take(2, leasing.now)
    leasing.core.ack(first, leasing.now)
    leasing.said(SettleOutcome.LOST)
    leasing.core.release(second, 1.5, leasing.now)
    assert leasing.said() == [Settlement(1, 101, 1500, SettleAction.RELEASE)]
    assert leasing.lost == [first]
    assert (leasing.core.acknowledged, leasing.core.lost) == (0, 1)


def test_who_extends_and_acknowledges_is_told_once_that_it_was_too_late_and_not_if_only_an_answer_was_lost() -> None:
    leasing = Leasing()
    leasing.lease(message(), message(), message())
    late, repeated, forgotten = leasing.core.take(3, leasing.now)
    for each in (late, repeated):
        leasing.core.extend(each, 20.0, leasing.now)
        leasing.core.ack(each, leasing.now)
    (_, settle) = sorted(leasing.core.actions(leasing.now), key=lambda each: isinstance(each, Settle))
    assert isinstance(settle, Settle)
    assert [each.action for each in settle.settlements] == [SettleAction.EXTEND, SettleAction.ACK] * 2
    leasing.core.unsettled(T, leasing.now, 0.0)  # the broker has done it
    (again,) = (each for each in leasing.core.actions(leasing.now) if isinstance(each, Settle))
    assert [each.action for each in again.settlements] == [SettleAction.ACK] * 2
    leasing.core.settled(T, [SettleOutcome.LOST, SettleOutcome.GONE])
    assert (leasing.lost, leasing.core.lost, leasing.core.acknowledged) == ([late], 1, 1)

    leasing.core.extend(forgotten, 1.0, leasing.now)
    leasing.core.extend(forgotten, 2.0, leasing.now)
    assert len(leasing.said(SettleOutcome.LOST)) == 2
    assert (leasing.lost, forgotten.is_settled) == ([late, forgotten], True)


@pytest.mark.parametrize("reached", [True, False])
def test_what_is_extended_and_acknowledged_and_reaches_no_broker_in_time_is_lost_once(reached: bool) -> None:
    leasing = Leasing()
    leasing.lease(message())
    (late,) = leasing.core.take(1, leasing.now)
    leasing.core.extend(late, 10.0, leasing.now)
    leasing.core.ack(late, leasing.now)
    if reached:
        leasing.said(SettleOutcome.LOST)
    else:
        leasing.core.actions(leasing.now)
        leasing.core.unsettled(T, 20.1, 0.0)
    assert (leasing.lost, leasing.core.lost, leasing.core.unsettled_count) == ([late], 1, 0)


def test_a_lease_is_kept_while_a_handler_works_and_not_after_that() -> None:
    leasing = Leasing()
    leasing.lease(message())
    (taken,) = leasing.core.take(1, leasing.now, keep=True)
    leasing.now = 5.1
    assert leasing.said() == [Settlement(0, 100, 10_000, SettleAction.EXTEND)]
    leasing.core.ack(taken, leasing.now)
    leasing.now = 11.0
    assert leasing.said() == [Settlement(0, 100, 0, SettleAction.ACK)]
    assert leasing.said() == []


def taken(leasing: Leasing, count: int) -> list[SharedMessage]:
    leasing.lease(*[message()] * count)
    return leasing.core.take(count, leasing.now)


def offsets(settlements: list[Settlement]) -> list[int]:
    return [each.offset for each in settlements]


def test_acknowledgements_gather_until_the_first_has_waited_or_one_is_released() -> None:
    leasing = Leasing(linger_ms=100)
    first, second, third, fourth = taken(leasing, 4)
    leasing.core.ack(first, 0.0)
    leasing.core.ack(second, 0.05)
    leasing.now = 0.09
    assert leasing.said() == []
    leasing.now = 0.1
    assert offsets(leasing.said()) == [0, 1]
    leasing.core.ack(third, 0.2)
    leasing.core.release(fourth, 0.0, 0.21)
    leasing.now = 0.21
    assert offsets(leasing.said()) == [2, 3]


def test_the_next_of_a_key_and_a_flush_wait_for_no_others() -> None:
    leasing = Leasing(linger_ms=100, ordered=True)
    leasing.core.ack(taken(leasing, 1)[0], 0.0)
    assert offsets(leasing.said()) == [0]
    leasing = Leasing(linger_ms=100)
    leasing.core.ack(taken(leasing, 1)[0], 0.0)
    assert leasing.said() == []
    leasing.core.settle_now(0.0)
    assert offsets(leasing.said()) == [0]


def test_nothing_goes_to_a_broker_that_has_failed_before_its_pause_is_over() -> None:
    leasing = Leasing()
    first, second = taken(leasing, 2)
    leasing.core.ack(first, 0.0)
    (action,) = [each for each in leasing.core.actions(0.0) if isinstance(each, Settle)]
    leasing.core.unsettled(action.partition, 0.0, 1.0)
    leasing.core.release(second, 0.0, 0.5)
    leasing.now = 0.9
    assert leasing.said() == []
    leasing.now = 1.0
    assert offsets(leasing.said()) == [0, 1]


def test_a_member_that_asks_for_nothing_more_gives_back_what_it_has_and_pauses_behind_a_broker_that_fails() -> None:
    leasing = Leasing(linger_ms=100)
    first, *_ = taken(leasing, 1)
    leasing.lease(message())
    leasing.core.close(0.0)
    (action,) = leasing.core.actions(0.0)
    assert isinstance(action, Settle)
    assert [each.action for each in action.settlements] == [SettleAction.RETURN]
    leasing.core.unsettled(action.partition, 0.0, 1.0)
    leasing.core.ack(first, 0.5)
    assert leasing.core.actions(0.9) == []
    leasing.now = 1.0
    assert [each.action for each in leasing.said()] == [SettleAction.RETURN, SettleAction.ACK]


def test_who_closes_withdraws_what_it_has_asked_for_until_that_is_answered_and_gives_back_what_comes() -> None:
    leasing = Leasing()
    core = leasing.core
    assert [type(each) for each in core.actions(0.0)] == [Acquiring]
    core.close(0.0)
    assert core.actions(0.0) == [Acquiring(T, 0, 0)]
    assert (core.is_closed, core.actions(0.05)) == (False, [])
    assert 0.05 < core.next_time(0.05) < 0.2
    assert core.actions(0.2) == [Acquiring(T, 0, 0)]
    arrive(leasing, 0)
    assert not core.is_closed
    assert leasing.said() == [Settlement(0, 500, 0, SettleAction.RETURN)]
    assert (core.is_closed, core.actions(1.0), core.next_time(1.0)) == (True, [], math.inf)


def test_who_closes_waits_for_no_broker_that_refuses_the_withdrawal() -> None:
    leasing = Leasing()
    leasing.core.actions(0.0)
    assert not leasing.core.is_closed
    leasing.core.close(0.0)
    leasing.core.refused(T, 0.0, None)
    assert leasing.core.is_closed


def arrive(leasing: Leasing, *places: int, token: int = 500, suspect: int = 0) -> list[SharedMessage]:
    """Messages at these places, of another lease."""
    arrived = []
    for place in places:
        shared = SharedMessage(*message())
        shared.leased_from, shared.leased_at, shared.token = T, place, token + place
        shared.lease_until = leasing.now + 10.0
        arrived.append(shared)
    leasing.core.arrived(T, arrived, 0, leasing.now, suspect)
    return arrived


def test_who_acknowledges_late_what_lies_here_once_more_acknowledges_that_and_does_not_get_it_again() -> None:
    leasing = Leasing()
    first, second, third = taken(leasing, 3)
    leasing.now = 10.5
    arrive(leasing, 0, 1, 7)
    leasing.core.ack(first, leasing.now)
    leasing.core.release(second, 0.0, leasing.now)
    assert leasing.said() == [
        Settlement(0, 500, 0, SettleAction.ACK),
        Settlement(1, 501, 0, SettleAction.RELEASE),
    ]
    assert [each.leased_at for each in leasing.core.take(9, leasing.now)] == [7]
    leasing.core.ack(third, leasing.now)
    assert leasing.said() == [Settlement(2, 102, 0, SettleAction.ACK)]
    assert (leasing.core.acknowledged, leasing.lost) == (2, [])


def test_a_copy_that_comes_behind_a_late_acknowledgement_or_was_taken_before_is_not_worked_on_or_lost() -> None:
    leasing = Leasing()
    first, second = taken(leasing, 2)
    leasing.now = 10.5
    arrive(leasing, 0)
    (copy,) = leasing.core.take(9, leasing.now)
    leasing.core.ack(first, leasing.now)
    leasing.core.ack(second, leasing.now)
    assert leasing.said() == [Settlement(0, 100, 0, SettleAction.ACK), Settlement(1, 101, 0, SettleAction.ACK)]
    arrive(leasing, 1)
    assert leasing.core.take(9, leasing.now) == []
    leasing.core.ack(copy, leasing.now)
    assert leasing.said(SettleOutcome.GONE) == [Settlement(0, 500, 0, SettleAction.ACK)]
    assert (leasing.core.acknowledged, leasing.lost) == (2, [])


@pytest.mark.parametrize("outcome", [SettleOutcome.LOST, SettleOutcome.GONE])
def test_one_whose_late_acknowledgement_was_refused_is_lost_and_worked_on_again(outcome: SettleOutcome) -> None:
    leasing = Leasing()
    (first,) = taken(leasing, 1)
    leasing.now = 10.5
    leasing.core.ack(first, leasing.now)
    leasing.said(outcome)
    assert leasing.lost == [first]
    arrive(leasing, 0)
    assert len(leasing.core.take(9, leasing.now)) == 1


def test_only_so_many_late_acknowledgements_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.client.shared.tuning.LATE_ACKNOWLEDGED", 2)
    leasing = Leasing()
    found = taken(leasing, 3)
    leasing.now = 10.5
    for each in found:
        leasing.core.ack(each, leasing.now)
    leasing.said()
    arrive(leasing, 0, 1, 2)
    assert [each.leased_at for each in leasing.core.take(9, leasing.now)] == [0]


def test_beside_one_that_is_to_be_alone_nothing_is_asked_for_and_its_acknowledgement_waits_for_no_others() -> None:
    leasing = Leasing(linger_ms=100)
    assert [type(each) for each in leasing.core.actions(0.0)] == [Acquiring]
    arrive(leasing, 0, suspect=2)
    (alone,) = leasing.core.take(9, 0.0)
    assert leasing.core.actions(0.0) == []
    assert leasing.core.next_time(0.0) == 10.0
    arrive(leasing, 7, suspect=2)  # of a broker that did not know
    assert leasing.said() == [Settlement(7, 507, 0, SettleAction.RETURN)]
    leasing.core.ack(alone, 0.0)
    settle, ask = leasing.core.actions(0.0)
    assert isinstance(settle, Settle)
    assert settle.settlements == (Settlement(0, 500, 0, SettleAction.ACK),)
    assert isinstance(ask, Acquiring)  # behind it


def test_the_acknowledgement_of_a_suspect_beside_others_waits_for_no_others() -> None:
    leasing = Leasing(linger_ms=100)
    arrive(leasing, 0, suspect=1)
    (suspect,) = leasing.core.take(9, 0.0)
    leasing.core.ack(suspect, 0.0)
    assert offsets(leasing.said()) == [0]


def test_one_that_is_to_be_alone_and_that_nobody_takes_goes_back_in_time_and_who_takes_asks_for_more() -> None:
    leasing = Leasing()
    leasing.core.waiting.clear()
    arrive(leasing, 0, suspect=2)
    assert leasing.core.next_time(0.0) == 5.0
    leasing.now = 5.0
    (settle,) = leasing.core.actions(5.0)
    assert isinstance(settle, Settle)
    assert settle.settlements == (Settlement(0, 500, 0, SettleAction.RETURN),)
    assert leasing.core.take(1, 5.0) == []
    assert [type(each) for each in leasing.core.actions(5.0)] == [Acquiring]


def test_one_that_was_taken_alone_and_is_never_settled_holds_up_nothing_behind_its_lease() -> None:
    leasing = Leasing()
    arrive(leasing, 0, suspect=2)
    leasing.core.take(9, 0.0)
    assert leasing.core.actions(9.9) == []
    assert [type(each) for each in leasing.core.actions(10.0)] == [Acquiring]


def test_acknowledgements_go_with_the_request_for_more_once_they_are_some() -> None:
    leasing = Leasing(linger_ms=100)
    for count, along in ((7, []), (9, list(range(7)) + list(range(9)))):
        for each in taken(leasing, count):
            leasing.core.ack(each, leasing.now)
        said = [action for action in leasing.core.actions(leasing.now) if isinstance(action, Settle)]
        assert [each.offset for action in said for each in action.settlements] == along
        leasing.core.refused(T, leasing.now, 0.0)


def test_the_driver_is_to_look_when_the_lease_of_a_message_that_is_worked_on_has_to_be_extended() -> None:
    leasing = Leasing()
    leasing.lease(message())
    leasing.core.wakes_at, leasing.core.is_due = math.inf, False
    leasing.core.take(1, leasing.now, keep=True)
    assert (leasing.core.wakes_at, leasing.core.is_due) == (5.0, True)


def test_the_most_urgent_message_is_taken_first_also_when_it_comes_last() -> None:
    leasing = Leasing()
    leasing.lease(message(b"low"), message(b"low too"))
    leasing.lease(message(b"urgent", 9 << PRIORITY_SHIFT), message(b"high", 5 << PRIORITY_SHIFT))
    order = [each.payload for each in leasing.core.take(3, leasing.now)]
    assert order + [each.payload for each in leasing.core.take(3, leasing.now)] == [
        b"urgent",
        b"high",
        b"low",
        b"low too",
    ]


def test_more_is_asked_for_when_half_of_what_was_leased_ahead_is_left_and_that_is_not_under_way() -> None:
    leasing = Leasing(linger_ms=100)
    core = leasing.core
    core.waiting[leasing] = 1
    leasing.lease(message())
    (first,) = core.take(1, 0.0)
    core.ack(first, 0.01)  # ten milliseconds each
    core.arrived(T, [], 1, 0.01)
    leasing.now = 0.01
    (ask,) = (action for action in core.actions(0.01) if isinstance(action, Acquiring))
    core.waiting.clear()
    arrived = []
    for number in range(20):
        shared = SharedMessage(*message())
        shared.leased_from, shared.leased_at, shared.token, shared.lease_until = T, number, 1, 10.0
        arrived.append(shared)
    core.arrived(T, arrived, 1, 0.01)
    assert (ask.records, core.is_low) == (21, False)
    core.take(9, 0.01)
    assert not core.is_low
    core.take(1, 0.01)
    assert core.is_low
    assert [type(each) for each in core.actions(0.01)] == [Acquiring]
    assert not core.is_low


def test_a_broker_that_does_not_wait_for_messages_is_asked_with_pauses_that_grow():
    leasing = Leasing()
    asked = 0
    for _ in range(1000):  # 10 s
        leasing.now += 0.01
        if leasing.core.actions(leasing.now):
            asked += 1
            leasing.core.arrived(T, [], asked % 2, leasing.now + 0.001)
    assert 20 <= asked <= 45  # most pauses are 0.25 … 0.5 s


def test_a_broker_that_waits_for_messages_is_asked_again_at_once():
    leasing = Leasing()
    for _ in range(3):
        assert len(leasing.core.actions(leasing.now)) == 1
        leasing.now += 15.0
        leasing.core.arrived(T, [], 0, leasing.now)
    leasing.lease(plain())


def plain() -> Message:
    return Message(T, 0, 1, 0, b"x")
