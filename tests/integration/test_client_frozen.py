"""A consumer whose whole process hangs for longer than its session hands nothing out that another owns by then."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from metaq import Consumer, ConsumerConfig, Producer, TopicPartition
from tests.integration.client_cluster import (
    SESSION_SECONDS,
    SHORT_SESSION_SECONDS,
    MemberProcess,
    read,
    running_brokers,
)
from tests.waiting import eventually

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
