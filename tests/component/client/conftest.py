"""Fixtures of the client's component tests."""

from collections.abc import Iterator

import pytest

from metaq.testing import FakeBroker


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[FakeBroker]:
    """With the module's TOPICS: partitions by topic; by default one of `t`."""
    with FakeBroker(getattr(request.module, "TOPICS", {"t": 1})) as broker:
        yield broker
