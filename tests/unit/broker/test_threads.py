"""The journal's thread: calls in order, results and exceptions handed to the reactor's thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import current_thread
from typing import Any

from metaq.broker.runtime.threads import DiskThread
from tests.waiting import DEADLINE


class Reactor:
    """Keeps what other threads want called."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]]] = SimpleQueue()

    def seconds(self) -> float:
        return 0.0

    def callLater(self, delay: float, function: Callable[..., Any], /, *args: Any) -> Any:  # noqa: N802
        raise AssertionError("nothing is delayed")

    def callFromThread(self, function: Callable[..., Any], /, *args: Any) -> None:  # noqa: N802
        self.calls.put((function, args))

    def run_one(self) -> None:
        function, args = self.calls.get(timeout=DEADLINE)
        function(*args)


def test_calls_run_in_order_in_a_thread_of_their_own_and_results_come_back() -> None:
    reactor = Reactor()
    thread = DiskThread(reactor, "journal")
    got: list[Any] = []
    thread(lambda: current_thread().name, got.append)
    thread(lambda: 1 // 0, got.append)
    thread(lambda: "after a failure", got.append)
    for _ in range(3):
        reactor.run_one()
    assert got[0] == "journal"
    assert isinstance(got[1], ZeroDivisionError)
    assert got[2] == "after a failure"
