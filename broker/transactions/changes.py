"""Describe changes of the transaction log's files as objects. A worker thread makes the changes in this node's files.
In a broker set, the changes are also sent to the other nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from metaq.protocol.errors import MetaqError
from metaq.protocol.record import Buffer

from ..store.files import Files, replace_file

__all__ = ["REMOVED", "REPLACED", "LogChange", "LogCopies", "make_change"]

REPLACED = -1
"""The value of `position` in a change that replaces a whole file."""
REMOVED = -2
"""The value of `position` in a change that removes a file."""


class LogChange(NamedTuple):
    """A change of the file `name`. The bytes are written at `position`. If `position` is REPLACED, they are the new
    content of the whole file; if it is REMOVED, the file is removed.
    """

    name: str
    position: int
    data: Sequence[Buffer] = ()


class LogCopies(Protocol):
    """Sends changes of the transaction log to the other nodes of a broker set (sets/node_transactions.py)."""

    def replicate(self, changes: Sequence[LogChange], *, disk: bool, done: Callable[[str | None], None]) -> None:
        """Make these changes on every in-sync node, in the order of `changes` and after all earlier changes.

        done(None) is called when all in-sync nodes have made these changes and all earlier ones. If `disk` is True,
        done(None) is called only when these changes and all earlier ones are on the disks of these nodes. done(why) is
        called if it is unknown whether the nodes have made the changes; `why` is the reason.
        """

    def refusal_now(self) -> MetaqError | None:
        """Return an error if another node may have been elected as leader; in this case, this node does not know which
        transactions the other nodes have. Otherwise return None.
        """

    def failed(self, failure: MetaqError) -> None:
        """Report that this node can no longer write its own files. If `failure` is DiskFull, the node can write its
        files again as soon as the disk has room.
        """


def make_change(files: Files, directory: str, change: LogChange) -> None:
    """Make this `change`, which must replace or remove a whole file. Blocks until the change is on the disk. Raises
    OSError.
    """
    path = os.path.join(directory, change.name)
    if change.position == REPLACED:
        replace_file(files, path, b"".join(change.data))
    else:
        with suppress(FileNotFoundError):  # it was never written
            files.unlink(path)
            files.fsync_directory(directory)
