"""Fixtures of the shared groups' tests."""

import pytest

from tests.unit.broker.shared.test_shared_groups import Talk


@pytest.fixture
def talk(tmp_path):
    talk = Talk(tmp_path)
    yield talk
    talk.harness.close()
