"""A pytest plugin with a real metaq cluster for each test. pytest loads it in every run, so it imports nothing of metaq
before a test uses one of its fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from metaq.broker.standalone.in_process import InProcessZooKeeper

    from .cluster import RealCluster, Topics

__all__ = ["metaq", "metaq_cluster", "metaq_topics", "metaq_zookeeper"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "metaq(topics=…, brokers=1, settings=None): the arguments of metaq.testing.Cluster for the fixture `metaq`",
    )


@pytest.fixture(scope="session")
def metaq_zookeeper() -> Iterator[InProcessZooKeeper]:
    """A ZooKeeper in memory, which all clusters of the test run share."""
    from metaq.broker.standalone.in_process import InProcessZooKeeper

    with InProcessZooKeeper() as server:
        yield server


@pytest.fixture(scope="session")
def metaq_cluster(metaq_zookeeper: InProcessZooKeeper) -> Iterator[RealCluster]:
    """A cluster of one broker, which all tests of the run share. It has no topics before a test creates them."""
    from .cluster import RealCluster

    with RealCluster(zookeeper=metaq_zookeeper) as cluster:
        yield cluster


@pytest.fixture
def metaq_topics() -> Topics:
    """The topics of the fixture `metaq`, for tests without the marker. Override this fixture to choose them."""
    return ()


@pytest.fixture
def metaq(
    request: pytest.FixtureRequest, metaq_zookeeper: InProcessZooKeeper, metaq_topics: Topics
) -> Iterator[RealCluster]:
    """A cluster for this test alone. The marker `metaq` has its arguments."""
    from .cluster import RealCluster

    marker = request.node.get_closest_marker("metaq")
    options: dict[str, Any] = {"topics": metaq_topics} if marker is None else {"topics": metaq_topics, **marker.kwargs}
    with RealCluster(zookeeper=metaq_zookeeper, **options) as cluster:
        yield cluster
