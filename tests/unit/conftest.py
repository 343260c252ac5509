"""Unit tests open no port, start no process and do not sleep. One that does fails: it belongs to tests/component."""

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import assert_within, eventually

FORBIDDEN = {"socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
"""Audit events: those of any thread count. A socketpair raises none of them."""

_done: list[str] = []
_watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in FORBIDDEN and _watching:
        _done.append(f"{event}{arguments!r:.200}, called from:\n{''.join(traceback.format_stack(limit=8)[:-1])}")


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def nothing_but_the_unit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test if it leaves its process, or waits for time to pass."""
    global _watching
    polling = {eventually, assert_within}.intersection(filter(callable, vars(request.module).values()))
    assert not polling, "unit tests do not poll: give the code a clock, or move the test to tests/component"
    sleep, test_thread = time.sleep, threading.current_thread()

    def watched_sleep(seconds: float) -> None:
        if threading.current_thread() is test_thread:
            _done.append(f"time.sleep({seconds}), called from:\n{''.join(traceback.format_stack(limit=8)[:-1])}")
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", watched_sleep)
    _done.clear()
    _watching = True
    yield
    _watching = False
    if _done:
        pytest.fail("a unit test opened a port, started a process or slept; see CONTRIBUTING.md\n\n" + "\n".join(_done))
