"""Bring a follower's transaction log up to date: read the leader's files and send them as blocks of a copy
(catching_up.py).

No file data are sent if the digest of the follower's log shows that the follower already has the same bytes.
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
    """Send the whole present transaction log to a follower, in blocks of a copy. Meanwhile the leader holds new blocks
    back for this follower. Return the number of bytes sent.

    theirs: size and digest of the follower's log (TransactionMirror.describe). If both logs are the same, only a
    message that says so is sent.

    The copy may or may not contain bytes that are written meanwhile, but later blocks write these bytes again. Raises
    OSError.
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
    """Return whether the leader's log has the same bytes as the follower's. Sizes are compared first, so that a long
    log is not read if the sizes already differ.
    """
    size, digest = theirs
    try:
        return log_bytes(files, directory) == size and log_digest(files, directory) == digest
    except FileNotFoundError:  # a file was removed meanwhile
        return False


def _read(files: Files, path: str, position: int) -> bytes | None:
    """Return a piece of a file. Return None if the file was removed meanwhile. In this case a block that is held back
    tells the follower to remove the file, too.
    """
    try:
        with opened(files, path) as fd:
            return read_exactly(files, fd, tuning.PIECE_BYTES, position)
    except FileNotFoundError:
        return None
