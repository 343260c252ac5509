"""A consumer whose partitions may be another's hands nothing out: its process hangs for longer than its session, it is
cut off from ZooKeeper, ZooKeeper is gone, or for a while it cannot know; then comes what it has fetched.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaq import Consumer, ConsumerConfig, Producer, TopicPartition
from metaq.client.consumer.self_checks import SessionWatch
from metaq.client.runtime.timers import Timers
from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.client_cluster import (
    SESSION_SECONDS,
    SHORT_SESSION_SECONDS,
    Brokers,
    MemberProcess,
    read,
    running_brokers,
)
from tests.integration.coordination_helpers import session_at
from tests.integration.gate import Gate
from tests.waiting import eventually
from tests.zookeepers import zookeeper_process

MESSAGES = 200


def test_a_thawed_consumer_hands_out_nothing_of_what_it_has_lost(chroot: str, tmp_path: Path) -> None:
    config = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)
    with running_brokers(chroot, tmp_path, {"t": 2}), Producer(chroot) as producer:
        frozen = MemberProcess(chroot, "g", "t", SHORT_SESSION_SECONDS)
        try:
            frozen.wait_until_it_owns(2, "t")
            os.kill(frozen.process.pid, signal.SIGSTOP)
            with Consumer(chroot, group="g", topics=["t"], config=config) as consumer:
                eventually(lambda: len(consumer.assignment()) == 2, 20, "taking over")
                sent = [f"{number}" for number in range(MESSAGES)]
                for number, payload in enumerate(sent):
                    producer.send("t", payload.encode(), partition=TopicPartition("t", 0, number % 2))
                assert len(read(consumer, MESSAGES)) == MESSAGES
                consumer.commit()
                os.kill(frozen.process.pid, signal.SIGCONT)
            producer.send("t", b"later", partition=TopicPartition("t", 0, 0))
            frozen.wait_for("later")
        finally:
            frozen.kill()
    assert frozen.payloads == ["later"]


PARTITIONS = [TopicPartition("t", broker, number) for broker in (0, 1) for number in (0, 1)]


@pytest.fixture
def brokers(chroot: str, tmp_path: Path) -> Iterator[Brokers]:
    with running_brokers(chroot, tmp_path, {"t": 2}, count=2) as brokers:
        yield brokers


def poll(consumer: Consumer, timeout: float) -> list[bytes]:
    return [message.payload for message in consumer.poll(timeout=timeout)]


def poll_one(consumer: Consumer, timeout: float) -> list[bytes]:
    return [message.payload for message in consumer.poll(max_messages=1, timeout=timeout)]


def poll_arrow(consumer: Consumer, timeout: float) -> list[bytes]:
    return [bytes(each) for each in consumer.poll_arrow(timeout=timeout)["payload"].to_pylist()]


@pytest.mark.parametrize("take", [poll, poll_one, poll_arrow])
def test_what_was_fetched_during_a_doubt_comes_after_it(
    chroot: str, brokers: Brokers, take: Callable[[Consumer, float], list[bytes]]
) -> None:
    with Producer(chroot) as producer, Consumer(chroot, group=take.__name__, topics=["t"], start="latest") as consumer:
        eventually(lambda: take(consumer, 0.1) or len(consumer.assignment()) == len(PARTITIONS), what="the assignment")
        states = consumer._core.owned.values()
        eventually(lambda: take(consumer, 0.1) or all(state.opened for state in states), what="the first positions")
        doubt = threading.Event()
        doubt.set()
        sure = consumer._watch.may_have_lost_everything
        consumer._watch.may_have_lost_everything = lambda: doubt.is_set() or sure()  # type: ignore[method-assign]
        sent = [b"%d" % number for number in range(MESSAGES)]
        for number, payload in enumerate(sent):
            producer.send("t", payload, partition=PARTITIONS[number % len(PARTITIONS)])
            if number % 10 == 0:
                assert take(consumer, 0.01) == []
        eventually(
            lambda: take(consumer, 0.05) or all(state.buffered_bytes for state in states), what="data of each partition"
        )
        threading.Timer(0.3, doubt.clear).start()
        found: list[bytes] = []
        while len(found) < MESSAGES:
            got = take(consumer, 20)
            assert got, f"{MESSAGES - len(found)} messages stay in the buffers"
            found += got
        assert sorted(found) == sorted(sent)


PATIENT_SECONDS = 30.0


def test_nothing_is_handed_out_after_a_third_of_the_session_without_zookeeper_and_it_goes_on_afterwards(tmp_path):
    config = ConsumerConfig(session_timeout_seconds=PATIENT_SECONDS)
    server = zookeeper_process(tmp_path / "zookeeper")
    server.start()
    try:
        connect = server.connect_string
        with (
            running_brokers(connect, tmp_path, {"t": 1}),
            Producer(connect) as producer,
            Consumer(connect, group="g", topics=["t"], config=config) as consumer,
        ):
            where = TopicPartition("t", 0, 0)
            producer.send("t", b"before", partition=where)
            assert [message.payload for message in read(consumer, 1)] == [b"before"]
            server.stop()
            eventually(lambda: consumer._session.suspended_seconds > 0, 5, "noticing")
            producer.send("t", b"soon after", partition=where)
            assert [message.payload for message in read(consumer, 1)] == [b"soon after"]
            eventually(
                lambda: consumer._session.suspended_seconds > PATIENT_SECONDS / 3, PATIENT_SECONDS, "a third of it"
            )
            producer.send("t", b"during", partition=where)
            assert consumer.poll(timeout=0.5) == []
            server.start()
            assert [message.payload for message in read(consumer, 1)] == [b"during"]
    finally:
        server.stop()


# --- a server that grants a shorter session than was asked for: what is believed is what was granted ------------------

ASKED_SECONDS = 30.0
GRANTED_SECONDS = 3.0


@pytest.fixture
def strict_server(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    longest = int(GRANTED_SECONDS * 1000)
    with zookeeper_process(tmp_path / "zk", tick_time_ms=100, max_session_timeout_ms=longest) as server:
        yield server


def test_the_session_timeout_is_the_one_that_was_granted(strict_server: ZooKeeperProcess) -> None:
    session = ZkSession(strict_server.connect_string, session_timeout=ASKED_SECONDS)
    assert session.session_timeout == ASKED_SECONDS
    with session:
        assert session.session_timeout == GRANTED_SECONDS


def test_a_member_that_is_cut_off_hands_nothing_out_when_another_can_own_its_partitions(
    strict_server: ZooKeeperProcess,
) -> None:
    timers = Timers("test")
    with (
        Gate(strict_server.connect_string) as gate,
        session_at(gate.address, ASKED_SECONDS) as cut_off,
        session_at(strict_server.connect_string, ASKED_SECONDS) as other,
    ):
        member = GroupMembership(cut_off, "g", "c1", ["t"], lambda: None)
        member.join()
        assert member.claim("t", "0-0")
        watch = SessionWatch(cut_off, "g", timers, lambda: True)
        watch.prove()
        other_member = GroupMembership(other, "g", "c2", ["t"], lambda: None)
        other_member.join()
        assert not watch.may_have_lost_everything()
        gate.silence()
        began = time.monotonic()
        eventually(lambda: other_member.claim("t", "0-0"), what="taking over")
        assert watch.may_have_lost_everything()
        assert time.monotonic() - began < ASKED_SECONDS / 3  # or it would have noticed anyway
        timers.close()
        cut_off.close(timeout=1.0)
