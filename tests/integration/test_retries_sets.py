"""Retries and dead letters on a broker set whose leader is killed while messages wait."""

import threading
from collections import Counter

from metaq import Consumer, ConsumerConfig, DeadLetters, Message, Producer, Retry
from tests.integration.client_cluster import SESSION_SECONDS, Running
from tests.integration.set_nodes import SetNodes
from tests.waiting import eventually

SET_TOPICS = {"t": "numPartitions=2"}
CONFIG = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)
RETRY = Retry(attempts=2, first=8.0, most=8.0, jitter=0)
"""Its pause is longer than a failover."""


def test_what_waits_and_what_is_dead_survives_the_leader(nodes: SetNodes) -> None:
    calls: Counter[tuple[bytes, int]] = Counter()
    gone = threading.Event()

    def handler(message: Message) -> None:
        calls[message.payload, message.attempts] += 1
        if message.payload == b"bad" or message.attempts == 1:
            raise ValueError("not now")
        assert gone.is_set(), "the pause is over, and the leader is still there"

    leader = nodes.leader
    (other,) = {"a", "b"} - {leader}
    consumer = Consumer(nodes.connect, group="g", topics=["t"], config=CONFIG)
    with Producer(nodes.connect) as producer, Running(consumer, handler, retry=RETRY):
        for payload in (b"flaky", b"bad"):
            producer.send("t", payload)
        eventually(lambda: calls[b"flaky", 1] and calls[b"bad", 1], what="the first attempts")
        producer.send("t", b"after")
        eventually(lambda: calls[b"after", 1], what="what came after they were sent back")
        nodes.kill(leader)
        gone.set()
        nodes.wait_for_leader(other)
        eventually(lambda: calls[b"flaky", 2] and calls[b"bad", 2], what="the second attempts")
        with DeadLetters(nodes.connect, group="g") as letters:
            eventually(lambda: letters.count() >= 1, what="the dead letter")
        nodes.start(leader)
        nodes.wait_in_sync("a", "b")
        nodes.kill(other)
        nodes.wait_for_leader(leader)
        with DeadLetters(nodes.connect, group="g") as letters:
            assert {each.original.payload for each in letters.read()} == {b"bad"}
            (done,) = letters.redrive(letters.read(limit=1), to="group")
            assert done.letter.attempts == 2
        eventually(lambda: calls[b"bad", 1] >= 2, what="the redriven one")
