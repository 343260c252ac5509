"""Pairs with Spark, as a reader or as a writer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from metaq import Message
from metaq.protocol.record import COMPRESSED_FLAG
from tests.waiting import eventually

from .declared import works
from .messages import DELAY, commits, is_on_time, rolls_back
from .world import LONG, RETRIES, WANTED, World, stored_at_ms

__all__: list[str] = []

READ, WRITE, JAVA = "Spark read", "Spark write", "Java 1.x reader"


def values(rows: list[Any]) -> list[bytes]:
    return [bytes(row.value) for row in rows]


# --- reading ----------------------------------------------------------------------------------------------------------


@works("delay", READ, "A query reads messages whose time has come; their `timestamp` is the time of their delivery.")
def _delay_read(world: World, topic: str) -> Iterator[None]:
    due = world.producer.send(topic, b"later", delay=DELAY).due
    world.producer.send(topic, b"tomorrow", deliver_at=datetime.now(UTC) + timedelta(days=1))
    world.before_spark(topic, lambda: world.stored(topic))
    yield
    assert due is not None
    (row,) = world.rows(topic)
    assert bytes(row.value) == b"later"
    assert stored_at_ms(row.id) >= int(due.timestamp() * 1000)


@works(
    "retry",
    READ,
    "A query of the topic has each message once, however often a handler fails on it. Dead letters are rows of the "
    "topic `%DEAD%<group>`.",
)
def _retry_read(world: World, topic: str) -> Iterator[None]:
    world.producer.send(topic, b"never, for Spark")
    world.before_spark(topic, lambda: world.letters(topic))
    yield
    assert [each.attempts for each in world.retried(topic)] == [1, 2]
    assert values(world.rows(topic)) == [b"never, for Spark"]
    assert b"never, for Spark" in values(world.all_rows(f"%DEAD%{RETRIES}"))


@works("shared", READ, "A query is not a member of a shared group: it reads every message, and leases none.")
def _shared_read(world: World, topic: str) -> Iterator[None]:
    world.producer.send_batch(topic, [b"1", b"2"])
    world.lease(topic, 1)
    yield
    assert values(world.rows(topic, 2)) == [b"1", b"2"]
    assert [each.payload for each in world.lease(topic)] == [b"2"]


@works("check-back", READ, "A query has only committed messages.")
def _check_back_read(world: World, topic: str) -> Iterator[None]:
    world.producer.send_in_transaction(topic, b"committed", execute=commits)
    world.producer.send_in_transaction(topic, b"rolled back", execute=rolls_back)
    yield
    assert values(world.rows(topic)) == [b"committed"]


@works("transaction", READ, "A query has the messages of transactions that were committed when the query was planned.")
def _transaction_read(world: World, topic: str) -> Iterator[None]:
    with world.producer.transaction() as tx:
        tx.send_batch(topic, [b"1", b"2"])
    tx = world.steady.transaction()
    world.before_spark(topic, lambda: tx.send(topic, b"open while Spark reads"))
    yield
    tx.rollback()
    assert values(world.rows(topic, 2)) == [b"1", b"2"]


@works(
    "priority",
    READ,
    "With `includePriority=true` the column `priority` has the priority. Rows are in the order of their partition.",
)
def _priority_read(world: World, topic: str) -> Iterator[None]:
    for priority in (0, 9, 4):
        world.producer.send(topic, b"x", priority=priority)
    yield
    assert [row.priority for row in world.rows(topic, 3)] == [0, 9, 4]


@works("filter", READ, "With the option `where` the broker sends only the messages that pass the filter to Spark.")
def _filter_read(world: World, topic: str) -> Iterator[None]:
    for wanted in (True, False):
        world.producer.send(topic, b"%d" % wanted, properties={"wanted": wanted})
    yield
    assert values(world.rows(topic, 2)) == [b"1", b"0"]
    assert values(world.read_now([topic], where=WANTED).collect()) == [b"1"]


@works("batch", READ, "The messages of a batch are rows like other messages, in their order.")
def _batch_read(world: World, topic: str) -> Iterator[None]:
    results = world.producer.send_batch(topic, [b"%d" % number for number in range(20)], tag="t")
    yield
    rows = world.rows(topic, 20)
    assert [row.offset for row in rows] == [each.offset for each in results]
    assert [(bytes(row.value), row.tag) for row in rows] == [(b"%d" % number, "t") for number in range(20)]


@works("compression", READ, "The rows have the original, decompressed payloads.")
def _compression_read(world: World, topic: str) -> Iterator[None]:
    world.packing.send_batch(topic, [LONG, b"short"])
    yield
    assert [bool(each.flag & COMPRESSED_FLAG) for each in world.stored(topic, 2)] == [True, False]
    assert values(world.rows(topic, 2)) == [LONG, b"short"]


@works("idempotence", READ, "A repeated send is stored once, so it is one row.")
def _idempotence_read(world: World, topic: str) -> Iterator[None]:
    world.lose(b"a row once")
    world.producer.send(topic, b"a row once")
    yield
    assert world.has_lost(b"a row once")
    assert values(world.rows(topic)) == [b"a row once"]


# --- writing ----------------------------------------------------------------------------------------------------------


@works(
    "delay",
    WRITE,
    "The column `deliver_at` sets the time. With `exactlyOnce=true` the driver refuses this column, because a "
    "message in a transaction waits only for its commit.",
)
def _delay_write(world: World, topic: str) -> Iterator[None]:
    times: list[datetime] = []

    def rows() -> list[dict[str, Any]]:
        times.append(datetime.now(UTC) + timedelta(seconds=2))
        tomorrow = times[0] + timedelta(days=1)
        return [
            {"value": "later", "deliver_at": times[0]},
            {"value": "at once"},
            {"value": "tomorrow", "deliver_at": tomorrow},
        ]

    world.write(topic, rows)
    yield
    at_once, later = world.stored(topic, 2)
    assert (at_once.payload, later.payload) == (b"at once", b"later")
    assert is_on_time(later, int(times[0].timestamp() * 1000))
    with pytest.raises(Exception, match="exactlyOnce=true: does not go with the column deliver_at"):
        world.write_now([{"value": "x", "topic": topic, "deliver_at": times[0]}], exactlyOnce="true")


@works("retry", WRITE, "For a handler that fails, a row that Spark wrote is a message like any other.")
def _retry_write(world: World, topic: str) -> Iterator[None]:
    world.write(topic, lambda: [{"value": "row", "key": "k"}])
    yield
    attempts = world.retried(topic)
    assert [(each.payload, each.attempts, each.message.keys) for each in attempts] == [
        (b"row", 1, ("k",)),
        (b"row", 2, ("k",)),
    ]


@works("shared", WRITE, "Each row is leased to one member.")
def _shared_write(world: World, topic: str) -> Iterator[None]:
    world.write(topic, lambda: [{"value": str(number)} for number in range(3)])
    yield
    assert [each.payload for each in world.lease(topic, 3)] == [b"0", b"1", b"2"]


@works(
    "check-back",
    WRITE,
    "The local work of `execute` may be a Spark write: consumers see the message that announces the rows once the "
    "rows are written, and do not see it if the job fails. The rows themselves are not half messages.",
)
def _check_back_write(world: World, topic: str) -> Iterator[None]:
    yield
    failures: list[str] = []

    def work(message: Message) -> bool:
        value = "row" if message.payload == b"written" else None
        try:
            world.write_now([{"value": value, "topic": topic}])
        except Exception as error:
            failures.append(str(error))
            return False
        return True

    for payload in (b"written", b"not written"):
        world.producer.send_in_transaction(topic, payload, execute=work, check_after=60)
    assert [each.payload for each in world.stored(topic, 2)] == [b"row", b"written"]
    assert ["column value is null" in each for each in failures] == [True]


@works(
    "transaction",
    WRITE,
    "With `exactlyOnce=true` rows are written in transactions: consumers see all rows when the job commits, or none.",
)
def _transaction_write(world: World, topic: str) -> Iterator[None]:
    world.write(topic, lambda: [{"value": "1"}, {"value": "2"}], exactlyOnce="true")
    yield
    assert [each.payload for each in world.stored(topic, 2)] == [b"1", b"2"]
    some = [{"value": "3", "topic": topic}] * 5 + [{"value": None, "topic": topic}]
    with pytest.raises(Exception, match="column value is null"):
        world.write_now(some, exactlyOnce="true", **{"metaq.batch.messages": "1"})
    world.stored(topic, 2)


@works("priority", WRITE, "The column `priority` sets the priority.")
def _priority_write(world: World, topic: str) -> Iterator[None]:
    world.write(topic, lambda: [{"value": "ordinary"}, {"value": "urgent", "priority": 9}])
    yield
    world.stored(topic, 2)
    assert [(each.payload, each.priority) for each in world.lease(topic, 2)] == [(b"urgent", 9), (b"ordinary", 0)]


@works("filter", WRITE, "The filter is applied to the properties that the column `headers` has set.")
def _filter_write(world: World, topic: str) -> Iterator[None]:
    world.write(topic, lambda: [{"value": wanted, "headers": {"wanted": wanted}} for wanted in ("true", "false")])
    yield
    world.stored(topic, 2)
    (message,) = world.filtered(topic)
    assert message.payload == b"true"


@works(
    "batch",
    WRITE,
    "A task sends its rows in batches of `metaq.batch.messages`; `run_batches` gets them like other messages.",
)
def _batch_write(world: World, topic: str) -> Iterator[None]:
    world.watch(b"row of a batch")
    rows = [{"value": f"row of a batch {number}"} for number in range(5)]
    world.write(topic, lambda: rows, **{"metaq.batch.messages": "2"})
    yield
    assert [each.payload.decode() for each in world.batched(topic, 5)] == [row["value"] for row in rows]
    assert world.seen(b"row of a batch") == [2, 2, 1]


@works("compression", WRITE, "The option `compression=zstd` compresses the payloads.")
def _compression_write(world: World, topic: str) -> Iterator[None]:
    rows = [{"value": LONG.decode()}, {"value": LONG.decode(), "key": "k"}, {"value": "short"}]
    world.write(topic, lambda: rows, compression="zstd")
    yield
    found = {(each.payload, each.keys, bool(each.flag & COMPRESSED_FLAG)) for each in world.stored(topic, 3)}
    assert found == {(LONG, (), True), (LONG, ("k",), True), (b"short", (), False)}


@works(
    "idempotence",
    WRITE,
    "If a task repeats a send after a lost answer, its rows are stored once. A task that Spark runs again sends its "
    "rows again, unless `exactlyOnce=true`.",
)
def _idempotence_write(world: World, topic: str) -> Iterator[None]:
    world.lose(b"written once")
    world.write(topic, lambda: [{"value": "written once"}])
    yield
    assert world.has_lost(b"written once")
    (message,) = world.stored(topic)
    assert message.payload == b"written once"


# --- both, and Java ---------------------------------------------------------------------------------------------------


@works(
    READ,
    WRITE,
    "A query may read one topic and write another: key, tag, attribute, properties with their types, and priority "
    "are kept.",
)
def _read_write(world: World, topic: str) -> Iterator[None]:
    world.producer.send(
        topic, b"first", key="k", tag="t", attribute="a", properties={"n": 7, "ok": True, "raw": b"\xff"}, priority=5
    )
    yield
    columns = ["value", "key", "tag", "attribute", "headers", "priority"]
    frame = world.read_now([topic]).select(*columns)
    options = {"zookeeper": world.connect, "topic": f"{topic}-copy", "typedHeaders": "true"}
    frame.write.format("metaq").options(**options).mode("append").save()
    (original,) = world.stored(topic)
    (copy,) = world.stored(f"{topic}-copy")
    assert (copy.payload, copy.attributes, copy.priority) == (original.payload, original.attributes, 5)


@works(READ, JAVA, "Both get every message, with the same ids.")
def _read_java(world: World, topic: str) -> Iterator[None]:
    world.producer.send_batch(topic, [b"1", b"2"], tag="t")
    yield
    rows = [(bytes(row.value), row.attribute, row.id) for row in world.rows(topic, 2)]
    assert [(each["data"], each["attribute"], int(each["id"])) for each in world.java(topic, 2)] == rows


@works(WRITE, JAVA, "The reader gets each row; the row's tag or attribute is the attribute of the message.")
def _write_java(world: World, topic: str) -> Iterator[None]:
    world.write(topic, lambda: [{"value": "row", "tag": "t"}])
    yield
    eventually(lambda: world.stored(topic))
    (message,) = world.java(topic)
    assert (message["data"], message["attribute"]) == (b"row", "t")
