"""Moves that cannot go on, or meet others: each has an outcome that says what it is, and nothing is lost by it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from metaq import Producer, TopicPartition
from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError, CoordinationError
from tests.broker_process import RunningBroker, server_ini
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import Brokers, running_brokers
from tests.integration.test_moves import FAST, TOPIC, Got, Reading, Sending, stored
from tests.waiting import DEADLINE, eventually

FIRST = TopicPartition(TOPIC, 0, 0)
DISK_MB = 96


@pytest.fixture
def brokers(chroot: str, tmp_path: Path) -> Iterator[Brokers]:
    with running_brokers(chroot, tmp_path, {TOPIC: 1}, count=2) as brokers:
        yield brokers


@pytest.fixture
def moves(chroot: str) -> Iterator[MovesOfCluster]:
    with ZkSession(chroot) as session:
        yield MovesOfCluster(session)


def ends(moves: MovesOfCluster, move: Move, state: MoveState = MoveState.DONE) -> None:
    eventually(lambda: moves.look(move).move.state is state, what=f"the state {state.value}")


def waits_for(moves: MovesOfCluster, move: Move, words: str) -> None:
    eventually(lambda: words in moves.look(move).waits_for, what=f"the wait for {words!r}")


def takes_messages(chroot: str, partition: TopicPartition = FIRST) -> None:
    with Producer(chroot) as producer:
        producer.send(TOPIC, b"and on", partition=partition)


# --- several at a time ------------------------------------------------------------------------------------------------


def test_a_broker_with_several_topics_is_drained_under_load(chroot: str, tmp_path: Path) -> None:
    topics = [f"t{number}" for number in range(4)]
    with running_brokers(chroot, tmp_path, dict.fromkeys(topics, 2), count=3) as brokers:
        loads = [Sending(chroot, topic) for topic in topics[:2]]
        got: dict[str, list[Got]] = {each: [] for each in topics[:2]}
        members = [Reading(chroot, f"g-{topic}", found, topic) for topic, found in got.items()]
        with Producer(chroot) as producer:
            for topic in topics[2:]:
                producer.send_batch(
                    topic, [b"%d" % number for number in range(100)], partition=TopicPartition(topic, 0, 1)
                )
        for each in (*loads, *members):
            each.start()
        eventually(lambda: all(len(each.sent) > 100 for each in loads), what="messages")
        assert "broker 0 has no topic left" in Operator(chroot).ran("brokers", "drain", "0").out
        for load in loads:
            load.stop()
            assert load.errors == []
        brokers.running[0].kill()
        for load, (topic, found) in zip(loads, got.items(), strict=True):
            eventually(lambda: len(found) >= len(load.sent), what=f"all messages of {topic}")  # noqa: B023
            assert sorted(payload for *_, payload in found) == sorted(load.sent)
        for member in members:
            member.stop()
        with Producer(chroot) as producer:
            for topic in topics:
                partitions = producer.partitions(topic)
                assert (len(partitions), {each.broker for each in partitions} <= {1, 2}) == (6, True)
                there = [each for payloads in stored(chroot, partitions).values() for each in payloads]
                wanted = loads[topics.index(topic)].sent if topic in got else map(str, range(100))
                assert sorted(there) == sorted(wanted)


def test_two_drains_towards_each_other_end_and_lose_nothing(chroot: str, tmp_path: Path) -> None:
    """Of topics with messages on both, on one, and on neither."""
    topics = ["both", "left", "right", "empty"]
    with running_brokers(chroot, tmp_path, dict.fromkeys(topics, 1), count=2):
        sent = {"both": ["0", "1"], "left": ["0"], "right": ["1"], "empty": []}
        with Producer(chroot) as producer:
            for topic, payloads in sent.items():
                for payload in payloads:
                    producer.send(topic, payload.encode(), partition=TopicPartition(topic, int(payload), 0))
        with ThreadPoolExecutor(2) as together:
            drains = list(together.map(lambda broker: Operator(chroot).ran("brokers", "drain", broker), "01"))
        assert all(each.code == 0 or (each.code == 1 and "still has" in each.err) for each in drains), drains
        assert any(each.code for each in drains)  # there is nowhere else for them to go
        with ZkSession(chroot) as session:
            assert [each for each in MovesOfCluster(session).all() if each.active] == []
        with Producer(chroot) as producer:
            for topic, payloads in sent.items():
                partitions = producer.partitions(topic)
                assert partitions
                there = [each for found in stored(chroot, partitions).values() for each in found]
                assert sorted(there) == payloads
                producer.send(topic, b"and on")


# --- the target -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reserve", ["0", "8m"])
def test_a_target_without_room_waits_takes_its_own_messages_and_goes_on(
    chroot: str, tmp_path: Path, disk: Path, moves: MovesOfCluster, reserve: str
) -> None:
    with running_brokers(chroot, tmp_path, {TOPIC: 1}), Producer(chroot) as producer:
        body = b"x" * (1 << 20)
        for _ in range(24):
            producer.send(TOPIC, body, partition=FIRST)
        others = disk / "others"
        others.write_bytes(b"x" * (74 << 20))  # 24 MiB of copy and as much of journal fit only when they are gone
        ini = server_ini(
            disk / "data",
            {TOPIC: "numPartitions=1"},
            broker_id=1,
            zookeeper=f"zk.zkConnect={chroot}\nzk.zkSyncTimeMs=100",
            max_segment_size=1 << 20,
        )
        (tmp_path / "target").mkdir()
        options = ("-m", "metaq", "broker", "--disk-reserve", reserve, "-f")
        with RunningBroker(tmp_path / "target", ini, module=options):
            eventually(lambda: len(producer.partitions(TOPIC)) == 2, what="the target")
            move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
            waits_for(moves, move, "has no room for the copy")
            producer.send(TOPIC, b"own", partition=TopicPartition(TOPIC, 1, 0))
            others.unlink()
            ends(moves, move)
            (payloads,) = stored(chroot, [TopicPartition(TOPIC, 1, 1)]).values()
            assert payloads == [body.decode()] * 24


def test_a_target_that_is_stopped_is_waited_for(chroot: str, brokers: Brokers, moves: MovesOfCluster) -> None:
    planned = moves.plan(TOPIC, 0, 1, FAST)
    brokers.running[1].stop()
    with pytest.raises(ConfigError, match="is not registered in ZooKeeper now: start it"):
        moves.plan(TOPIC, 0, 1, FAST)
    move = moves.begin(planned)  # as if it had been stopped a moment later
    waits_for(moves, move, "broker 1 is not registered in ZooKeeper now")
    takes_messages(chroot)
    assert moves.look(move).move.state is MoveState.ASKED
    brokers.start(1)
    ends(moves, move)


def test_a_source_that_is_stopped_is_waited_for(chroot: str, brokers: Brokers, moves: MovesOfCluster) -> None:
    takes_messages(chroot)
    with Producer(chroot) as producer:
        delayed = producer.send(TOPIC, b"tomorrow", partition=FIRST, delay=86_400.0)
        move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
        waits_for(moves, move, "delayed messages")  # so that it does not copy, and go on, before the source is killed
        assert moves.look(move).move.state is MoveState.COPYING
        brokers.running[0].kill()
        waits_for(moves, move, "broker 0 is not registered in ZooKeeper now")
        brokers.start(0)
        waits_for(moves, move, "delayed messages")
        assert producer.cancel(delayed)
        ends(moves, move)


# --- cancelling -------------------------------------------------------------------------------------------------------


def test_a_move_that_nobody_has_looked_at_is_cancelled(chroot: str, brokers: Brokers, moves: MovesOfCluster) -> None:
    planned = moves.plan(TOPIC, 0, 1, FAST)
    brokers.running[1].kill()
    move = moves.begin(planned)
    assert moves.cancel(move).state is MoveState.CANCELLED
    brokers.start(1)
    takes_messages(chroot)
    time.sleep(0.5)
    assert moves.look(move).move.state is MoveState.CANCELLED
    ends(moves, moves.begin(moves.plan(TOPIC, 0, 1, (1 << 63) - 1)))  # the highest rate


def test_a_slow_copy_is_cancelled_at_once_and_another_rate_counts(
    chroot: str, brokers: Brokers, moves: MovesOfCluster
) -> None:
    with Producer(chroot) as producer:
        for _ in range(300):
            producer.send(TOPIC, b"x" * 1000, partition=FIRST)
    move = moves.begin(moves.plan(TOPIC, 0, 1, 1))
    eventually(lambda: moves.look(move).left, what="the first bytes")
    before = moves.look(move)
    time.sleep(1.0)
    assert moves.look(move).left == before.left  # the first chunk was 64 KiB, and the next is due in a day
    moves.cancel(move)
    begun = time.monotonic()
    move = moves.begin(moves.plan(TOPIC, 0, 1, 100_000))
    ends(moves, move)
    assert time.monotonic() - begun > 1.5  # of about 240 KB, 64 KiB go at once


def held_closing(moves: MovesOfCluster, transaction: Any) -> Move:
    transaction.send(TOPIC, b"in it", partition=FIRST)
    move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
    waits_for(moves, move, "transactions")
    return move


def test_a_source_that_was_not_told_is_told_when_the_move_is_cancelled_again(
    chroot: str, brokers: Brokers, moves: MovesOfCluster
) -> None:
    with Producer(chroot) as producer, producer.transaction() as transaction:
        move = held_closing(moves, transaction)
        for each in brokers.running.values():
            each.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(CoordinationError, match="cancel again"):
                moves.cancel(move)
        finally:
            brokers.running[0].process.send_signal(signal.SIGCONT)
        try:
            assert "cancelled" in Operator(chroot).ran("partitions", "move", "-t", TOPIC, "--from", "0", "--cancel").out
            takes_messages(chroot)
        finally:
            brokers.running[1].process.send_signal(signal.SIGCONT)
    assert stored(chroot, [FIRST])[FIRST] == ["and on", "in it"]


def test_a_move_that_hands_over_or_is_done_cannot_be_cancelled(
    chroot: str, brokers: Brokers, moves: MovesOfCluster
) -> None:
    takes_messages(chroot)
    released = threading.Event()
    got: list[Got] = []
    member = Reading(chroot, "g", got, on_revoked=lambda _: released.wait(DEADLINE))
    member.start()
    eventually(lambda: got, what="the message")
    move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
    waits_for(moves, move, f"still owns {TOPIC} 0-0")
    with pytest.raises(ConfigError, match="its move cannot be cancelled now: it is handing-over"):
        moves.cancel(move)
    released.set()
    ends(moves, move)
    with pytest.raises(ConfigError, match="its move cannot be cancelled now: it is done"):
        moves.cancel(move)
    member.stop()


# --- what is asked for ------------------------------------------------------------------------------------------------


WRONG = {
    "rate 0": ("--rate", "0", "is not a number of bytes per second"),
    "negative": ("--rate", "-5", "is not a number of bytes per second"),
    "no number": ("--rate", "fast", "is not a number of bytes per second"),
    "too high": ("--rate", "999999999999g", "--rate"),
    "longer": ("--rate", "9" * 5000, "is not a number of bytes per second"),
    "target": ("--to", "9", "is not registered in ZooKeeper now"),
    "itself": ("--to", "0", "has the partitions already"),
    "source": ("--from", "9", "does not offer topic trades now"),
    "topic": ("--topic", "trade", "does not offer topic trade now"),
    "no topic": ("--topic", "a/b", "a/b"),
    "partitions": ("--partitions", "3-4", "only its last ones can leave it"),
    "range": ("--partitions", "4-3", "4-3"),
    "cancel": ("--cancel", None, "no partitions of broker 0 are being moved"),
}


def test_what_is_wrong_is_named_and_begins_nothing(chroot: str, brokers: Brokers, moves: MovesOfCluster) -> None:
    operator = Operator(chroot)
    for name, (option, value, words) in WRONG.items():
        arguments = {"--topic": TOPIC, "--from": "0", "--to": "1", option: value}
        done = operator.ran("partitions", "move", *(word for pair in arguments.items() for word in pair if word))
        assert (done.code in (1, 2), words in done.err) == (True, True), (name, done)
    for rate in (0, -1, 1 << 63, 1 << 2000):
        with pytest.raises(ConfigError, match="--rate"):
            moves.plan(TOPIC, 0, 1, rate)
    assert moves.all() == []
    drained = operator.ran("brokers", "drain", "0", "--to", "9")
    assert (drained.code, "no broker that may get the partitions is registered now" in drained.err) == (1, True)
    drained = operator.ran("brokers", "drain", "9")
    assert (drained.code, "has no topic left" in drained.out) == (0, True)
