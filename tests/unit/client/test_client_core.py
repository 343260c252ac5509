"""Whose turn it is in the core, and what wakes a poll() that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metaq import ConsumerConfig, TopicPartition
from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Ask, PartitionCursor
from metaq.client.fetching.fetcher import Fetcher
from metaq.client.runtime.waiting import Waiter
from metaq.client.transport.connection import Endpoint
from metaq.coordination.runtime.interrupts import Bell
from metaq.protocol.errors import AccessRefused, BrokerUnavailable, NotLeader, NotOwner
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import ResponseCode
from tests.unit.client.chunks import chunk_of, payloads, record


class Driven:
    """A connection: when it is driven, `step` happens."""

    closed = False

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step
        self.waiters: list[Waiter] = []

    def drive(self, waiter: Waiter, deadline: float) -> None:
        self.waiters.append(waiter)
        self.step()


@pytest.fixture
def core() -> ConsumerCore:
    return ConsumerCore("g", ConsumerConfig())


@pytest.fixture
def fetcher(core) -> Fetcher:
    unused: Any = None
    return Fetcher(core, unused, lambda _: None, unused)


def claim(core: ConsumerCore, *numbers: int) -> list[PartitionCursor]:
    partitions = [TopicPartition("t", 0, number) for number in numbers]
    return list(core.claim(partitions, [0] * len(numbers), announced=True))


@pytest.fixture
def cursor(core) -> PartitionCursor:
    return claim(core, 0)[0]


def arrive(core: ConsumerCore, cursor: PartitionCursor, payload: bytes) -> None:
    request = cursor.next_request(0.0)
    assert request is not None
    assert cursor.arrived(request, chunk_of(record(payload), offset=cursor.fetch_offset))
    cursor.answered(request, 0.0)
    core.make_ready(cursor)


def reading(fetcher: Fetcher, step: Callable[[], None] = lambda: None) -> list[bool]:
    """Whether each waiter that has driven was told to come back."""
    driven: Any = Driven(step)
    fetcher._connections = [driven]
    fetcher.wait(1.0)
    return [waiter.done for waiter in driven.waiters]


def test_partitions_take_turns_in_the_order_in_which_data_came(core):
    first, second = claim(core, 0, 1)
    for cursor, payload in ((first, b"a"), (second, b"b"), (first, b"c")):
        arrive(core, cursor, payload)
    assert [payloads(core.take(limit)) for limit in (1, 1, 2)] == [[b"a"], [b"b"], [b"c"]]


def test_a_partition_stays_ready_until_it_was_found_empty(core):
    first, second = claim(core, 0, 1)
    core.make_ready(first)
    arrive(core, second, b"b")
    assert core.next_ready() is first
    assert payloads(core.take(9)) == [b"b"]
    assert core.next_ready() is None


def test_a_handler_looks_at_what_was_handed_over(core, cursor):
    arrive(core, cursor, b"a")
    core.hand_over(cursor)
    assert core.next_ready() is None
    core.make_ready(cursor)
    assert core.next_ready() is cursor


def test_a_claim_of_today_is_not_lost_with_one_of_yesterday(core, cursor):
    core.lose([cursor])
    (today,) = claim(core, 0)
    core.lose([cursor])
    assert core.owned == {today.partition: today}


def refuse(core: ConsumerCore, cursor: PartitionCursor, text: str = "no grant", now: float = 0.0) -> AccessRefused:
    error, request = AccessRefused(text), cursor.next_request(now)
    assert request is not None
    assert core.failed(request, error, now)
    return error


def test_a_refusal_is_told_once_each_time(core):
    first, second = claim(core, 0, 1)
    error = refuse(core, first)
    refuse(core, second)
    assert core.is_refused
    assert core.take_refusal() is error
    assert (core.is_refused, core.take_refusal()) == (False, None)
    again = refuse(core, first, now=1000.0)
    assert core.take_refusal() is again


def test_a_refusal_that_is_over_is_not_told(core):
    granted, lost = claim(core, 0, 1)
    refuse(core, granted)
    refuse(core, lost)
    request = granted.next_request(1000.0)
    assert request is not None
    fields = {"nextOffset": "0", "minOffset": "0", "maxOffset": "0", "behind": "0"}
    frame = Frame(ResponseCode.PULL_NOT_FOUND, 1, 1, "", fields, memoryview(b""))
    core.answered(request, frame, Endpoint("here", 1), 1000.0)
    core.lose([lost])
    assert (core.is_refused, core.take_refusal()) == (False, None)


def test_other_failures_are_not_told(core, cursor):
    request = cursor.next_request(0.0)
    assert request is not None
    assert core.failed(request, BrokerUnavailable("gone"), 0.0)
    assert not core.is_refused


def test_a_thread_that_reads_is_told(fetcher):
    assert reading(fetcher, fetcher.wake) == [True]


def test_what_came_before_listening_does_not_end_a_wait(fetcher):
    fetcher.wake()
    fetcher.wake()
    fetcher.listen()
    assert reading(fetcher) == [False]


def test_what_came_since_then_does_without_reading(fetcher):
    fetcher.listen()
    fetcher.wake()
    assert reading(fetcher) == []
    fetcher._connections = []
    fetcher.wait(3600)


def test_a_wait_that_an_exception_ended_leaves_the_bell_in_order(fetcher):
    def interrupted() -> None:
        fetcher.wake()
        assert fetcher._bell.wait(3600)  # has taken what rang
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reading(fetcher, interrupted)
    fetcher.listen()
    assert isinstance(fetcher._bell, Bell)
    assert reading(fetcher) == [False]
    fetcher.wake()
    fetcher._connections = []
    fetcher.wait(3600)


# --- broker sets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, 1.5, "t", object()])
def test_what_is_no_partition_is_named(core, given):
    with pytest.raises(TypeError, match="is no TopicPartition: give one of assignment"):
        core.cursor(given)
    with pytest.raises(NotOwner):
        core.cursor(TopicPartition("t", 0, 0))


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_a_node_that_does_not_lead_is_no_trouble_of_the_partition(caplog, pause):
    core = ConsumerCore("g", ConsumerConfig(), follow=lambda error: pause if isinstance(error, NotLeader) else None)
    (cursor,) = claim(core, 0)
    request = cursor.next_request(1.0)
    assert request is not None
    refusal = Frame(ResponseCode.NOT_LEADER, 1, 1, "", {"leader": "meta://there:1"}, memoryview(b""))
    assert core.answered(request, refusal, Endpoint("here", 1), 1.0) == pause
    assert (cursor.backoff.tries, caplog.records) == (0, [])
    following = cursor.next_request(1.0 + pause)
    assert following is not None
    assert following.offset == request.offset
    assert core.answered(request, refusal, Endpoint("here", 1), 1.0) is None  # an answer to the first one comes late


def test_a_partition_is_read_from_the_nearest_node_until_that_refuses_or_does_not_answer(core, cursor):
    leader, *others = (Endpoint("here", port) for port in (1, 2, 3))
    choices = others.copy()
    core.nearest = cast(Any, SimpleNamespace(choose=lambda *_: choices[0], failed=lambda node, _: choices.remove(node)))
    request = cursor.next_request(0.0)
    assert request is not None
    assert core.source(request, leader, (), 0.0) == others[0]
    core.answered(request, Frame(ResponseCode.NOT_LEADER, 1, 1, "", {}, memoryview(b"")), others[0], 0.0)
    assert core.source(request, leader, (), 0.0) == others[1]
    choices.append(leader)
    core.unanswered(request, BrokerUnavailable("gone"), 0.0, others[1])
    assert core.source(request, leader, (), 0.0) == leader
    assert core.source(request._replace(ask=Ask.BEGIN), others[0], (), 0.0) == others[0]
    core.nearest = None
    with pytest.raises(BrokerUnavailable, match="broker 0 is not registered"):
        core.source(request, None, (), 0.0)


# --- brokers that wait for messages, and others -----------------------------------------------------------------------

MOVED, NOT_FOUND = ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND


@pytest.fixture
def answer(core, cursor):
    def pause(now: float, code: int = NOT_FOUND, waited=0.001, **changed: int):
        """The pause behind an answer that comes `waited` seconds after its request."""
        request = cursor.next_request(now)
        assert request is not None
        fields = {"nextOffset": request.offset, "minOffset": 0, "maxOffset": 1 << 40, "behind": 0} | changed
        frame = Frame(code, 1, 1, "", {name: str(value) for name, value in fields.items()}, memoryview(b""))
        return core.answered(request, frame, Endpoint("here", 1), now + waited)

    return pause


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, NOT_FOUND])
def test_a_broker_that_does_not_wait_is_asked_with_pauses_that_grow(cursor, answer, code):
    pauses = []
    for now in range(12):
        pauses.append(answer(float(now), code))
        assert cursor.next_request(now + 0.002) is None
    assert pauses == [*(number * 50 / 1000 for number in range(1, 10)), 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    "second",
    [{"waited": ConsumerConfig().long_poll_ms / 1000}, {"nextOffset": 100}],
    ids=["a broker that waits", "an answer that moves the position"],
)
def test_what_needs_no_pause_begins_them_anew(answer, second):
    assert [answer(0.0), answer(1.0, **second), answer(20.0)] == [0.05, 0.0, 0.05]


def test_a_broker_that_moves_the_position_on_and_on_is_asked_with_pauses(cursor, answer):
    pauses = [answer(float(now), MOVED, nextOffset=10 * now) for now in range(1, 5)]
    assert pauses == [0.0, 0.05, 0.1, 0.15]
    cursor.whole_records_came()
    assert answer(10.0, MOVED, nextOffset=1000) == 0.0
