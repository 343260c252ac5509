"""Where a consumer begins and keeps its offsets: a table of a database, the file of broadcast consumers, options."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from metaq import Consumer, ConsumerConfig, SqlOffsetStore, TopicPartition
from metaq.coordination.offsets.offset_store import Offset
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import SessionLost
from tests.integration.client_cluster import SESSION_SECONDS, read, read_until_quiet
from tests.integration.java_peers import require_java
from tests.integration.java_sides import Application
from tests.waiting import eventually

CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)
HERE = TopicPartition("t", 0, 0)


def member(brokers, **options):
    """options: of the consumer, `start` and `accept`, and of its ConsumerConfig."""
    own = {name: options.pop(name) for name in ("start", "accept") if name in options}
    return Consumer(brokers.connect, group="g", topics=["t"], config=replace(CONFIG, **options), **own)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "offsets.db"


def sql_store(database):
    store = SqlOffsetStore(lambda: sqlite3.connect(database), paramstyle=sqlite3.paramstyle)
    store.create_table()
    return store


def test_a_group_keeps_its_offsets_in_a_database_and_none_in_zookeeper(brokers, producer, database):
    producer.send_batch("t", [b"1", b"2"], partition=HERE)
    with member(brokers, offset_store=sql_store(database)) as consumer:
        messages = read(consumer, 2)
    assert sql_store(database).load("g", "t", "0-0") == Offset(messages[-1].id, messages[-1].next_offset)
    producer.send("t", b"3", partition=HERE)
    with member(brokers, offset_store=sql_store(database)) as consumer:
        assert [message.payload for message in read_until_quiet(consumer, 1)] == [b"3"]
    with ZkSession(brokers.connect) as session:
        assert session.nodes.children("/meta/consumers/g/offsets") == []


@pytest.mark.parametrize("kept", ["zookeeper", "database", "file"])
def test_what_came_after_a_group_had_begun_at_latest_is_read_by_its_next_member(brokers, producer, database, kept):
    """Nothing had been consumed, so that no offset was committed but the beginning."""
    options = {
        "zookeeper": {},
        "database": {"offset_store": sql_store(database)},
        "file": {"broadcast": True, "offsets_file": str(database.with_name("offsets"))},
    }[kept]
    producer.send("t", b"before", partition=HERE)
    with member(brokers, start="latest", **options) as consumer:
        eventually(lambda: consumer.poll(timeout=0.1) == [] and HERE in consumer.assignment(), 20, "an assignment")
    producer.send_batch("t", [b"1", b"2"], partition=HERE)
    with member(brokers, start="latest", **options) as consumer:
        assert [message.payload for message in read(consumer, 2)] == [b"1", b"2"]


def test_a_member_that_lost_its_partitions_writes_nothing_into_the_database(brokers, producer, database):
    producer.send_batch("t", [b"1", b"2"], partition=HERE)
    consumer = member(brokers, offset_store=sql_store(database), auto_commit_seconds=0)
    read(consumer, 2)
    state = consumer._core.owned[HERE]
    consumer._core.acknowledge()
    consumer._member._membership.release("t", "0-0")  # as if another had it
    with pytest.raises(SessionLost):
        consumer._committer.commit([state])
    assert sql_store(database).load("g", "t", "0-0") == Offset(-1, 0)  # where the group has begun
    consumer.close()


def test_a_database_that_is_away_is_waited_for(brokers, producer, tmp_path, caplog):
    database = tmp_path / "later" / "offsets.db"
    store = SqlOffsetStore(lambda: sqlite3.connect(database), paramstyle=sqlite3.paramstyle)
    producer.send("t", b"1", partition=HERE)
    with member(brokers, offset_store=store) as consumer:
        eventually(lambda: "unable to open database file" in caplog.text, 20, "saying why nothing is read")
        assert consumer.poll(timeout=0.1) == []
        database.parent.mkdir()
        store.create_table()
        assert [message.payload for message in read(consumer, 1)] == [b"1"]


def test_an_option_of_its_own_chooses_where_a_new_group_begins(brokers, producer):
    second = producer.send_batch("t", [b"1", b"2"], partition=HERE)[1]
    with member(brokers, start=second.offset) as consumer:
        assert [message.payload for message in read(consumer, 1)] == [b"2"]
    with member(brokers, start="always_latest") as consumer:
        eventually(lambda: consumer.poll(timeout=0.1) or len(consumer.assignment()) == 2, 20)
        eventually(lambda: all(state.opened for state in consumer._core.owned.values()), 20)
        producer.send("t", b"new", partition=HERE)
        assert [message.payload for message in read(consumer, 1)] == [b"new"]


def test_consumers_with_consistent_hashing_share_all_partitions(brokers):
    with member(brokers, strategy="consist", consumer_id="a") as first:
        eventually(lambda: first.poll(timeout=0.1) or len(first.assignment()) == 2, 20)
        with member(brokers, strategy="consist", consumer_id="b") as second:

            def owned():
                first.poll(timeout=0.05)
                return first.assignment() + second.assignment()

            eventually(lambda: second._member.state.name == "STABLE" and len(owned()) == 2, 20)
            assert len(set(owned())) == 2


def stored_offset(path):
    """The largest in a file of broadcast consumers."""
    return max(entry["offset"] for entries in json.loads(path.read_text()).values() for entry in entries)


def test_a_java_broadcast_consumer_goes_on_where_ours_stopped_and_ours_where_it_did(brokers, producer, tmp_path):
    """They share the group of the host and the file, one after the other."""
    require_java()
    home = tmp_path / "home"
    home.mkdir()
    path = home / ".meta_offsets"
    producer.send_batch("t", [b"1", b"2"], partition=HERE)
    with member(brokers, broadcast=True, offsets_file=path) as consumer:
        read(consumer, 2)
    producer.send("t", b"3", partition=HERE)
    with Application(brokers.connect, home / "client.log") as java:
        java.subscribe("g", "t", factory="broadcast", max_delay=100)
        assert java.payloads("g", 1) == [b"3"]
        eventually(lambda: stored_offset(path) == 3 * 21, what="the offset behind the third message in Java's file")
        java.unsubscribe("g")
    assert len(json.loads(path.read_text())) == 1  # one group: both made its name in the same way
    producer.send("t", b"4", partition=HERE)
    with member(brokers, broadcast=True, offsets_file=path) as consumer:
        assert [message.payload for message in read_until_quiet(consumer, 1)] == [b"4"]
