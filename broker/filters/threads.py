"""The threads that call users' filters, apart from those that wait for the disk."""

from __future__ import annotations

from threading import Thread
from typing import Any

from twisted.python.threadpool import ThreadPool

__all__ = ["FilterThreads"]

_THREADS = 4


class _Daemon(Thread):
    """Does not keep the process from ending, whatever its filter does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, daemon=True, **kwargs)


class FilterThreads(ThreadPool):
    """At most 4, started when they are needed first and never stopped."""

    threadFactory = _Daemon  # noqa: N815

    def __init__(self) -> None:
        super().__init__(0, _THREADS, "filters")
