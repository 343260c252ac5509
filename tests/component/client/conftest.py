"""Fixtures of the client's component tests. A module's TOPICS (partitions by topic) and CONFIG are used."""

from collections.abc import Iterator

import pytest

from metaq import Producer
from metaq.client.settings.config import Protocol
from metaq.testing import FakeBroker, FakeCluster
from tests.speaking import speaking

from .harness import FAST


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[FakeBroker]:
    """By default with one partition of `t`."""
    with FakeBroker(getattr(request.module, "TOPICS", {"t": 1})) as broker:
        yield broker


@pytest.fixture
def cluster(broker: FakeBroker) -> FakeCluster:
    return FakeCluster([broker])


@pytest.fixture
def producer(request: pytest.FixtureRequest, cluster: FakeCluster, protocol: Protocol) -> Iterator[Producer]:
    """In both protocols."""
    with Producer(metadata=cluster, config=speaking(protocol, getattr(request.module, "CONFIG", FAST))) as producer:
        yield producer


@pytest.fixture
def framed(request: pytest.FixtureRequest, cluster: FakeCluster) -> Iterator[Producer]:
    """A producer that speaks frames."""
    with Producer(metadata=cluster, config=getattr(request.module, "CONFIG", FAST)) as producer:
        yield producer
