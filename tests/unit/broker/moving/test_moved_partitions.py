"""A broker's partitions under moves: what puts, pulls and transactions get. Without ZooKeeper and network."""

import pytest

from metaq.broker.moving.table import MoveTable
from metaq.coordination.records import Move, MoveState
from metaq.protocol.errors import BrokerStarting, PartitionClosed, WrongPartition

CLOSING = Move("t", 0, 1, 2, target=1, rate=1, state=MoveState.CLOSING, target_first=0)


def test_nothing_is_taken_before_the_moves_are_known(harness):
    partitions = harness.broker.partitions
    partitions.for_put("t", 0)
    partitions.use_moves(MoveTable(0, known=False))
    with pytest.raises(BrokerStarting):
        partitions.for_put("t", 0)
    partitions.use_moves(MoveTable(0))
    partitions.for_put("t", 0)


def test_a_partition_that_leaves_takes_nothing_and_is_not_chosen_but_read(harness):
    partitions = harness.broker.partitions
    log = partitions.for_put("t", 2)
    partitions.use_moves(MoveTable(0, [CLOSING]))
    for chosen in (False, True):  # True: of a transaction
        with pytest.raises(PartitionClosed):
            partitions.for_put("t", 2, chosen=chosen)
    with pytest.raises(PartitionClosed):
        partitions.for_puts(["t", "t"], [0, 1])
    assert {partitions.choose("t") for _ in range(50)} == {0}
    assert partitions.for_read("t", 2) is log
    partitions.use_moves(MoveTable(0))
    assert partitions.for_put("t", 2) is log


def test_a_copy_is_neither_written_nor_read_before_it_is_whole(harness):
    partitions = harness.broker.partitions
    copying = Move("t", 1, 0, 1, target=0, rate=1, state=MoveState.COPYING, target_first=3)
    partitions.use_moves(MoveTable(0, [copying]))
    partitions.for_replica("t", 3, 500)
    assert partitions.served_topics()["t"].partitions == 3
    for look in (partitions.for_put, partitions.for_read, partitions.find):
        with pytest.raises(WrongPartition):
            look("t", 3)
    partitions.use_moves(MoveTable(0, [Move(*("t", 1, 0, 1, 0, 1, MoveState.PUBLISHING, 3, (500,)))]))
    assert partitions.for_put("t", 3).first_offset == 500
    config = partitions.served_topics()["t"]
    assert (config.partitions, config.readable_partitions) == (4, 3)


def test_an_empty_partition_begins_where_the_source_had_ended(harness):
    partitions = harness.broker.partitions
    partitions.use_moves(MoveTable(0, [Move(*("t", 1, 0, 2, 0, 1, MoveState.DONE, 3, (0, 700)))]))
    assert [partitions.for_read("t", each).first_offset for each in (3, 4)] == [0, 700]
    assert partitions.served_topics()["t"].partitions == 5


def test_transactions_that_hold_messages_of_a_partition_are_named(harness):
    broker = harness.broker
    peer = object()
    broker.transactions.begin(peer, "TX:a:1", 0)
    log = broker.partitions.for_put("t", 1)
    assert broker.transactions.holding(log) == []
    broker.transactions.put(peer, "TX:a:1", "t", 1, [(0, -1, b"x")], 1)
    assert broker.transactions.holding(log) == ["TX:a:1"]
    committed = broker.transactions.commit(peer, "TX:a:1", one_phase=True)
    assert broker.transactions.holding(log) == ["a commit"]
    harness.threads.run()
    assert committed.called
    assert broker.transactions.holding(log) == []
