"""The audit log: who was refused what, who has logged in, what operators did, and which users and grants have changed.

`Audit` decides which entries there are; it does no I/O. `AuditFile` writes them on a thread of its own, so that the
reactor thread never waits for the disk. security.md describes the entries.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from metaq.protocol.access import AccessOperation, Need, Permissions, Principal, Quota, User
from metaq.protocol.errors import ConfigError
from metaq.protocol.frames import Frame
from metaq.protocol.put_run import PutRun
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import Get, OffsetQuery, Put, Stats, Sync, TransactionCommand

if TYPE_CHECKING:
    from ..configuration.security_ini import AuditSettings  # at run time it imports ssl: only if configured

__all__ = ["AUDIT_SECONDS", "Audit", "AuditDecision", "AuditFile", "is_of_operators"]

_log = logging.getLogger(__name__)

AUDIT_SECONDS = 60.0
"""Refusals of the same kind have at most one entry in this time."""
_MAX_NEEDS = 100
"""If one client is refused more than this number of different needs within AUDIT_SECONDS, the others are counted
together, because a client may choose any number of names.
"""
_MAX_COUNTED = 10_000
"""Largest number of different kinds of refusals that are counted at the same time; the others are counted together."""
_MAX_CHARACTERS = 600
"""Longer texts, which a client may have chosen, are cut."""
_MAX_QUEUED_BYTES = 8 << 20
_OTHERS = "*"
_FILE_MODE = 0o600


class AuditDecision(StrEnum):
    """What an entry says about a request or a login."""

    PERMITTED = "permitted"
    REFUSED = "refused"
    WOULD_BE_REFUSED = "would-be-refused"
    """The request was served, because the mode is OBSERVE."""
    CHANGED = "changed"
    """The entry is about a change that the broker has read in ZooKeeper."""


class _Entry(NamedTuple):
    principal: str
    address: str
    need: str
    request: str
    decision: AuditDecision
    why: str

    def line(self, now_ms: float, count: int) -> str:
        """The entry as JSON. count: how many events of this kind the entry stands for."""
        time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {name: text[:_MAX_CHARACTERS] for name, text in self._asdict().items()}
        return json.dumps({"time": time, **fields, "count": count})


class _Counted:
    """What was counted since the last entry of one kind."""

    __slots__ = ("entry", "number", "since", "source")

    def __init__(self, entry: _Entry, source: Hashable, since: float) -> None:
        self.entry = entry
        self.source = source
        self.since = since
        self.number = 0


def is_of_operators(need: Need, principal: Principal) -> bool:
    """Return whether a request with this need is an operator's. What brokers ask of each other is none if it does not
    come from a user.
    """
    operation = need.operation
    return operation is AccessOperation.ADMIN or (
        operation is AccessOperation.COOPERATE and principal.kind in ("user", "local")
    )


class Audit:
    """Decides which entries the audit log gets. Used only on the reactor thread."""

    def __init__(self, write: Callable[[str], None], now_ms: Callable[[], float], seconds: Callable[[], float]) -> None:
        """write: takes one line without its end, and does not block. now_ms: returns the time in milliseconds of the
        Unix epoch. seconds: returns the reactor's time.
        """
        self._write = write
        self._now_ms = now_ms
        self._seconds = seconds
        self._counted: dict[Hashable, _Counted] = {}  # the oldest period first
        self._needs: Counter[Hashable] = Counter()  # how many of these each source has

    # --- events -------------------------------------------------------------------------------------------------------

    def refused(self, principal: Principal, host: str, need: Need, request: object, why: str, would_be: bool) -> None:
        """Note that a request was refused, or with `would_be` that it will be as soon as grants are enforced. request:
        a request, or its name.
        """
        text = str(need)[:_MAX_CHARACTERS]
        decision = AuditDecision.WOULD_BE_REFUSED if would_be else AuditDecision.REFUSED
        entry = _Entry(str(principal), host, text, _name(request), decision, why)
        self._few((principal, host), (decision, text), entry)

    def quota_refused(self, user: str, host: str, quota: Quota, why: str) -> None:
        """Note that a request of this user was refused because of a quota. host: the client's address."""
        entry = _Entry(str(Principal("user", user)), host, f"quota {quota}", "", AuditDecision.REFUSED, why)
        self._few(("quota", user, host), quota, entry)

    def served(self, principal: Principal, host: str, need: Need, request: object, why_not: str | None) -> None:
        """Note that the broker serves an operator's request. why_not: why it would be refused if grants were enforced;
        None if it would not be.
        """
        decision = AuditDecision.PERMITTED if why_not is None else AuditDecision.WOULD_BE_REFUSED
        self._enter(_Entry(str(principal), host, str(need), _name(request), decision, why_not or ""))

    def logged_in(self, name: str, host: str, how: str, each: bool) -> None:
        """Note that a user has logged in. how: the mechanism. each: whether each login gets an entry. If not, the
        logins of the user at this address are counted like refusals, because an HTTP client logs in by each request.
        """
        entry = _Entry(str(Principal("user", name)), host, "", "login", AuditDecision.PERMITTED, how)
        if each:
            self._enter(entry)
        else:
            self._few(("login", host), name, entry)

    def login_failed(self, host: str, why: str) -> None:
        """Note that somebody at this address could not log in."""
        entry = _Entry("", host, "", "login", AuditDecision.REFUSED, why)
        self._few(("failed login", host), "", entry)

    def changed(self, known: Permissions | None, read: Permissions | None) -> None:
        """Note how the users, the grants and the mode differ from those that were known before. known: None if nothing
        was known. read: None if ZooKeeper has lost them.
        """
        for request, text in _changes(Permissions() if known is None else known, read):
            self._enter(_Entry("", "", "", request, AuditDecision.CHANGED, text))

    # --- few entries for many events ----------------------------------------------------------------------------------

    def _few(self, source: Hashable, kind: Hashable, entry: _Entry) -> None:
        """Write an entry, or only count it if there was one of this source and kind lately."""
        key: Hashable = (source, kind)
        if key not in self._counted:
            if len(self._counted) >= _MAX_COUNTED:
                source = key = _OTHERS
                why = f"more than {_MAX_COUNTED} kinds of refusals and logins in {AUDIT_SECONDS:g} seconds"
                entry = _Entry(_OTHERS, _OTHERS, _OTHERS, _OTHERS, entry.decision, why)
            elif self._needs[source] >= _MAX_NEEDS:
                key = (source, _OTHERS)
                why = f"more than {_MAX_NEEDS} different needs of this client in {AUDIT_SECONDS:g} seconds"
                entry = entry._replace(need=_OTHERS, request=_OTHERS, why=why)
        counted = self._counted.get(key)
        if counted is not None:
            counted.number += 1
            return
        self._counted[key] = _Counted(entry, source, self._seconds())
        self._needs[source] += 1
        self._enter(entry)

    def tick(self) -> None:
        """Write the entries that are due. To be called about once a second."""
        self._end_periods(self._seconds() - AUDIT_SECONDS)

    def close(self) -> None:
        """Write what was counted and has no entry yet."""
        self._end_periods(self._seconds())

    def _end_periods(self, latest: float) -> None:
        """End each period that began at `latest` or earlier. If something was counted, a new one begins."""
        ended = []
        for key, counted in self._counted.items():
            if counted.since > latest:
                break
            ended.append(key)
        for key in ended:
            counted = self._counted.pop(key)
            if counted.number:
                self._enter(counted.entry, counted.number)
                counted.number, counted.since = 0, self._seconds()
                self._counted[key] = counted
                continue
            self._needs[counted.source] -= 1
            if not self._needs[counted.source]:
                del self._needs[counted.source]

    def _enter(self, entry: _Entry, count: int = 1) -> None:
        self._write(entry.line(self._now_ms(), count))


_COMMANDS = {
    Put: "put",
    PutRun: "put",
    Get: "get",
    OffsetQuery: "offset",
    Stats: "stats",
    Sync: "sync",
    TransactionCommand: "transaction",
}
_CODES: dict[int, str] = {code: code.name for code in RequestCode}


def _name(request: object) -> str:
    """Return the name of a request: that of the frame's code or of the text command, or what the request itself says in
    `audit_name`.
    """
    if isinstance(request, str):
        return request
    if type(request) is Frame:
        return _CODES.get(request.code, f"code {request.code}")
    command = _COMMANDS.get(type(request))
    return str(getattr(request, "audit_name", type(request).__name__.upper())) if command is None else command


def _changes(known: Permissions, read: Permissions | None) -> Iterator[tuple[str, str]]:
    """Yield what has changed and how: names of users and grants, but no verifiers."""
    if read is None:
        yield "users", "ZooKeeper has no users, grants and mode any more: those that were read last stay valid"
        return
    if read.mode is not known.mode:
        yield "mode", f"the mode {known.mode} has become {read.mode}"
    for name in sorted(known.users.keys() | read.users.keys()):
        before, after = known.users.get(name), read.users.get(name)
        if after is None:
            yield "users", f"the user {name} is gone"
        else:
            if before is None:
                yield "users", f"the user {name} is new and {_expiry(after)}"
            elif before.expires_ms != after.expires_ms:
                yield "users", f"the user {name} now {_expiry(after)}"
            if before is not None and dict(before.verifiers) != dict(after.verifiers):
                yield "users", f"the user {name} has another password"
            had = set() if before is None else set(map(str, before.access.grants))
            has = set(map(str, after.access.grants))
            for grant in sorted(has - had):
                yield "grants", f"the user {name} has got the grant: {grant}"
            for grant in sorted(had - has):
                yield "grants", f"the user {name} has lost the grant: {grant}"


def _expiry(user: User) -> str:
    if user.expires_ms is None:
        return "never expires"
    try:
        return f"expires at {datetime.fromtimestamp(user.expires_ms / 1000, UTC).isoformat(timespec='seconds')}"
    except (ValueError, OverflowError, OSError):  # a year that datetime does not know
        return f"expires {user.expires_ms} ms after the beginning of 1970"


# --- the file ---------------------------------------------------------------------------------------------------------


class _ByteQueue(queue.Queue[Any]):
    """A queue whose size is the bytes of the lines that wait in it, because lines may be long."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _qsize(self) -> int:
        return self._bytes

    def _put(self, item: Any) -> None:
        super()._put(item)
        self._bytes += _size(item)

    def _get(self) -> Any:
        item = super()._get()
        self._bytes -= _size(item)
        return item


def _size(item: Any) -> int:
    return len(item.msg) + 1 if isinstance(item, logging.LogRecord) else 1


class _Sender(QueueHandler):
    """Puts lines into the queue, and counts those for which it has no room."""

    missing = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.missing += 1


class _Listener(QueueListener):
    def enqueue_sentinel(self) -> None:
        """Tell the thread to end when it has written everything. Waits for room in the queue, unlike the inherited
        method, which would raise an exception.
        """
        cast(_ByteQueue, self.queue).put(None)


class _Files(RotatingFileHandler):
    """Writes the lines, in files that only their owner may read."""

    lost = 0
    """How many lines could not be written since the last one that could."""

    def _open(self) -> TextIOWrapper:
        fd = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
        os.fchmod(fd, _FILE_MODE)  # a file that was there already
        return cast(TextIOWrapper, open(fd, self.mode, encoding=self.encoding))

    def emit(self, record: logging.LogRecord) -> None:
        lost = self.lost
        if lost:
            super().emit(_missing(lost, "the disk did not take them"))
            if self.lost > lost:
                self.lost = lost + _stands_for(record)
                return
            self.lost = 0
            _log.warning("the audit log %s is written again: %d entries are missing", self.baseFilename, lost)
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a line that could not be written, and log the first of them. The next line opens the file again."""
        if not self.lost:
            _log.error("the audit log %s cannot be written: %s", self.baseFilename, sys.exception())
        self.lost += _stands_for(record)
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):  # it tries to write once more; the failure is logged already
                stream.close()


def _record(line: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": line})


def _missing(count: int, why: str) -> logging.LogRecord:
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = _record(json.dumps({"time": time, "missing": count, "why": why}))
    record.missing = count
    return record


def _stands_for(record: logging.LogRecord) -> int:
    """Return how many entries are missing if this line is: more than one if the line itself says what is missing."""
    count: int = getattr(record, "missing", 1)
    return count


class AuditFile:
    """The files of the audit log, and the thread that writes them. If the disk is too slow, entries are left out and
    counted; nothing waits for the disk. Used only on the reactor thread.
    """

    def __init__(self, settings: AuditSettings, max_queued_bytes: int = _MAX_QUEUED_BYTES) -> None:
        """Open the file, and start the thread. Raises ConfigError if the file cannot be opened."""
        try:
            self._files = _Files(
                settings.file, maxBytes=settings.max_bytes, backupCount=settings.files - 1, encoding="ascii"
            )
        except OSError as error:
            raise ConfigError("[audit] file", settings.file, f"cannot be written: {error.strerror}") from error
        self._queue = _ByteQueue(max_queued_bytes)
        self._sender = _Sender(self._queue)
        self._listener = _Listener(self._queue, self._files)
        self._listener.start()

    def write(self, line: str) -> None:
        """Write a line soon; if too many lines wait already, only count it."""
        self.tick()
        if self._sender.missing:
            self._sender.missing += 1
        else:
            self._sender.enqueue(_record(line))

    def tick(self) -> None:
        """If entries were left out and there is room now, write how many. To be called about once a second."""
        missing = self._sender.missing
        if missing:
            self._sender.missing = 0
            self._sender.enqueue(_missing(missing, "the disk was too slow for them"))
            if self._sender.missing:
                self._sender.missing = missing

    def close(self) -> None:
        """Write what waits, and close the file. This may wait for the disk."""
        missing, self._sender.missing = self._sender.missing, 0
        if missing:
            self._queue.put(_missing(missing, "the disk was too slow for them"))
        self._listener.stop()
        self._files.close()
