"""A close() that an interrupt ends leaves no member behind: what it began goes on, and it may be asked again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from metaq import Consumer
from metaq.client.cluster import Cluster
from tests.integration.client_cluster import Brokers, running_brokers
from tests.waiting import eventually

ROUNDS = 20


class Limit(Exception):
    """What a web worker's time limit raises."""


@pytest.fixture
def brokers(chroot: str, tmp_path: Path) -> Iterator[Brokers]:
    with running_brokers(chroot, tmp_path, {"t": 2}) as brokers:
        yield brokers


@pytest.fixture
def limit() -> Iterator[None]:
    def end(*_: object) -> None:
        raise Limit

    before = signal.signal(signal.SIGALRM, end)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _owns_all(consumer: Consumer) -> bool:
    return len(consumer.assignment()) == 2


def test_an_interrupted_close_frees_the_partitions(brokers: Brokers, limit: None) -> None:
    random, interrupted = Random(1), 0
    with Cluster(brokers.connect) as cluster:
        for number in range(ROUNDS):
            group = f"g{number}"
            consumer = Consumer(brokers.connect, group=group, topics=["t"])
            eventually(partial(_owns_all, consumer), what="owning everything")
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + random.random() * 0.004)
                consumer.close()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Limit:
                interrupted += 1
            consumer.close()
            assert cluster.owners(group, "t") == {}
            assert cluster.members(group) == []
    assert interrupted
