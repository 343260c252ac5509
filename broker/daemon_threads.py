"""Worker threads apart from those that sync: for users' filters, and for reads behind the page cache."""

from __future__ import annotations

from threading import Thread
from typing import Any

from twisted.python.threadpool import ThreadPool

__all__ = ["DaemonThreads"]


class _Daemon(Thread):
    """Does not keep the process from ending, whatever it waits for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, daemon=True, **kwargs)


class DaemonThreads(ThreadPool):
    """At most `limit` threads, started when they are needed first and never stopped."""

    threadFactory = _Daemon  # noqa: N815

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(0, limit, name)
