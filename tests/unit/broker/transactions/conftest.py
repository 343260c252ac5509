"""Fixtures of the transactions' tests."""

import pytest

from tests.unit.broker.transactions.conversation import Lives


@pytest.fixture
def lives(tmp_path):
    lives = Lives(tmp_path)
    yield lives
    if lives.runs:
        lives.stop()
