"""Keep messages on this machine until they can be sent or delivered again. The messages are stored in queues in one
SQLite file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from metaq.coordination.runtime.forks import ForkGuard, keep_for_ever
from metaq.coordination.runtime.home import in_home, make_private_directory
from metaq.coordination.runtime.interrupts import Aside, may_be_interrupted
from metaq.protocol.compression import payload_of
from metaq.protocol.errors import LocalStoreError, LocalStoreFull, LocalStoreInUse
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import Attributes, attribute_of, decode_attribute, payload_bytes

from ..settings.config import MAX_LOCAL_MESSAGES, check_number
from .message import Message
from .results import TopicPartition

if TYPE_CHECKING:
    import sqlite3

__all__ = ["LocalMessageStore", "StoredMessage"]

_LAYOUT = 1
"""Version number of the layout of the tables. The number is stored as the SQLite file's `user_version`."""

_TABLES = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- the order of insertion, never given out again
    queue TEXT NOT NULL,
    topic TEXT NOT NULL,
    broker INTEGER,                       -- with partition: NULL if no partition is known
    partition INTEGER,
    offset INTEGER NOT NULL,
    message_id INTEGER NOT NULL,
    flag INTEGER NOT NULL,
    key,                                  -- text, bytes or NULL
    body BLOB NOT NULL
);
CREATE INDEX messages_by_queue ON messages (queue, id);
"""

_INSERT = """INSERT INTO messages (queue, topic, broker, partition, offset, message_id, flag, key, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_PEEK = """SELECT id, topic, broker, partition, offset, message_id, flag, key, body
FROM messages WHERE queue = ? AND id > ? ORDER BY id LIMIT ?"""
_stores: weakref.WeakSet[LocalMessageStore] = weakref.WeakSet()
_Row = tuple[str, int | None, int | None, int, int, int, str | bytes | None, bytes]


class StoredMessage(NamedTuple):
    """A message in the form in which the store keeps it, with everything needed to send it or deliver it again.

    body, flag: as in the message's record at a broker; the body contains the attribute (with tag, keys and properties)
    before the payload. key: the key that determines the message's partition. partition: the partition to which the
    message is to be sent, or from which it was read. offset, id: the offset and id that the message has at a broker;
    until a broker has stored it, offset is -1 and id is 0.
    """

    topic: str
    body: bytes
    flag: int = 0
    partition: TopicPartition | None = None
    key: str | bytes | None = None
    offset: int = -1
    id: int = 0

    @classmethod
    def of(cls, message: Message) -> Self:
        """Return a StoredMessage with the content of a message that a consumer has received."""
        return cls(message.topic, message.body, message.flag, message.partition, None, message.offset, message.id)

    def to_message(self) -> Message:
        """Return the message as a Message, as a consumer gets it. Raises ValueError if the message has no partition,
        because it was not sent yet.
        """
        if self.partition is None:
            raise ValueError(f"a message to topic {self.topic!r} that was not sent yet has no partition")
        return Message(self.partition, self.offset, self.id, self.flag, self.body)

    @property
    def payload(self) -> bytes:
        """The user's payload, decompressed if necessary. Raises PayloadUnreadable if the compressed payload is
        damaged.
        """
        return payload_of(self.body, self.flag)

    @property
    def attributes(self) -> Attributes:
        """The attribute, tag, keys and properties of the message in one object."""
        return decode_attribute(attribute_of(self.body, self.flag), self.flag)


class LocalMessageStore:
    """Named queues of messages in one SQLite file. Any thread may call the methods. Each call that reads or writes the
    file is one transaction.

    After `append` or `remove` has returned, its effect survives the end of the process and of the machine: the
    write-ahead log is synced at every commit (`synchronous=FULL`). Each such call syncs the disk once, so it is faster
    to append many messages in one call. The process that opens the file keeps it locked until it calls `close` or ends,
    because two processes that send the messages of the same queue would send each of them twice. The file does not
    shrink, but the space of removed messages is reused. A forked process can neither use nor close its parent's store:
    every method except close() raises ClientError there.

    Every method raises LocalStoreError if the file cannot be read or written, or was closed.
    """

    def __init__(self, path: str | PathLike[str], *, max_per_queue: int = MAX_LOCAL_MESSAGES) -> None:
        """path: the file. The file and its directory are created if they are missing; `~` is your home directory. While
        the store is open, SQLite keeps two more files beside this file. max_per_queue: largest number of messages in
        one queue.

        Raises LocalStoreInUse if another store has the file open; LocalStoreError if the file is not a store;
        ConfigError.
        """
        check_number("max_per_queue", max_per_queue, unit="messages")
        self._path = in_home(path, "path", "give LocalMessageStore a path that begins with /")
        self._max_per_queue = max_per_queue
        self._lock = threading.Lock()
        self._aside = Aside("metaq-store")
        self._guard = ForkGuard("LocalMessageStore")
        self._db: sqlite3.Connection | None = None
        self._counts: dict[str, int] = {}
        db = self._open()
        try:
            with self._wrapping():
                self._take_over(db)
        except BaseException:
            db.close()
            raise
        self._db = db
        _stores.add(self)

    # --- queues -----------------------------------------------------------------------------------------------------

    def append(self, queue: str, messages: Iterable[StoredMessage]) -> None:
        """Append `messages` to the queue. If an error is raised, none of the messages is appended.

        Raises LocalStoreFull if the queue would then hold more than max_per_queue messages.
        """
        self._guard.check()
        self._aside.do(self._append, queue, [_row(queue, message) for message in messages])

    def _append(self, queue: str, rows: Sequence[Sequence[object]]) -> None:
        with self._transaction() as db:
            held = self._counts.get(queue, 0)
            if held + len(rows) > self._max_per_queue:
                raise LocalStoreFull(
                    f"{self._path}: queue {queue!r} holds {held} messages, and {len(rows)} more are above "
                    f"max_per_queue={self._max_per_queue}: remove some, or allow more"
                )
            db.executemany(_INSERT, rows)
            db.commit()
            if rows:
                self._counts[queue] = held + len(rows)

    def peek(self, queue: str, limit: int, after: int = 0) -> list[tuple[int, StoredMessage]]:
        """Return the oldest messages of the queue, at most `limit`, in the order in which they were appended. Each
        message is returned as a pair (number, message). Pass this number to `remove` to remove the message. The numbers
        grow and are above 0; only messages with a number above `after` are returned.
        """
        check_number("limit", limit, most=INT64_MAX)
        check_number("after", after, may_be_0=True, most=INT64_MAX)
        self._guard.check()
        return [(row[0], _message(row[1:])) for row in self._aside.do(self._peek, queue, limit, after)]

    def _peek(self, queue: str, limit: int, after: int) -> list[Any]:
        with self._transaction() as db:
            return db.execute(_PEEK, (queue, after, limit)).fetchall()

    def remove(self, queue: str, ids: Iterable[int]) -> None:
        """Remove the messages with these ids (the numbers that `peek` has returned); unknown ids are ignored."""
        self._guard.check()
        self._aside.do(self._remove, queue, [(queue, number) for number in ids])

    def _remove(self, queue: str, pairs: Sequence[tuple[str, int]]) -> None:
        with self._transaction() as db:
            gone = db.executemany("DELETE FROM messages WHERE queue = ? AND id = ?", pairs).rowcount if pairs else 0
            db.commit()
            left = self._counts.get(queue, 0) - gone
            if left:
                self._counts[queue] = left
            else:
                self._counts.pop(queue, None)

    def count(self, queue: str) -> int:
        """Return the number of messages in the queue, without reading the file. If an interrupt has ended a call of
        `append` on this thread, `count` first waits until that call's work has ended or failed, so that the result is
        right.
        """
        self._settle()
        return self._counts.get(queue, 0)

    def queues(self) -> list[str]:
        """Return the names of the non-empty queues (`count` is above 0), sorted."""
        self._guard.check()
        self._settle()
        with self._lock:
            return sorted(self._counts)

    def _settle(self) -> None:
        """If an interrupt has ended a call that this thread has made, wait until the background thread has finished the
        call's work.
        """
        if may_be_interrupted() and self._aside.is_behind:
            self._aside.do(_nothing)

    def close(self) -> None:
        """Close the file and release its lock. Further calls do nothing."""
        if not self._guard.is_elsewhere:
            self._aside.do(self._close)

    def _close(self) -> None:
        with self._lock:
            db, self._db = self._db, None
            if db is not None:
                with self._wrapping():
                    db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the file ---------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        import sqlite3  # not imported by a client without a store

        try:
            make_private_directory(self._path.parent)
            # Create the file. An existing file is not opened here, because closing it again would drop another store's
            # lock.
            self._path.touch(0o600)
            return sqlite3.connect(self._path, timeout=0, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise LocalStoreError(f"{self._path} cannot be opened: {error}") from error

    def _take_over(self, db: sqlite3.Connection) -> None:
        """Lock the file for this store, create the tables if the file is new, and count its messages."""
        # This comes before the first access, so that no other process can share the write-ahead log.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN EXCLUSIVE")
        layout = db.execute("PRAGMA user_version").fetchone()[0]
        if layout == 0:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_LAYOUT}")
        elif layout != _LAYOUT:
            raise LocalStoreError(
                f"{self._path} has layout {layout}, this version knows {_LAYOUT}: choose another file"
            )
        self._counts = dict(db.execute("SELECT queue, count(*) FROM messages GROUP BY queue").fetchall())
        db.commit()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the `with` block as one transaction of the database. Only threads that cannot be interrupted may call
        this: an interrupt at the beginning would leave the lock locked, and one after the commit would make the counts
        of messages wrong.
        """
        with self._lock:
            if self._db is None:
                raise LocalStoreError(f"{self._path}: this store is closed")
            with self._wrapping():
                try:
                    yield self._db
                except BaseException:
                    self._db.rollback()
                    raise

    @contextlib.contextmanager
    def _wrapping(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise LocalStoreInUse(
                    f"{self._path} is open in another process or store: give each its own file"
                ) from error
            raise LocalStoreError(f"{self._path}: {error}") from error


def _forked() -> None:
    """After a fork, ensure that the child process never closes the database objects of its parent. SQLite in the child
    process wrongly treats the file as locked by the child. If the child closed the database, for example by garbage
    collection, SQLite would delete the write-ahead log into which the parent still writes.
    """
    for store in _stores:
        keep_for_ever(store._db)


os.register_at_fork(after_in_child=_forked)


def _nothing() -> None:
    """Do nothing. A caller appends this function to a queue of actions and waits for its end: then all actions that
    were queued before it have ended, too.
    """


def _row(queue: str, message: StoredMessage) -> Sequence[object]:
    broker, number = (None, None) if message.partition is None else message.partition[1:]
    topic, body, flag, _, key, offset, identity = message
    return queue, topic, broker, number, offset, identity, flag, key, payload_bytes(body)


def _message(row: _Row) -> StoredMessage:
    topic, broker, number, offset, identity, flag, key, body = row
    partition = None if broker is None or number is None else TopicPartition(topic, broker, number)
    return StoredMessage(topic, body, flag, partition, key, offset, identity)
