"""Bring a follower's transaction log up to date: read the files and send them as blocks of a copy (catching_up.py).

Nothing is sent if the digest of the follower's log shows that it has the same bytes.
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
    """Send the whole log as it is, in blocks of a copy, to a follower for which new blocks are held. Return the number
    of bytes sent.

    theirs: the follower's log (TransactionMirror.describe). If it is the same, the follower is only told so.

    The copy may or may not have bytes that are written meanwhile: later blocks write them again. Raises OSError.
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
    """Whether the log is the follower's. Sizes are compared first, so that a long log is not read in vain."""
    size, digest = theirs
    try:
        return log_bytes(files, directory) == size and log_digest(files, directory) == digest
    except FileNotFoundError:  # a file has just been removed
        return False


def _read(files: Files, path: str, position: int) -> bytes | None:
    """Return a piece of a file; None if the file was removed meanwhile, which a held block also says."""
    try:
        with opened(files, path) as fd:
            return read_exactly(files, fd, tuning.PIECE_BYTES, position)
    except FileNotFoundError:
        return None
