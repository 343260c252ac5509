"""Unit tests open no port, start no process and do not sleep. One that does fails: it belongs to tests/component."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, SupportsIndex

import pytest

from tests.waiting import assert_within, eventually

FORBIDDEN = {"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
"""Audit events: those of any thread count. A socketpair raises none of them."""

_done: list[str] = []
_test_thread: threading.Thread | None = None
"""That of a unit test under way."""
_sleep = time.sleep


def _note(event: str) -> None:
    _done.append(f"{event}, called from:\n{''.join(traceback.format_stack(limit=8)[:-2])}")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in FORBIDDEN and _test_thread is not None:
        _note(f"{event}{arguments!r:.200}")


def _watched_sleep(seconds: float | SupportsIndex, /) -> None:
    if threading.current_thread() is _test_thread:
        _note(f"time.sleep({seconds})")
    _sleep(seconds)


sys.addaudithook(_watch)
time.sleep = _watched_sleep


@pytest.fixture(autouse=True, scope="module")
def no_polling(request: pytest.FixtureRequest) -> None:
    """Fail the tests of a module that has a helper which waits for time to pass."""
    if {eventually, assert_within}.intersection(filter(callable, vars(request.module).values())):
        pytest.fail("unit tests do not poll: give the code a clock, or move the test to tests/component")


@pytest.fixture(autouse=True)
def nothing_but_the_unit() -> Iterator[None]:
    """Fail the test if it leaves its process, or sleeps."""
    global _test_thread
    _done.clear()
    _test_thread = threading.current_thread()
    yield
    _test_thread = None
    if _done:
        pytest.fail("a unit test opened a port, started a process or slept; see CONTRIBUTING.md\n\n" + "\n".join(_done))


@pytest.fixture
def disk_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of a file system with a page cache, for what asks about that."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    """pytest's, but in memory where the machine has that: unit tests make and remove tens of thousands of files."""
    if os.access("/dev/shm", os.W_OK):
        with TemporaryDirectory(prefix="metaq-", dir="/dev/shm") as path:
            yield Path(path)
    else:
        yield request.getfixturevalue("disk_path")
