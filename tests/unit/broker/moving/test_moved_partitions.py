"""A broker's partitions under moves: what puts, pulls and transactions get. Without ZooKeeper and network."""

import pytest

from metaq.broker.partitions.move_table import MoveTable
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.errors import BrokerStarting, PartitionClosed, TopicNotAccepted, WrongPartition
from metaq.protocol.sends import decode_rows
from metaq.protocol.statuses import ResponseCode
from tests.unit.broker import harness as module
from tests.unit.broker.harness import Harness, reserved
from tests.unit.broker.test_sequences import batch, many, place, send

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


def test_no_message_begins_to_wait_for_a_partition_that_will_leave(harness):
    copying = Move("t", 0, 1, 2, target=1, rate=1, state=MoveState.COPYING, target_first=0)
    harness.broker.partitions.use_moves(MoveTable(0, [copying]))
    flag, body = reserved(b"x", {"metaq.delay": "60000"})
    peer = harness.connect()
    frames = [module.send("t", number, body, flag=flag) for number in range(2)]
    answers = [peer.ask_frame(frame) for frame in (*frames, module.send("t", 1))]
    assert [each.code for each in answers] == [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS]


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


def one(peer):
    return place(peer.ask_frame(send("left", 0, b"x", 5, 7)))


def several(peer):
    return place(peer.ask_frame(batch("left", 0, [b"x", b"x"], 5, 7)))


def with_others(peer):
    frame = peer.ask_frame(many([("left", 0, [b"x"], 7), ("t", 0, [b"other"], 7)], 5))
    assert frame.remark == ""
    ids, offsets, _, codes = decode_rows(frame.body, 2)
    assert list(codes) == [ResponseCode.SUCCESS] * 2
    return ids[0], offsets[0]


@pytest.mark.parametrize("send_it", [one, several, with_others])
def test_a_repeated_send_is_answered_when_the_whole_topic_has_left(tmp_path, send_it):
    """Also by a broker that was started again, and by one whose server.ini does not name the topic any more."""
    section = "[topic=left]\nnumPartitions=1\n"
    harness = Harness(tmp_path, topics=section)
    first = send_it(harness.connect())
    for topics in (section, section, ""):
        log = harness.store.find("left", 0)
        assert log is not None
        gone = Move("left", 0, 0, 1, 1, 1, MoveState.DONE, 0, (log.end_offset,))
        harness.broker.partitions.use_moves(MoveTable(0, [gone]))
        assert harness.broker.partitions.served_topics()["left"].partitions == 0
        assert send_it(harness.connect()) == first
        with pytest.raises((PartitionClosed, TopicNotAccepted)):
            harness.broker.partitions.for_put("left", 0)
        assert log.end_offset == gone.ends[0]
        harness.close()
        harness = Harness(tmp_path, topics=topics)
    harness.close()
