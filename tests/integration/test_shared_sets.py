"""Shared consumers of a broker set whose leader is killed: the next one knows leases, attempts and acknowledgements."""

from __future__ import annotations

import time

import pytest

from metaq import Producer, SharedConfig, SharedConsumer
from metaq.errors import SharedRefused
from tests.integration.client_cluster import leased
from tests.integration.set_nodes import SetNodes

TOPIC = "t"


def test_the_next_leader_knows_leases_attempts_acknowledgements_and_the_filter(nodes: SetNodes) -> None:
    with Producer(nodes.connect) as producer:
        for number in range(12):
            producer.send(TOPIC, b"%d" % number)
    config = SharedConfig(prefetch=0, lease_seconds=60)
    with SharedConsumer(nodes.connect, group="g", topics=[TOPIC], config=config) as consumer:
        first = leased(consumer, 6)
        consumer.ack(*first[:2])
        consumer.release(first[2])
        consumer.flush()
        former, epoch = nodes.leader, nodes.epoch
        nodes.kill_leader()
        with (
            SharedConsumer(nodes.connect, group="g", topics=[TOPIC], ordered_by_key=True) as wrong,
            pytest.raises(SharedRefused, match="ordered_by_key=False"),
        ):
            wrong.poll(60.0)
        with SharedConsumer(nodes.connect, group="g", topics=[TOPIC], config=config) as other:
            rest = leased(other, 7)
            assert {each.payload for each in rest} == {b"%d" % number for number in range(12)} - {
                each.payload for each in (*first[:2], *first[3:])
            }
            again = [each for each in rest if each.payload == first[2].payload]
            assert [each.attempts for each in again] == [2]
            assert other.poll(1.0) == []
            consumer.ack(*first[3:])
            other.ack(*rest)
            consumer.flush(60)
            other.flush(60)
            assert (consumer.counts, other.counts) == ((5, 0), (7, 0))
            nodes.start(former)
            nodes.wait_in_sync("a", "b", after=epoch)
            time.sleep(0.5)
            assert other.poll(0.5) == []
