"""Pairs with a reader of the Java client of metaq 1.x."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from metaq import Consumer, ConsumerConfig
from metaq.protocol.record import COMPRESSED_FLAG
from tests.waiting import eventually

from .declared import refused, works
from .messages import DELAY, commits, rolls_back
from .world import LONG, World, stored_at_ms

__all__: list[str] = []

JAVA = "Java 1.x reader"


@works("delay", JAVA, "The reader gets an ordinary message when the time has come, and nothing before.")
def _delay(world: World, topic: str) -> Iterator[None]:
    due = world.producer.send(topic, b"later", delay=DELAY).due
    world.producer.send(topic, b"tomorrow", deliver_at=datetime.now(UTC) + timedelta(days=1))
    yield
    assert due is not None
    (message,) = world.java(topic)
    assert message["data"] == b"later"
    assert stored_at_ms(int(message["id"])) >= int(due.timestamp() * 1000)


@works(
    "retry",
    JAVA,
    "A reader in a group of its own gets a message once, however often a handler of another group fails on it.",
)
def _retry(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"flaky")
    yield
    assert [each.attempts for each in world.retried(topic)] == [1, 2]
    (message,) = world.java(topic)
    assert message["data"] == b"flaky"


@works(
    "shared", JAVA, "A shared group takes no messages away from a group of 1.x, even if both groups have the same name."
)
def _shared(world: World, topic: str) -> Iterator[None]:
    world.producer.send_batch(topic, [b"1", b"2"])
    yield
    assert [each.payload for each in world.lease(topic, 2, group="java")] == [b"1", b"2"]
    assert [each["data"] for each in world.java(topic, 2)] == [b"1", b"2"]


@works("check-back", JAVA, "The reader gets only committed messages.")
def _check_back(world: World, topic: str) -> Iterator[None]:
    world.producer.send_in_transaction(topic, b"committed", execute=commits)
    world.producer.send_in_transaction(topic, b"rolled back", execute=rolls_back)
    yield
    (message,) = world.java(topic)
    assert message["data"] == b"committed"


@works("transaction", JAVA, "The reader gets only committed messages.")
def _transaction(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send_batch(topic, [b"1", b"2"])
    tx = world.producer.transaction()
    tx.send(topic, b"rolled back")
    tx.rollback()
    yield
    assert [each["data"] for each in world.java(topic, 2)] == [b"1", b"2"]


@works("priority", JAVA, "The reader ignores priorities, and gets the messages in the order of their partition.")
def _priority(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"ordinary")
    world.producer.send(topic, b"urgent", priority=9, tag="t")
    yield
    assert [each.priority for each in world.stored(topic, 2)] == [0, 9]
    messages = world.java(topic, 2)
    assert [(each["data"], each["attribute"]) for each in messages] == [(b"ordinary", None), (b"urgent", "t")]


@works(
    "filter",
    JAVA,
    "Each reader has its own filter: a Python reader uses `where`, a Java reader filters by the attribute.",
)
def _filter(world: World, topic: str) -> Iterator[None]:
    world.side.app.subscribe("choosing", topic, filter="buy", max_delay=100)
    for tag in ("buy", "sell", "buy"):
        world.producer.send(topic, tag.encode(), tag=tag)
    yield
    assert [each["data"] for each in world.java(topic, 3)] == [b"buy", b"sell", b"buy"]
    config = ConsumerConfig(auto_commit_seconds=0)
    with Consumer(world.connect, group="by-tag", topics=[topic], where="TAGS = 'sell'", config=config) as consumer:
        (message,) = eventually(lambda: consumer.poll(timeout=0.5), what="the message that passes")
    assert message.payload == b"sell"
    assert world.side.app.payloads("choosing", 2) == [b"buy", b"buy"]
    world.side.app.unsubscribe("choosing")


@works("batch", JAVA, "The reader gets the messages of a batch like single messages, in their order.")
def _batch(world: World, topic: str) -> Iterator[None]:
    payloads = [b"%d" % number for number in range(20)]
    world.producer.send_batch(topic, payloads, tag="t")
    yield
    messages = world.java(topic, 20)
    assert [each["data"] for each in messages] == payloads
    assert {each["attribute"] for each in messages} == {"t"}


@refused(
    "compression",
    JAVA,
    "topic … has compressed messages (acceptCompressed=true), which a client of metaq 1.x cannot read: group … needs a "
    "newer client, or producers a topic without acceptCompressed",
)
def _compression(world: World, topic: str) -> str:
    world.packing.send(topic, LONG)
    assert world.stored(topic)[0].flag & COMPRESSED_FLAG
    world.side.app.subscribe("too-old", topic, max_delay=100)
    log = world.side.directory / "client.log"

    def refusal() -> str:
        lines = log.read_text("utf-8", "replace").splitlines()
        return next((line for line in lines if f"topic {topic} has compressed" in line and "without" in line), "")

    text = eventually(refusal, what="the refusal in the Java client's log")
    assert world.side.app.unsubscribe("too-old") == []
    return text


@works("idempotence", JAVA, "A repeated send is stored once, so the reader gets it once.")
def _idempotence(world: World, topic: str) -> Iterator[None]:
    world.lose(b"java once")
    world.producer.send(topic, b"java once")
    world.producer.send(topic, b"behind")
    yield
    assert world.has_lost(b"java once")
    assert [each["data"] for each in world.java(topic, 2)] == [b"java once", b"behind"]
