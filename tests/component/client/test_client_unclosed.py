"""Clients that nobody has any more and nobody has closed: they warn, and their threads end."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from metaq import (
    LocalMessageStore,
    OrderedProducer,
    PartitionReader,
    Producer,
    SharedConsumer,
    TopicPartition,
    errors,
)
from metaq.testing import FakeBroker, FakeCluster
from tests.waiting import eventually


def producer(broker: FakeBroker, _: Path) -> Producer:
    made = Producer(metadata=FakeCluster([broker]))
    made.check_transactions(lambda _: True, ["t"], group="g")
    made.send("t", b"x")
    return made


def ordered(broker: FakeBroker, directory: Path) -> OrderedProducer:
    store = LocalMessageStore(directory / "saved.db")
    made = OrderedProducer(partitions={"t": {0: 1}}, store=store, metadata=FakeCluster([broker]))
    made.send("t", b"x")
    return made


def reader(broker: FakeBroker, _: Path) -> PartitionReader:
    made = PartitionReader(f"{broker.endpoint.host}:{broker.endpoint.port}", TopicPartition("t", 0, 0))
    assert made.poll()
    return made


def shared(broker: FakeBroker, _: Path) -> SharedConsumer:
    made = SharedConsumer(group="g", topics=["t"], metadata=FakeCluster([broker]))
    with pytest.raises(errors.RequestRefused):  # a FakeBroker leases nothing
        made.poll(timeout=30.0)
    return made


def drop(made: list[Any]) -> None:
    """Nobody has it any more."""
    made.clear()
    gc.collect()


@pytest.mark.parametrize("make", [producer, ordered, reader, shared])
def test_a_dropped_client_warns_and_its_threads_end(broker, tmp_path, make):
    broker.append("t", 0, b"something")
    before = set(threading.enumerate())
    made = [make(broker, tmp_path)]
    kind, still_there = type(made[0]).__name__, weakref.ref(made[0])
    with pytest.warns(ResourceWarning, match=f"this {kind} was not closed: close it, for example by `with {kind}"):
        drop(made)
    eventually(lambda: still_there() is None and not set(threading.enumerate()) - before)


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("make", [producer, ordered, reader, shared])
def test_a_closed_client_does_not_warn(broker, tmp_path, make):
    broker.append("t", 0, b"something")
    make(broker, tmp_path).close()
    gc.collect()


def test_a_dropped_producer_delivers_what_it_has_accepted(broker: FakeBroker) -> None:
    broker.silent = True
    futures = [Producer(metadata=FakeCluster([broker])).send_async("t", b"%d" % number) for number in range(3)]
    broker.silent = False
    broker.drop_connections()
    gc.collect()
    for future in futures:
        future.result(30)
    assert {b"0", b"1", b"2"} <= set(broker.bodies("t", 0))


def test_a_transaction_keeps_its_producer(broker: FakeBroker) -> None:
    with Producer(metadata=FakeCluster([broker])).transaction() as transaction:
        gc.collect()
        transaction.send("t", b"x")
    assert broker.bodies("t", 0) == [b"x"]
