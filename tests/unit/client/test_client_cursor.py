"""The core driven at random, in one thread, with a clock and a broker of the test: what the user gets has no gap, and
no partition ever stops."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from metaq.client.fetching.chunk import Chunk
from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Ask, PartitionCursor, Request
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.connection import Endpoint
from metaq.protocol.errors import BrokerUnavailable, CorruptRecord
from metaq.protocol.record import encode_record

RECORDS = [encode_record(b"%d" % number, number + 1, 0) for number in range(30)]
OFFSETS = [sum(map(len, RECORDS[:number])) for number in range(len(RECORDS) + 1)]
END = OFFSETS[-1]
HERE = Endpoint("localhost", 8123)
PARTITIONS = [TopicPartition("t", 0, number) for number in range(2)]
partitions = st.sampled_from(PARTITIONS)
counts = st.lists(st.integers(0, 9), min_size=1, max_size=5)


def records(offset: int, count: int) -> Chunk:
    first = OFFSETS.index(offset)
    data = b"".join(RECORDS[first : first + count])
    return Chunk.of(data, offset, offset + len(data))


class ConsumerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.core = ConsumerCore("g", ConsumerConfig(max_buffered_bytes=200))
        codec: Any = self.core.codec
        codec.read = lambda request, answer, endpoint: answer
        self.sent: list[Request] = []
        self.pauses: list[tuple[float, PartitionCursor]] = []
        self.next: dict[TopicPartition, int] = {}  # where the user's next message begins
        self.consumed: dict[TopicPartition, int | None] = {}
        self.unread: dict[TopicPartition, int] = {}  # as `next` was before the poll whose messages are not consumed yet

    @initialize()
    def begin(self) -> None:
        self.claim(PARTITIONS[0], 0)
        self.claim(PARTITIONS[1], OFFSETS[3])

    def claim(self, partition: TopicPartition, offset: int, *, asks: bool = False) -> None:
        self.core.claim([partition], [(lambda *_: offset) if asks else offset], announced=True)
        self.next[partition], self.consumed[partition] = offset, None
        self.unread.pop(partition, None)

    # --- the driver of requests -------------------------------------------------------------------------------------

    @rule()
    def serve(self) -> None:
        while (cursor := self.core.next_wanting()) is not None:
            request = cursor.next_request(self.now)
            if request is not None:
                self.sent.append(request)

    def then(self, request: Request, pause: float | None) -> None:
        if pause is not None:
            self.pauses.append((self.now + pause, request.cursor))

    @rule(counts=counts, last=st.booleans())
    def answers(self, counts: list[int], last: bool) -> None:
        for count in counts:
            self.time_passes(1.0)
            self.serve()
            if self.sent:
                self.answer_to(self.sent.pop(-1 if last else 0), count)

    def answer_to(self, request: Request, count: int) -> None:
        core, reply = self.core, [] if request.offset == END else [records(request.offset, count)] if count else []
        if request.ask is Ask.BEGIN:
            assert request.cursor.locate is not None
            locate: Any = request.cursor.locate
            pause = core.found(request, locate(), self.now)
        elif request.ask is Ask.DAMAGE:
            pause = core.found(request, None, self.now)
        else:
            answer: Any = (reply, 0.0 if reply else 0.5)
            pause = core.answered(request, answer, HERE, self.now)
        self.then(request, pause)

    @precondition(lambda self: self.sent)
    @rule(last=st.booleans(), interrupted=st.booleans())
    def fail(self, last: bool, interrupted: bool) -> None:
        request = self.sent.pop(-1 if last else 0)
        error = BrokerUnavailable("by the test")
        happens = self.core.unanswered if interrupted else self.core.failed
        self.then(request, happens(request, error, self.now))

    @precondition(lambda self: self.sent)
    @rule(last=st.booleans(), count=st.integers(1, 9))
    def pull_ahead(self, last: bool, count: int) -> None:
        """An answer says where it ends; the next one is asked for, and both come in their order."""
        request = self.sent[-1 if last else 0]
        if request.ask is Ask.PULL and request.offset < END and request.cursor.fetch_offset == request.offset:
            end = records(request.offset, count).end_offset
            ahead = request.cursor.next_ahead(request, end)
            self.sent.remove(request)
            self.answer_to(request, count)
            if ahead is not None:
                self.sent.append(ahead)

    @rule(seconds=st.sampled_from([0.1, 1.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = [cursor for when, cursor in self.pauses if when <= self.now]
        self.pauses = [(when, cursor) for when, cursor in self.pauses if when > self.now]
        for cursor in due:
            self.core.want(cursor)

    @rule(partition=partitions)
    def an_interrupt_loses_a_request(self, partition: TopicPartition) -> None:
        self.core.owned[partition].ask_anew()

    # --- the user ---------------------------------------------------------------------------------------------------

    @rule(counts=counts, limit=st.integers(1, 12))
    def poll(self, counts: list[int], limit: int) -> None:
        self.answers(counts, False)
        self.acknowledge()
        before = dict(self.next)
        try:
            self.read(self.core.take(limit))
        except CorruptRecord:
            for partition in self.next:
                self.seek(partition, OFFSETS.index(self.next[partition]))
        self.core.under_way = False
        self.unread = {each: offset for each, offset in before.items() if offset != self.next[each]}

    def acknowledge(self) -> None:
        self.core.acknowledge()
        for partition in self.unread:
            self.consumed[partition] = self.next[partition]
        self.unread = {}

    def read(self, messages: list[Message]) -> None:
        for message in messages:
            assert message.offset == self.next[message.partition]
            self.next[message.partition] = message.next_offset

    @rule(counts=counts, limit=st.integers(1, 12))
    def poll_interrupted(self, counts: list[int], limit: int) -> None:
        self.answers(counts, False)
        self.acknowledge()
        with suppress(CorruptRecord):
            self.core.take(limit)
        self.core.settle()

    @rule(partition=partitions, number=st.integers(0, len(RECORDS)))
    def seek(self, partition: TopicPartition, number: int) -> None:
        self.core.owned[partition].moved_to(OFFSETS[number])
        self.next[partition] = self.consumed[partition] = OFFSETS[number]
        self.unread.pop(partition, None)

    @rule(doubt=st.booleans())
    def doubt(self, doubt: bool) -> None:
        self.core.in_doubt = doubt

    @rule(partition=partitions)
    def a_record_fails_its_check(self, partition: TopicPartition) -> None:
        """It was damaged on the way."""
        cursor = self.core.owned[partition]
        if cursor.opened and not cursor.revoking and cursor.position < END:
            cursor.damaged_at(cursor.position)

    @rule(partition=partitions, count=st.integers(1, 12))
    def a_handler_works(self, partition: TopicPartition, count: int) -> None:
        self.acknowledge()
        cursor = self.core.owned[partition]
        moves, chunk = cursor.moves, cursor.next_chunk()
        if chunk is None or chunk.damage is not None or not cursor.hold():
            return
        assert self.core.is_out([cursor])
        messages = self.core.next_messages(cursor, chunk, count)
        self.read(messages)
        if not chunk.bytes_left:
            cursor.used_up(chunk)
        cursor.consumed_to(chunk.reached, messages[-1].id, moves)
        cursor.let_go()
        self.consumed[partition] = self.next[partition]

    # --- the rebalance thread ---------------------------------------------------------------------------------------

    @rule(partition=partitions)
    def revoke(self, partition: TopicPartition) -> None:
        self.core.owned[partition].revoke()

    @rule(partition=partitions)
    def keep(self, partition: TopicPartition) -> None:
        self.core.owned[partition].keep()

    @rule(partition=partitions, asks=st.booleans())
    def lose_and_claim(self, partition: TopicPartition, asks: bool) -> None:
        lost = self.core.owned[partition]
        self.core.lose([lost])
        assert lost.next_chunk() is None
        assert lost.to_commit() is None
        begin = self.consumed[partition]
        self.claim(partition, 0 if begin is None else begin, asks=asks)

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def one_request_is_under_way(self) -> None:
        for cursor in self.core.owned.values():
            current = [each for each in self.sent if each.cursor is cursor and cursor.awaits(each)]
            assert len(current) <= 2
            assert cursor.asking or not current

    @invariant()
    def what_counts_as_consumed_is_what_the_user_is_done_with(self) -> None:
        for partition, cursor in self.core.owned.items():
            assert (cursor.consumed and cursor.consumed[0]) == self.consumed[partition]

    @invariant()
    def what_was_fetched_has_a_bound(self) -> None:
        for cursor in self.core.owned.values():
            assert 0 <= cursor.buffered_bytes <= 200 + 9 * len(RECORDS[-1])

    def teardown(self) -> None:
        """When nothing disturbs it any more, everything comes."""
        self.core.in_doubt = False
        for cursor in self.core.owned.values():
            cursor.keep()
        for _ in range(100):
            self.time_passes(60.0)
            self.serve()
            while self.sent:
                self.answer_to(self.sent.pop(0), 9)
            self.poll([9, 9], 12)
        assert all(self.next[partition] == END for partition in self.core.owned)


ConsumerMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
test_a_consumer_without_io_loses_nothing_and_never_stops: Any = ConsumerMachine.TestCase


def test_a_partition_that_is_damaged_to_its_end_asks_for_nothing_until_a_seek():
    core = ConsumerCore("g", ConsumerConfig())
    (cursor,) = core.claim(PARTITIONS[:1], [0], announced=True)
    for _ in range(4):
        cursor.damaged_at(0)
    request = cursor.next_request(0.0)
    assert request is not None
    assert request.ask is Ask.DAMAGE
    assert core.found(request, CorruptRecord("t", 0, "strange"), 0.0) is not None
    assert cursor.next_request(1.0) is None
    with pytest.raises(CorruptRecord):
        core.take(1)
    cursor.moved_to(100)
    assert core.found(request, None, 1.0) is None  # an answer that comes late
    assert cursor.next_request(1.0) is not None
