"""Fixtures of the transactions' tests."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """For tests that make and remove thousands of files: a directory in memory, where the machine has one."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="metaq-", dir="/dev/shm") as path:
        yield Path(path)
