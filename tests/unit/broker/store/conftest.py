"""Fixtures of the store's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.store_harness import Answers, StoreHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[StoreHarness]:
    store = StoreHarness(tmp_path / "data")
    yield store
    store.files.kill()


@pytest.fixture
def answers() -> Answers:
    return Answers()
