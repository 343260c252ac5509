"""Pairs with retry or shared."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from metaq import Consumer, Message, Retry, SharedConsumer, SharedMessage
from metaq.protocol.record import COMPRESSED_FLAG
from tests.waiting import eventually

from .declared import works
from .messages import DELAY, commits, is_on_time, rolls_back
from .world import LONG, World

__all__: list[str] = []

# --- retry ------------------------------------------------------------------------------------------------------------


@works(
    "delay",
    "retry",
    "The first attempt is not made before the message's time. Later attempts follow after the pauses of `Retry`.",
)
def _delay_retry(world: World, topic: str) -> Iterator[None]:
    due = world.producer.send(topic, b"later", delay=DELAY).due
    yield
    assert due is not None
    due_ms = int(due.timestamp() * 1000)
    first, second = world.retried(topic)
    assert is_on_time(first.message, due_ms)
    assert first.at_ms >= due_ms
    assert (first.attempts, second.attempts) == (1, 2)


@works(
    "retry",
    "shared",
    "`SharedConsumer.run(handler, retry=Retry(…))`: a failed message is leased again after its pause, and becomes a "
    "dead letter after the last attempt.",
)
def _retry_shared(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"flaky")
    world.producer.send(topic, b"never")
    yield
    attempts: list[tuple[bytes, int]] = []

    def handle(message: SharedMessage) -> None:
        attempts.append((message.payload, message.attempts))
        if message.attempts == 1 or message.payload == b"never":
            raise ValueError("as the case wants it")

    retry = Retry(attempts=2, first=0.05, factor=1.0, most=0.05, jitter=0)
    with SharedConsumer(world.connect, group="shared-retries", topics=[topic]) as consumer:
        thread = threading.Thread(target=lambda: consumer.run(handle, retry=retry), daemon=True)
        thread.start()
        eventually(lambda: len(attempts) >= 4)
        (letter,) = world.letters(topic, "shared-retries")
        consumer.stop()
        thread.join(10)
    assert sorted(attempts) == [(b"flaky", 1), (b"flaky", 2), (b"never", 1), (b"never", 2)]
    assert (letter.original.payload, letter.attempts) == (b"never", 2)


@works("retry", "check-back", "A committed message is tried again like any other.")
def _retry_check_back(world: World, topic: str) -> Iterator[None]:
    world.producer.send_in_transaction(topic, b"committed", execute=commits)
    world.producer.send_in_transaction(topic, b"rolled back", execute=rolls_back)
    yield
    assert [(each.payload, each.attempts) for each in world.retried(topic)] == [(b"committed", 1), (b"committed", 2)]


@works("retry", "transaction", "A committed message is tried again like any other.")
def _retry_transaction(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send(topic, b"committed")
    tx = world.producer.transaction()
    tx.send(topic, b"rolled back")
    tx.rollback()
    yield
    assert [(each.payload, each.attempts) for each in world.retried(topic)] == [(b"committed", 1), (b"committed", 2)]


@works("retry", "priority", "A message keeps its priority while it waits for another attempt, and as a dead letter.")
def _retry_priority(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"never", priority=7)
    yield
    assert [(each.attempts, each.message.priority) for each in world.retried(topic)] == [(1, 7), (2, 7)]
    (letter,) = world.letters(topic)
    assert letter.original.priority == 7


@works("retry", "filter", "The filter is applied before the first attempt, and not again.")
def _retry_filter(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"other", properties={"wanted": False})
    world.producer.send(topic, b"wanted", properties={"wanted": True})
    yield
    world.stored(topic, 2)
    attempts = world.retried(topic)
    assert [(each.payload, each.attempts) for each in attempts] == [(b"wanted", 1), (b"wanted", 2)]
    assert attempts[1].message.properties == {"wanted": True}


@works(
    "retry",
    "batch",
    "When a batch fails, `run_batches(retry=…)` gives its messages to the handler one by one; only messages that "
    "fail on their own are tried again.",
)
def _retry_batch(world: World, topic: str) -> Iterator[None]:
    world.producer.send_batch(topic, [b"a", b"bad", b"c"])
    yield
    calls: list[list[tuple[bytes, int]]] = []

    def handle(batch: list[Message]) -> None:
        calls.append([(each.payload, each.attempts) for each in batch])
        if any(each.payload == b"bad" and each.attempts == 1 for each in batch):
            raise ValueError("as the case wants it")

    retry = Retry(attempts=2, first=0.05, factor=1.0, most=0.05, jitter=0)
    with Consumer(world.connect, group="retried-batches", topics=[topic]) as consumer:
        thread = threading.Thread(target=lambda: consumer.run_batches(handle, retry=retry), daemon=True)
        thread.start()
        eventually(lambda: len(calls) >= 5, what="the second attempt")
        consumer.stop()
        thread.join(10)
    assert calls == [[(b"a", 1), (b"bad", 1), (b"c", 1)], [(b"a", 1)], [(b"bad", 1)], [(b"c", 1)], [(b"bad", 2)]]


@works(
    "retry",
    "compression",
    "While a failed message waits, and as a dead letter, its payload is not compressed, unless the message would "
    "then be larger than 8 MiB. A handler sees no difference.",
)
def _retry_compression(world: World, topic: str) -> Iterator[None]:
    world.packing.send(topic, LONG)
    yield
    (message,) = world.stored(topic)
    assert message.flag & COMPRESSED_FLAG
    assert [(each.payload == LONG, each.attempts) for each in world.retried(topic)] == [(True, 1), (True, 2)]


@works(
    "retry",
    "idempotence",
    "Failed messages that go back to the broker are numbered, too: a lost answer does not cause a second copy of the "
    "same attempt.",
)
def _retry_idempotence(world: World, topic: str) -> Iterator[None]:
    origin = b"metaq.origin\x01%s/" % topic.encode()
    world.lose(b"retried once")
    world.lose(origin)
    world.producer.send(topic, b"retried once")
    yield
    assert world.has_lost(b"retried once")
    assert [each.attempts for each in world.retried(topic)] == [1, 2]
    assert world.has_lost(origin)


# --- shared -----------------------------------------------------------------------------------------------------------


@works("delay", "shared", "When the time of a message has come, it is leased to one member.")
def _delay_shared(world: World, topic: str) -> Iterator[None]:
    due = world.producer.send(topic, b"later", delay=DELAY).due
    yield
    assert due is not None
    (message,) = world.lease(topic)
    assert is_on_time(message, int(due.timestamp() * 1000))


@works("shared", "check-back", "A message can be leased once it is committed.")
def _shared_check_back(world: World, topic: str) -> Iterator[None]:
    world.producer.send_in_transaction(topic, b"committed", execute=commits)
    world.producer.send_in_transaction(topic, b"rolled back", execute=rolls_back)
    yield
    world.stored(topic)
    (message,) = world.lease(topic)
    assert message.payload == b"committed"


@works("shared", "transaction", "Messages can be leased once their transaction is committed.")
def _shared_transaction(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send_batch(topic, [b"1", b"2"])
    yield
    tx = world.steady.transaction()
    tx.send(topic, b"3")
    assert [each.payload for each in world.lease(topic, 2)] == [b"1", b"2"]
    tx.commit()
    assert [each.payload for each in world.lease(topic)] == [b"3"]


@works("shared", "priority", "The most urgent message is leased first.")
def _shared_priority(world: World, topic: str) -> Iterator[None]:
    for priority in (0, 3, 9, 5):
        world.producer.send(topic, b"%d" % priority, priority=priority)
    yield
    assert [each.payload for each in world.lease(topic, 4)] == [b"9", b"5", b"3", b"0"]


@works(
    "shared",
    "filter",
    "`SharedConsumer(where=…)`: messages that do not pass the filter count as processed without being leased.",
)
def _shared_filter(world: World, topic: str) -> Iterator[None]:
    for wanted in (False, True, False, True):
        world.producer.send(topic, b"%d" % wanted, properties={"wanted": wanted})
    yield
    with SharedConsumer(world.connect, group="choosing", topics=[topic], where="wanted") as consumer:
        found: list[SharedMessage] = []

        def have_both() -> bool:
            found.extend(consumer.poll(0.5, max_messages=4))
            return len(found) >= 2

        eventually(have_both)
        consumer.ack(*found)
        consumer.flush()
        assert consumer.poll(0.3, max_messages=4) == []
    assert [each.payload for each in found] == [b"1", b"1"]


@works(
    "shared",
    "batch",
    "The messages of a batch are leased one by one. `poll(max_messages=…)` takes many messages at once, and `ack` "
    "acknowledges them together. A `SharedConsumer` has no `run_batches`.",
)
def _shared_batch(world: World, topic: str) -> Iterator[None]:
    payloads = [b"%d" % number for number in range(20)]
    world.producer.send_batch(topic, payloads)
    yield
    with SharedConsumer(world.connect, group="shared", topics=[topic]) as consumer:
        found: list[SharedMessage] = []
        most = 0
        end = time.monotonic() + 60
        while len(found) < 20 and time.monotonic() < end:
            taken = consumer.poll(1.0, max_messages=20)
            most = max(most, len(taken))
            found += taken
        consumer.ack(*found)
        consumer.flush()
        assert consumer.counts == (20, 0)
    assert [each.payload for each in found] == payloads
    assert most > 1


@works("shared", "compression", "A leased message has its payload compressed; `message.payload` decompresses it.")
def _shared_compression(world: World, topic: str) -> Iterator[None]:
    world.packing.send(topic, LONG)
    yield
    (message,) = world.lease(topic)
    assert message.flag & COMPRESSED_FLAG
    assert message.payload == LONG


@works("shared", "idempotence", "A repeated send is stored once, so its message is leased once.")
def _shared_idempotence(world: World, topic: str) -> Iterator[None]:
    world.lose(b"leased once")
    world.producer.send(topic, b"leased once")
    world.producer.send(topic, b"behind")
    yield
    assert world.has_lost(b"leased once")
    assert [each.payload for each in world.lease(topic, 2)] == [b"leased once", b"behind"]
