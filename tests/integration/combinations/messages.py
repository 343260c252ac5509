"""Pairs of what is said of a message: delay, check-back, transaction, priority, filter, batch, compression,
idempotence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from metaq import HalfOutcome, Message, Producer
from metaq.errors import CommitUnknown, MetaqError, TransactionLost
from metaq.protocol.record import COMPRESSED_FLAG

from .declared import refused, works
from .world import LONG, World, stored_at_ms

__all__ = ["DELAY", "commits", "is_on_time", "rolls_back", "said"]

DELAY = 1.0
"""Seconds."""
_WANTED = {"wanted": True}
_OTHER = {"wanted": False}


def commits(_message: Message) -> bool:
    return True


def rolls_back(_message: Message) -> bool:
    return False


def said(call: Callable[[], object]) -> str:
    """The text of the error that it raises."""
    with pytest.raises((MetaqError, TypeError)) as raised:
        call()
    return str(raised.value)


def is_on_time(message: Message, due_ms: int) -> bool:
    """Whether it was given to its partition when it was due, and had waited for that."""
    reserved = message.attributes.reserved
    waited = "metaq.due" in reserved or "metaq.delay" in reserved
    return waited and due_ms <= stored_at_ms(message.id) < due_ms + 60_000


def _due_ms(result: object) -> int:
    due = getattr(result, "due", None)
    assert due is not None, f"{result} does not wait"
    return int(due.timestamp() * 1000)


def _lie_together(messages: list[Message]) -> bool:
    return all(one.next_offset == following.offset for one, following in pairwise(messages))


def _rolled_back(producer: Producer, topic: str, **options: object) -> None:
    tx = producer.transaction()
    tx.send(topic, b"rolled back", **options)  # type: ignore[arg-type]
    tx.rollback()


# --- delay ------------------------------------------------------------------------------------------------------------


@refused(
    "delay",
    "check-back",
    "delay=… in send_in_transaction(), whose messages wait for the outcome alone: use send(), or leave delay out",
)
def _delay_check_back(world: World, topic: str) -> str:
    return said(lambda: world.producer.send_in_transaction(topic, b"half", delay=5, execute=commits))


@refused(
    "delay",
    "transaction",
    "delay=… in a transaction, whose messages wait for the outcome alone: use send(), or leave delay out",
)
def _delay_transaction(world: World, topic: str) -> str:
    with world.producer.transaction() as tx:
        assert "deliver_at" in said(lambda: tx.send_batch(topic, [b"a"], deliver_at=datetime.now(UTC)))
        return said(lambda: tx.send(topic, b"a", delay=5))


@works("delay", "priority", "When its time has come, an urgent message overtakes ordinary messages with the same time.")
def _delay_priority(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"ordinary", delay=DELAY)
    due = _due_ms(world.producer.send(topic, b"urgent", delay=DELAY, priority=9))
    yield
    world.stored(topic, 2)
    urgent, ordinary = world.lease(topic, 2)
    assert (urgent.payload, urgent.priority, ordinary.payload) == (b"urgent", 9, b"ordinary")
    assert is_on_time(urgent, due)


@works(
    "delay",
    "filter",
    "When the message is delivered, the broker applies the reader's filter to the message's properties.",
)
def _delay_filter(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"other", delay=DELAY, properties=_OTHER)
    due = _due_ms(world.producer.send(topic, b"wanted", delay=DELAY, properties=_WANTED))
    yield
    world.stored(topic, 2)
    (message,) = world.filtered(topic)
    assert message.payload == b"wanted"
    assert is_on_time(message, due)


@works("delay", "batch", "The messages of a batch are delivered at the same time, in their order.")
def _delay_batch(world: World, topic: str) -> Iterator[None]:
    payloads = [b"%d" % number for number in range(20)]
    results = world.producer.send_batch(topic, payloads, delay=DELAY)
    yield
    messages = world.batched(topic, 20)
    assert [each.payload for each in messages] == payloads
    assert all(is_on_time(*each) for each in zip(messages, map(_due_ms, results), strict=True))
    assert _lie_together(messages)


@works("delay", "compression", "The payload is compressed while it waits, and also when it is stored in its partition.")
def _delay_compression(world: World, topic: str) -> Iterator[None]:
    due = _due_ms(world.packing.send(topic, LONG, delay=DELAY))
    yield
    (message,) = world.stored(topic)
    assert message.flag & COMPRESSED_FLAG
    assert message.payload == LONG
    assert is_on_time(message, due)


@works("delay", "idempotence", "A repeated send keeps the time of the first send, and the message is delivered once.")
def _delay_idempotence(world: World, topic: str) -> Iterator[None]:
    world.lose(b"delayed once")
    due = _due_ms(world.producer.send(topic, b"delayed once", delay=DELAY))
    yield
    assert world.has_lost(b"delayed once")
    (message,) = world.stored(topic)
    assert is_on_time(message, due)


# --- check-back -------------------------------------------------------------------------------------------------------


@works(
    "check-back",
    "transaction",
    "The local work of `execute` may be a transaction of the same producer. The half message is not part of this "
    "transaction.",
)
def _check_back_transaction(world: World, topic: str) -> Iterator[None]:
    def work(message: Message) -> bool:
        try:
            with world.producer.transaction() as tx:
                tx.send(topic, b"booked for " + message.payload)
                if message.payload == b"2":
                    raise ValueError("no cover")
        except ValueError:
            return False
        return True

    outcomes = [world.producer.send_in_transaction(topic, each, execute=work).outcome for each in (b"1", b"2")]
    yield
    assert outcomes == [HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK]
    assert [each.payload for each in world.stored(topic, 2)] == [b"booked for 1", b"1"]


@works("check-back", "priority", "A committed message has the priority of its half message.")
def _check_back_priority(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"ordinary")
    world.producer.send_in_transaction(topic, b"urgent", priority=9, execute=commits)
    world.producer.send_in_transaction(topic, b"never", priority=9, execute=rolls_back)
    yield
    urgent, ordinary = world.lease(topic, 2)
    assert (urgent.payload, urgent.priority, ordinary.payload) == (b"urgent", 9, b"ordinary")


@works(
    "check-back",
    "filter",
    "Once the half message is committed, the broker applies the reader's filter to its properties.",
)
def _check_back_filter(world: World, topic: str) -> Iterator[None]:
    for properties in (_WANTED, _OTHER):
        world.producer.send_in_transaction(topic, b"committed", properties=properties, execute=commits)
        world.producer.send_in_transaction(topic, b"rolled back", properties=properties, execute=rolls_back)
    yield
    world.stored(topic, 2)
    (message,) = world.filtered(topic)
    assert (message.payload, message.properties) == (b"committed", _WANTED)


@works(
    "check-back",
    "batch",
    "`run_batches` gets committed messages like other messages. `send_in_transaction` sends one message, and refuses "
    "a list.",
)
def _check_back_batch(world: World, topic: str) -> Iterator[None]:
    for number in range(3):
        world.producer.send_in_transaction(topic, b"%d" % number, execute=commits)
        world.producer.send_in_transaction(topic, b"rolled back", execute=rolls_back)
    payloads: object = [b"a", b"b"]
    text = said(lambda: world.producer.send_in_transaction(topic, payloads, execute=commits))  # type: ignore[arg-type]
    yield
    assert "send_in_transaction() takes one message, not a batch of 2" in text
    assert [each.payload for each in world.batched(topic, 3)] == [b"0", b"1", b"2"]


@works(
    "check-back",
    "compression",
    "The half message already has its payload compressed. `execute` and `check` see it decompressed.",
)
def _check_back_compression(world: World, topic: str) -> Iterator[None]:
    seen: list[bytes] = []

    def sees(message: Message) -> bool | None:
        seen.append(message.payload)
        return None if len(seen) == 1 else True

    world.packing.send_in_transaction(topic, LONG, execute=sees, check=sees, check_after=0.1)
    yield
    (message,) = world.stored(topic)
    assert message.flag & COMPRESSED_FLAG
    assert [message.payload, *seen] == [LONG] * 3


@works(
    "check-back",
    "idempotence",
    "If the answer to the half message or to its outcome is lost, the message is still stored once.",
)
def _check_back_idempotence(world: World, topic: str) -> Iterator[None]:
    names: list[bytes] = []

    def work(message: Message) -> bool:
        names.append(b'"%d"' % message.id)
        world.lose(names[0])
        return True

    world.lose(b"half once")
    result = world.producer.send_in_transaction(topic, b"half once", execute=work)
    yield
    assert world.has_lost(b"half once")
    assert world.has_lost(names[0])
    assert result.outcome is HalfOutcome.COMMITTED
    assert result.sent is not None
    (message,) = world.stored(topic)
    assert (message.id, message.offset) == (result.sent.message_id, result.sent.offset)


# --- transaction ------------------------------------------------------------------------------------------------------


@works("transaction", "priority", "After the commit the messages have the priorities with which they were sent.")
def _transaction_priority(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send(topic, b"ordinary")
        tx.send(topic, b"urgent", priority=9)
    _rolled_back(world.producer, topic, priority=9)
    yield
    urgent, ordinary = world.lease(topic, 2)
    assert (urgent.payload, urgent.priority, ordinary.payload) == (b"urgent", 9, b"ordinary")


@works("transaction", "filter", "The filter is applied to committed messages.")
def _transaction_filter(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send(topic, b"wanted", properties=_WANTED)
        tx.send(topic, b"other", properties=_OTHER)
    _rolled_back(world.producer, topic, properties=_WANTED)
    yield
    world.stored(topic, 2)
    (message,) = world.filtered(topic)
    assert message.payload == b"wanted"


@works(
    "transaction",
    "batch",
    "`tx.send_batch` sends a batch; all messages of the transaction in one partition are contiguous.",
)
def _transaction_batch(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send_batch(topic, [b"0", b"1"])
        world.producer.send(topic, b"outside")
        tx.send_batch(topic, [b"2", b"3"])
    yield
    messages = world.batched(topic, 5)
    assert [each.payload for each in messages] == [b"outside", b"0", b"1", b"2", b"3"]
    assert _lie_together(messages)


@works("transaction", "compression", "Payloads are compressed as they are without a transaction.")
def _transaction_compression(world: World, topic: str) -> Iterator[None]:
    with world.packing.transaction() as tx:
        tx.send(topic, LONG)
        tx.send_batch(topic, [LONG])
    _rolled_back(world.packing, topic)
    yield
    messages = world.stored(topic, 2)
    assert all(each.flag & COMPRESSED_FLAG for each in messages)
    assert [each.payload for each in messages] == [LONG] * 2


@works(
    "transaction",
    "idempotence",
    "The producer does not repeat a transaction. If the answer to one of its messages is lost, it ends with "
    "`TransactionLost`: the broker has rolled it back, so you may repeat the whole transaction. If the answer to the "
    "commit is lost, it ends with `CommitUnknown`. Other sends of the same producer are numbered as always.",
)
def _transaction_idempotence(world: World, topic: str) -> Iterator[None]:
    def send_both() -> None:
        with world.producer.transaction() as tx:
            tx.send(topic, b"first of two")
            tx.send(topic, b"second of two")

    world.lose(b"second of two")
    with pytest.raises(TransactionLost, match="is lost"):
        send_both()
    send_both()
    tx = world.producer.transaction()
    tx.send(topic, b"committed")
    commit = b"COMMIT_ONE_PHASE"
    world.lose(commit)
    with pytest.raises(CommitUnknown):
        tx.commit()
    world.lose(b"outside, once")
    world.producer.send(topic, b"outside, once")
    yield
    assert all(world.has_lost(each) for each in (b"second of two", commit, b"outside, once"))
    messages = [b"first of two", b"second of two", b"committed", b"outside, once"]
    assert [each.payload for each in world.stored(topic, 4)] == messages


# --- priority ---------------------------------------------------------------------------------------------------------


@works(
    "priority",
    "filter",
    "A message that passes the filter keeps its priority. A filter cannot use the priority, because it is not a "
    "property.",
)
def _priority_filter(world: World, topic: str) -> Iterator[None]:
    for priority, properties in ((7, _WANTED), (8, _OTHER)):
        world.producer.send(topic, b"urgent", priority=priority, properties=properties)
    yield
    world.stored(topic, 2)
    (message,) = world.filtered(topic)
    assert message.priority == 7


@works(
    "priority",
    "batch",
    "All messages of a batch have the priority of the batch; `run_batches` keeps the order of the partition.",
)
def _priority_batch(world: World, topic: str) -> Iterator[None]:
    world.producer.send_batch(topic, [b"ordinary"] * 2)
    world.producer.send_batch(topic, [b"urgent"] * 2, priority=9)
    yield
    assert [each.payload for each in world.lease(topic, 4)] == [b"urgent"] * 2 + [b"ordinary"] * 2
    assert [each.priority for each in world.batched(topic, 4)] == [0, 0, 9, 9]


@works("priority", "compression", "A compressed message keeps its priority.")
def _priority_compression(world: World, topic: str) -> Iterator[None]:
    world.packing.send(topic, LONG)
    world.packing.send(topic, LONG, priority=9)
    yield
    messages = world.stored(topic, 2)
    assert all(each.flag & COMPRESSED_FLAG for each in messages)
    leased = world.lease(topic, 2)
    assert [(each.priority, each.payload) for each in leased] == [(9, LONG), (0, LONG)]


@works("priority", "idempotence", "A repeated send is stored once, with its priority.")
def _priority_idempotence(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"ordinary")
    world.lose(b"urgent once")
    world.producer.send(topic, b"urgent once", priority=9)
    yield
    assert world.has_lost(b"urgent once")
    world.stored(topic, 2)
    assert [each.payload for each in world.lease(topic, 2)] == [b"urgent once", b"ordinary"]


# --- filter -----------------------------------------------------------------------------------------------------------


@works(
    "filter",
    "batch",
    "`run_batches` of a consumer with `where` gets only the messages of a batch that pass the filter.",
)
def _filter_batch(world: World, topic: str) -> Iterator[None]:
    world.producer.send_batch(topic, [b"other"] * 2, properties=_OTHER)
    world.producer.send_batch(topic, [b"0", b"1"], properties=_WANTED)
    yield
    world.stored(topic, 4)
    assert [each.payload for each in world.filtered(topic, 2)] == [b"0", b"1"]


@works("filter", "compression", "Properties are never compressed, so brokers filter as they do without compression.")
def _filter_compression(world: World, topic: str) -> Iterator[None]:
    world.packing.send(topic, LONG, properties=_OTHER)
    world.packing.send(topic, LONG, properties=_WANTED)
    yield
    assert all(each.flag & COMPRESSED_FLAG for each in world.stored(topic, 2))
    (message,) = world.filtered(topic)
    assert (message.payload, message.properties) == (LONG, _WANTED)


@works("filter", "idempotence", "A repeated send is stored once, so a reader with a filter gets the message once.")
def _filter_idempotence(world: World, topic: str) -> Iterator[None]:
    world.lose(b"wanted once")
    world.producer.send(topic, b"wanted once", properties=_WANTED)
    world.producer.send(topic, b"other", properties=_OTHER)
    yield
    assert world.has_lost(b"wanted once")
    world.stored(topic, 2)
    (message,) = world.filtered(topic)
    assert message.payload == b"wanted once"


# --- batch, compression -----------------------------------------------------------------------------------------------


@works("batch", "compression", "Each payload of a batch is compressed separately; short payloads are not compressed.")
def _batch_compression(world: World, topic: str) -> Iterator[None]:
    world.packing.send_batch(topic, [LONG, b"short", LONG])
    yield
    messages = world.batched(topic, 3)
    assert [bool(each.flag & COMPRESSED_FLAG) for each in messages] == [True, False, True]
    assert [each.payload for each in messages] == [LONG, b"short", LONG]
    assert _lie_together(messages)


@works("batch", "idempotence", "A batch is repeated as a whole, and each of its messages is stored once.")
def _batch_idempotence(world: World, topic: str) -> Iterator[None]:
    payloads = [b"batched once %d" % number for number in range(50)]
    world.lose(payloads[0])
    results = world.producer.send_batch(topic, payloads)
    yield
    assert world.has_lost(payloads[0])
    messages = world.batched(topic, 50)
    assert [each.payload for each in messages] == payloads
    assert [each.id for each in messages] == [each.message_id for each in results]


@works("compression", "idempotence", "A repeated compressed message is stored once.")
def _compression_idempotence(world: World, topic: str) -> Iterator[None]:
    world.lose(b"compressed-once")
    world.packing.send(topic, LONG, key="compressed-once")
    yield
    assert world.has_lost(b"compressed-once")
    (message,) = world.stored(topic)
    assert message.flag & COMPRESSED_FLAG
    assert message.payload == LONG
