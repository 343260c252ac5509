"""Fixtures of the store's tests."""

import pytest

from tests.doubles.store_harness import Answers, StoreHarness


@pytest.fixture
def harness(tmp_path):
    store = StoreHarness(tmp_path / "data")
    yield store
    store.files.kill()


@pytest.fixture
def grouped(harness):
    """With group commit."""
    harness.group_commit = True
    return harness


@pytest.fixture
def log(harness):
    return harness.log


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def errors(caplog):
    """Returns what has been logged as errors so far."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
