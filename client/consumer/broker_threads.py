"""What has to wait for a broker waits on a thread of that broker, so that a hung one holds up nobody else."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from metaq.coordination.interrupts import BackgroundThread
from metaq.coordination.logs import get_log

from ..connection import Endpoint

__all__ = ["BrokerThreads"]

log = get_log(__name__)


class BrokerThreads:
    """Runs actions in order, those of one broker on one thread, which ends when nothing is left to do. Any thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: dict[Endpoint, deque[Callable[[], None]]] = {}

    def run(self, endpoint: Endpoint, action: Callable[[], None]) -> None:
        """Have `action` run soon; what it raises is logged."""
        with self._lock:
            waiting = self._waiting.get(endpoint)
            if waiting is not None:
                waiting.append(action)
                return
            self._waiting[endpoint] = deque((action,))
        name = f"{self._name}-{endpoint.host}:{endpoint.port}"
        BackgroundThread(self._work, name, endpoint)

    def _work(self, endpoint: Endpoint) -> None:
        while (action := self._next(endpoint)) is not None:
            try:
                action()
            except Exception:  # one action's bug must not stop the others
                log.exception("%s: an action failed", self._name)

    def _next(self, endpoint: Endpoint) -> Callable[[], None] | None:
        with self._lock:
            waiting = self._waiting[endpoint]
            if waiting:
                return waiting.popleft()
            del self._waiting[endpoint]
            return None
