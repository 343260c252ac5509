"""Fixtures of the broker's unit tests; see harness.py."""

import pytest

from metaq.broker.assembly.server import SessionFactory
from metaq.broker.configuration.settings import BrokerOptions
from metaq.broker.store.partition_log import PartitionLog
from tests.unit.broker.harness import Harness, Lives, noted


@pytest.fixture
def harness(request, tmp_path):
    """With the module's TOPICS, as sections of a server.ini."""
    harness = Harness(tmp_path, topics=getattr(request.module, "TOPICS", ""))
    yield harness
    harness.threads.run()
    harness.close()


@pytest.fixture
def lives(request, tmp_path):
    """With the module's OPTIONS of a broker."""
    lives = Lives(tmp_path, options=getattr(request.module, "OPTIONS", BrokerOptions()))
    yield lives
    lives.end()


@pytest.fixture
def peer(harness):
    return harness.connect()


@pytest.fixture
def factory(harness):
    """Takes two connections at most."""
    factory = SessionFactory(harness.broker, harness.gate, 2)
    factory.doStart()
    yield factory
    factory.doStop()


@pytest.fixture
def appends(monkeypatch):
    """(topic, partition, units) of each append."""
    return noted(
        monkeypatch, PartitionLog, "append", lambda log, _, units, *__: (log.topic, log.partition, len(units) // 32)
    )
