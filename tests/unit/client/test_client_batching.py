"""The outbox: one request under way per partition, and what gathers meanwhile goes as the next."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.config import ProducerConfig
from metaq.client.producer.batching import Accumulator, Outbox
from metaq.client.producer.futures import SendFuture
from metaq.client.producer.outgoing import Outgoing
from metaq.client.values import TopicPartition
from metaq.protocol.errors import ClientError, RequestTimedOut

HERE, THERE = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)


def message(body=b"x", deadline=100.0, key=None, future=False):
    outgoing = Outgoing("t", 0, 0, body, deadline)
    outgoing.key = key
    outgoing.future = SendFuture() if future else None
    return outgoing


class Sent:
    """An outbox whose requests are only noted; the test answers them."""

    def __init__(self, **config):
        self.batches: list[tuple[Accumulator, list[Outgoing]]] = []
        self.lingering: list[Accumulator] = []
        self.now = 0.0
        self.outbox = Outbox(
            ProducerConfig(**config),
            lambda accumulator, batch: self.batches.append((accumulator, batch)),
            self.lingering.append,
            lambda: self.now,
        )

    def add(self, outgoing, partition=HERE):
        accumulator, batch = self.outbox.add(outgoing, partition)
        if batch:
            self.batches.append((accumulator, batch))
        return accumulator


def test_an_idle_partition_sends_at_once():
    sent, first = Sent(), message()
    accumulator = sent.add(first)
    assert sent.batches == [(accumulator, [first])]


def test_what_arrives_while_a_request_is_under_way_goes_together_as_the_next():
    sent = Sent()
    first, second, third = message(), message(), message()
    accumulator = sent.add(first)
    sent.add(second)
    sent.add(third)
    assert len(sent.batches) == 1
    sent.outbox.finished(accumulator, [first])
    assert sent.batches[1:] == [(accumulator, [second, third])]
    sent.outbox.finished(accumulator, [second, third])
    assert len(sent.batches) == 2
    assert sent.outbox.buffered_bytes == 0


def test_partitions_do_not_wait_for_each_other():
    sent = Sent()
    sent.add(message())
    sent.add(message(), THERE)
    assert [accumulator.partition for accumulator, _ in sent.batches] == [HERE, THERE]


def test_a_batch_ends_at_its_bytes_and_at_its_records():
    sent = Sent(max_batch_bytes=100, max_batch_records=3)
    waiting = [message(b"x" * 30) for _ in range(2)] + [message(b"") for _ in range(4)]
    accumulator = sent.add(first := message())
    for outgoing in waiting:
        sent.add(outgoing)
    sent.outbox.finished(accumulator, [first])
    assert sent.batches[-1][1] == waiting[:2]  # 50 + 50 bytes
    sent.outbox.finished(accumulator, waiting[:2])
    assert sent.batches[-1][1] == waiting[2:5]
    sent.outbox.finished(accumulator, waiting[2:5])
    assert sent.batches[-1][1] == waiting[5:]


def test_a_message_larger_than_a_batch_goes_alone():
    accumulator = Accumulator(HERE)
    large, small = message(b"x" * 500), message()
    accumulator.put(large)
    accumulator.put(small)
    assert accumulator.take(100, 10) == [large]
    assert accumulator.take(100, 10) == [small]
    assert accumulator.queued_bytes == 0


def test_over_the_text_protocol_messages_with_a_key_go_one_by_one():
    accumulator = Accumulator(HERE)
    text_only: Any = SimpleNamespace(speaks_frames=False)
    accumulator.connection = text_only
    plain, keyed, also_keyed = [message(), message()], message(key="k"), message(key="k")
    for outgoing in (*plain, keyed, also_keyed):
        accumulator.put(outgoing)
    taken = [accumulator.take(1000, 10) for _ in range(3)]
    assert taken == [plain, [keyed], [also_keyed]]


def test_a_failed_batch_goes_back_in_front_and_nothing_is_sent_until_the_pause_ends():
    sent = Sent()
    first, second, third = message(), message(), message()
    accumulator = sent.add(first)
    sent.add(second)
    sent.outbox.failed(accumulator, [first], [])
    sent.add(third)
    assert len(sent.batches) == 1
    assert sent.outbox.drain(accumulator) == [first, second, third]
    fourth = message()
    sent.add(fourth)  # arrives while the three are routed anew
    sent.outbox.resume(accumulator, [(first, HERE), (second, HERE), (third, HERE)])
    assert sent.batches[1:] == [(accumulator, [first, second, third, fourth])]


def test_a_failed_batch_may_move_to_another_partition():
    sent = Sent()
    first, keyed = message(), message(key="k")
    accumulator = sent.add(first)
    sent.add(keyed)
    sent.outbox.failed(accumulator, [first], [])
    drained = sent.outbox.drain(accumulator)
    sent.outbox.resume(accumulator, [(drained[0], THERE), (drained[1], HERE)])
    assert {(each.partition, tuple(batch)) for each, batch in sent.batches[1:]} == {(HERE, (keyed,)), (THERE, (first,))}


def test_given_up_messages_free_their_room():
    sent = Sent()
    accumulator = sent.add(first := message(b"x" * 80))
    assert sent.outbox.buffered_bytes == 100
    sent.outbox.failed(accumulator, [], [first])
    assert sent.outbox.buffered_bytes == 0


def test_a_full_buffer_refuses_at_the_deadline_and_says_why():
    sent = Sent(max_buffered_bytes=150)
    sent.add(message(b"x" * 80))
    sent.now = 100.0
    with pytest.raises(RequestTimedOut, match="max_buffered_bytes=150"):
        sent.add(message(b"x" * 80, deadline=100.0))
    assert sent.outbox.buffered_bytes == 100


def test_one_message_larger_than_the_buffer_is_taken_when_it_is_empty():
    sent = Sent(max_buffered_bytes=50)
    sent.add(message(b"x" * 80))
    assert len(sent.batches) == 1


def test_an_asynchronous_message_lingers_and_takes_company_along():
    sent = Sent(linger_ms=5)
    first, second = message(future=True), message(future=True)
    accumulator = sent.add(first)
    sent.add(second)
    assert (sent.batches, sent.lingering) == ([], [accumulator])
    sent.outbox.flush_lingering(accumulator)
    assert sent.batches == [(accumulator, [first, second])]


def test_a_blocking_message_does_not_linger_and_takes_lingering_ones_along():
    sent = Sent(linger_ms=5)
    lingering, blocking = message(future=True), message()
    sent.add(lingering)
    accumulator = sent.add(blocking)
    assert sent.batches == [(accumulator, [lingering, blocking])]


def test_a_full_batch_does_not_linger():
    sent = Sent(linger_ms=5, max_batch_records=2)
    first, second = message(future=True), message(future=True)
    sent.add(first)
    accumulator = sent.add(second)
    assert sent.batches == [(accumulator, [first, second])]


def test_flush_sends_what_lingers_and_gives_up_at_its_deadline():
    sent = Sent(linger_ms=5)
    accumulator = sent.add(first := message(future=True))
    assert not sent.outbox.flush(deadline=0.0)
    assert sent.batches == [(accumulator, [first])]
    sent.outbox.finished(accumulator, [first])
    assert sent.outbox.flush(deadline=0.0)


def test_after_close_nothing_is_accepted_and_the_queue_is_handed_back():
    sent = Sent()
    sent.add(message())
    sent.add(waiting := message())
    assert sent.outbox.close() == [waiting]
    with pytest.raises(ClientError, match="closed"):
        sent.add(message())
