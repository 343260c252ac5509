"""Bring a follower's transaction log up to date: read the leader's files and send them to the follower, as
catching_up.py does with the partitions.

If size and digest of the follower's log show that it has the same bytes as the leader's log, no file data are sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred

from metaq.protocol.replication_stream import COPY, Lane, StreamEntry, encode_block

from ..store.files import Files, opened, read_exactly
from . import tuning
from .connections import StreamProtocol
from .host import TransactionHost
from .transaction_mirror import BEGIN, END, NAME_PREFIX, SAME, WRITTEN, log_bytes, log_digest, log_names

__all__ = ["send_copy"]


async def send_copy(
    broker: TransactionHost, connection: StreamProtocol, stopped: Callable[[], bool], theirs: tuple[int, str]
) -> int:
    """Send the whole present transaction log to a follower, as a copy. Until the copy is complete, the leader keeps its
    new blocks for this follower in memory. Return the number of bytes sent. stopped: returns True when the copy should
    end early.

    theirs: size and digest of the follower's log (TransactionMirror.describe). If the follower's log is the same as the
    leader's, this function sends no data, only a message that says so.

    The leader may write more bytes to the log during the copy; the copy may or may not contain them. The follower gets
    these bytes in any case, because the kept blocks contain them. Raises OSError.
    """
    written: Deferred[None] = Deferred()
    broker.transactions.when_idle(lambda: written.callback(None))
    await written
    files, directory = broker.store.files, broker.transactions.directory
    sent = 0

    def send(entry: StreamEntry) -> None:
        connection.send(encode_block(COPY, (0, 0), [entry]))

    if await broker.in_thread(partial(_is_same, files, directory, theirs)):
        if not stopped():
            send(StreamEntry(NAME_PREFIX, 0, SAME, Lane.MEMORY, b"", ()))
        return 0
    send(StreamEntry(NAME_PREFIX, 0, BEGIN, Lane.MEMORY, b"", ()))
    for name in await broker.in_thread(partial(log_names, files, directory)):
        position = 0
        while not stopped():
            await connection.drained()
            data = await broker.in_thread(partial(_read, files, os.path.join(directory, name), position))
            if data is None:
                break
            send(StreamEntry(NAME_PREFIX + name.encode(), position, WRITTEN, Lane.MEMORY, b"", (data,)))
            position += len(data)
            if len(data) < tuning.PIECE_BYTES:
                break
        if stopped():
            return sent  # the follower ignores a copy without an end
        sent += position
    send(StreamEntry(NAME_PREFIX, 0, END, Lane.MEMORY, b"", ()))
    return sent


def _is_same(files: Files, directory: str, theirs: tuple[int, str]) -> bool:
    """Return whether the leader's log and the follower's log have the same bytes. The sizes are compared first: if they
    differ, the leader's log is not read.
    """
    size, digest = theirs
    try:
        return log_bytes(files, directory) == size and log_digest(files, directory) == digest
    except FileNotFoundError:  # a file was removed meanwhile
        return False


def _read(files: Files, path: str, position: int) -> bytes | None:
    """Return at most PIECE_BYTES bytes of a file. Return None if the leader has removed the file during the copy. In
    this case, one of the new blocks that the leader keeps for the follower tells the follower to remove the file, too.
    """
    try:
        with opened(files, path) as fd:
            return read_exactly(files, fd, tuning.PIECE_BYTES, position)
    except FileNotFoundError:
        return None
