"""Write the log and the snapshots of a standalone ZooKeeper. A worker thread writes and syncs them while the reactor
thread does other work.

Each sync covers all writes that arrived during the previous sync.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from metaq.coordination.standalone.outbox import LogBatch
from metaq.coordination.standalone.server import StandaloneServer

from .log_files import LogFiles

__all__ = ["Keeper"]

_log = logging.getLogger(__name__)

SNAPSHOT_LOG_BYTES = 16 << 20
"""A new snapshot is made when the log has grown enough since the last snapshot: by this many bytes or, if the last
snapshot has more bytes, by the size of that snapshot.
"""

PARTS_WAITING = 8
"""The maximum number of a snapshot's parts that wait to be written. While so many wait, no further part is made."""

_Task = list[LogBatch] | tuple[Callable[[], None], Callable[[], None] | None]
"""A task of the worker thread. It is either a list of log entries to write, or a pair: a function to call, and a
callback for the end of this function (or None).
"""


class Keeper:
    """Writes the changes of one server's state to its log, and makes snapshots of the state. Its methods run on the
    reactor thread; a daemon thread writes the files.

    synced: called with the position of the last synced entry after each sync. woken: called when `look_after` may have
    work. failed: called once, with the error, if a write fails; nothing is written afterwards. These three functions
    are called on the reactor thread.
    """

    def __init__(
        self,
        files: LogFiles,
        reactor: Any,
        synced: Callable[[int], None],
        woken: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._files = files
        self._reactor = reactor
        self._synced = synced
        self._woken = woken
        self._failed = failed
        self._snapshot: Iterator[bytes] | None = None
        self._snapshots = 0
        """How many snapshots were begun and are not complete yet: 0 or 1."""
        self._parts_waiting = 0
        self._tasks: deque[_Task] = deque()
        self._closing = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="metaq zookeeper log", daemon=True)
        self._thread.start()

    def look_after(self, server: StandaloneServer) -> bool:
        """Take the server's new log entries and let the worker thread write them. Continue the snapshot that was begun
        or, if a new one is due, begin it. Return whether work is left, so that this method should be called again soon.
        """
        if batch := server.take_log():
            self._add_batch(batch)
        if self._snapshot is None:
            due = max(SNAPSHOT_LOG_BYTES, self._files.snapshot_bytes)
            if self._snapshots or server.busy or self._files.log_bytes < due:
                return False
            self._snapshots += 1
            self._snapshot = server.snapshot()
            self._add(self._files.begin_snapshot)
        if server.busy or self._parts_waiting >= PARTS_WAITING:
            return server.busy
        part = next(self._snapshot, None)
        if part is None:
            self._snapshot = None
            self._add(self._files.finish_snapshot, self._snapshot_finished)
            return False
        self._parts_waiting += 1
        self._add(partial(self._files.add_to_snapshot, part), self._part_written)
        return self._parts_waiting < PARTS_WAITING

    def _part_written(self) -> None:
        self._parts_waiting -= 1
        self._woken()

    def _snapshot_finished(self) -> None:
        self._snapshots -= 1

    def close(self) -> None:
        """Write and sync all log entries that `look_after` has taken, and end the worker thread. Blocks until this is
        done.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._files.close()

    def _add_batch(self, batch: LogBatch) -> None:
        """Add log entries to the worker thread's tasks, behind all earlier ones. If the last waiting task writes
        entries, too, add these to that task.
        """
        with self._wake:
            if self._tasks and isinstance(self._tasks[-1], list):
                self._tasks[-1].append(batch)
            else:
                self._tasks.append([batch])
                self._wake.notify()

    def _add(self, work: Callable[[], None], done: Callable[[], None] | None = None) -> None:
        with self._wake:
            self._tasks.append((work, done))
            self._wake.notify()

    # --- the worker thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                self._do(task)
            except Exception as error:
                _log.exception("the log of the standalone ZooKeeper cannot be written: it stops")
                self._reactor.callFromThread(self._failed, error)
                return

    def _next(self) -> _Task | None:
        with self._wake:
            while not self._tasks and not self._closing:
                self._wake.wait()
            return self._tasks.popleft() if self._tasks else None

    def _do(self, task: _Task) -> None:
        if isinstance(task, list):
            self._files.append(b"".join(entry for batch in task for entry in batch.entries), task[-1].last)
            self._reactor.callFromThread(self._synced, task[-1].position)
            return
        work, done = task
        work()
        if done is not None:
            self._reactor.callFromThread(done)
