"""Fixtures of the broker's unit tests; see harness.py."""

import pytest

from tests.unit.broker.harness import Harness


@pytest.fixture
def harness(tmp_path):
    harness = Harness(tmp_path)
    yield harness
    harness.threads.run()
    harness.broker.transactions.close()
    harness.store.close()


@pytest.fixture
def peer(harness):
    return harness.connect()
