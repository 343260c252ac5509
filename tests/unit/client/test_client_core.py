"""Whose turn it is in the core, and what wakes a poll() that waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metaq.client.connection import Endpoint
from metaq.client.consumer.chunk import Chunk
from metaq.client.consumer.core import ConsumerCore
from metaq.client.consumer.cursor import PartitionCursor
from metaq.client.consumer.fetcher import Fetcher
from metaq.client.consumer_config import ConsumerConfig
from metaq.client.values import TopicPartition
from metaq.client.waiting import Waiter
from metaq.coordination.interrupts import Bell
from metaq.protocol.errors import NotLeader, NotOwner
from metaq.protocol.frames import Frame
from metaq.protocol.record import encode_record
from metaq.protocol.statuses import ResponseCode


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


def arrive(core: ConsumerCore, cursor: PartitionCursor, payload: bytes) -> None:
    request = cursor.next_request(0.0)
    assert request is not None
    data = encode_record(payload, 1, 0)
    assert cursor.arrived(request, Chunk.of(data, cursor.fetch_offset, cursor.fetch_offset + len(data)))
    cursor.answered(request, 0.0)
    core.make_ready(cursor)


def payloads(core: ConsumerCore, limit: int) -> list[bytes]:
    return [message.payload for message in core.take(limit)]


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
    assert payloads(core, 1) == [b"a"]
    assert payloads(core, 1) == [b"b"]
    assert payloads(core, 2) == [b"c"]


def test_a_partition_stays_ready_until_it_was_found_empty(core):
    first, second = claim(core, 0, 1)
    core.make_ready(first)
    arrive(core, second, b"b")
    assert core.next_ready() is first
    assert payloads(core, 9) == [b"b"]
    assert core.next_ready() is None


def test_what_may_not_be_handed_out_now_is_found_later(core):
    (cursor,) = claim(core, 0)
    arrive(core, cursor, b"a")
    core.in_doubt = True
    assert payloads(core, 9) == []
    core.in_doubt = False
    assert payloads(core, 9) == [b"a"]


def test_a_handler_looks_at_what_was_handed_over(core):
    (cursor,) = claim(core, 0)
    arrive(core, cursor, b"a")
    core.hand_over(cursor)
    assert core.next_ready() is None
    core.make_ready(cursor)
    assert core.next_ready() is cursor


def test_a_claim_of_today_is_not_lost_with_one_of_yesterday(core):
    (former,) = claim(core, 0)
    core.lose([former])
    (cursor,) = claim(core, 0)
    core.lose([former])
    assert core.owned == {cursor.partition: cursor}


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
    assert cursor.backoff.tries == 0
    assert caplog.records == []
    following = cursor.next_request(1.0 + pause)
    assert following is not None
    assert following.offset == request.offset
    assert core.answered(request, refusal, Endpoint("here", 1), 1.0) is None  # an answer to the first one comes late


WAIT_SECONDS = ConsumerConfig().long_poll_ms / 1000


def answer(core: ConsumerCore, cursor: PartitionCursor, code: int, waited: float, now: float, **changed: int):
    """The pause behind an answer that comes `waited` seconds after its request."""
    request = cursor.next_request(now)
    assert request is not None
    fields = {"nextOffset": request.offset, "minOffset": 0, "maxOffset": 1 << 40, "behind": 0} | changed
    frame = Frame(code, 1, 1, "", {name: str(value) for name, value in fields.items()}, memoryview(b""))
    return core.answered(request, frame, Endpoint("here", 1), now + waited)


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND])
def test_a_broker_that_does_not_wait_is_asked_with_pauses_that_grow(core, code):
    (cursor,) = claim(core, 0)
    now, pauses = 0.0, []
    for _ in range(12):
        pauses.append(answer(core, cursor, code, 0.001, now))
        assert cursor.next_request(now + 0.002) is None
        now += 1.0
    assert pauses == [*(number * 50 / 1000 for number in range(1, 10)), 0.5, 0.5, 0.5]


def test_a_broker_that_waits_is_asked_again_at_once(core):
    (cursor,) = claim(core, 0)
    assert answer(core, cursor, ResponseCode.PULL_NOT_FOUND, 0.001, 0.0) == 0.05
    assert answer(core, cursor, ResponseCode.PULL_NOT_FOUND, WAIT_SECONDS, 1.0) == 0.0
    assert answer(core, cursor, ResponseCode.PULL_NOT_FOUND, 0.001, 20.0) == 0.05


def test_an_answer_that_moves_the_position_needs_no_pause(core):
    (cursor,) = claim(core, 0)
    assert answer(core, cursor, ResponseCode.PULL_NOT_FOUND, 0.001, 0.0) == 0.05
    assert answer(core, cursor, ResponseCode.PULL_NOT_FOUND, 0.001, 1.0, nextOffset=100) == 0.0
    assert answer(core, cursor, ResponseCode.PULL_NOT_FOUND, 0.001, 2.0) == 0.05


def test_a_broker_that_moves_the_position_on_and_on_is_asked_with_pauses(core):
    (cursor,) = claim(core, 0)
    moved = ResponseCode.PULL_OFFSET_MOVED
    pauses = [answer(core, cursor, moved, 0.001, float(now), nextOffset=10 * now) for now in range(1, 5)]
    assert pauses == [0.0, 0.05, 0.1, 0.15]
    cursor.whole_records_came()
    assert answer(core, cursor, moved, 0.001, 10.0, nextOffset=1000) == 0.0
