"""A broker that keeps its log in memory, and a cluster without ZooKeeper.

`FakeBroker` speaks both protocols through the real codecs on a loopback port, from a thread of its own. It keeps the
promises a client relies on and no others: no files, no ZooKeeper, no retention.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from metaq.client.connection import Endpoint
from metaq.client.metadata import TopicView
from metaq.client.values import TopicPartition
from metaq.protocol.errors import RemoteProtocolError, TransactionRefused
from metaq.protocol.frames import RESPONSE, Frame, encode_frame
from metaq.protocol.limits import FRAMES_MARK, INT64_MAX, MANY_MARK, MAX_FRAME_BYTES
from metaq.protocol.message_id import counter_at, message_id, store_time_ms
from metaq.protocol.pulls import NOT_DAMAGED, PullReply, PullRequest, encode_runs, encode_sizes
from metaq.protocol.record import (
    HEADER,
    HEADER_BYTES,
    Buffer,
    RecordHeader,
    checksum,
    is_blank,
    iter_headers,
    tag_hash,
    tag_hash_of_body,
)
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByTimeRequest,
    StatsRequest,
    TransactionRequest,
)
from metaq.protocol.requests import Request, RequestReader, one_by_one
from metaq.protocol.send_many import SendManyReply, SendManyRequest, encode_rows, split_many
from metaq.protocol.sends import SendBatchRequest, SendReply, SendRequest, split_batch
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import (
    Get,
    OffsetQuery,
    Put,
    Quit,
    Stats,
    Transaction,
    TransactionType,
    Version,
    encode_result,
    encode_value_line,
)

from .transactions import FakeTransactions

__all__ = ["FakeBroker", "FakeCluster", "MemoryLog"]


@dataclass(slots=True)
class MemoryLog:
    """One partition: its records back to back, and where each begins. `first` is the offset of data[0]."""

    data: bytearray = field(default_factory=bytearray)
    starts: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    first: int = 0
    closed: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.data)

    def append(self, body: Buffer, identity: int, flag: int) -> int:
        """Store one record, return its offset."""
        offset = self.end
        self.starts.append(offset)
        self.ids.append(identity)
        self.tags.append(tag_hash_of_body(body, flag))
        self.data += HEADER.pack(len(body), checksum(body), identity, flag)
        self.data += body
        return offset

    def drop_before(self, offset: int) -> None:
        """Forget the records in front of `offset`, which must begin a record (what retention does)."""
        count = int(np.searchsorted(self.starts, offset))
        del self.data[: offset - self.first]
        del self.starts[:count], self.ids[:count], self.tags[:count]
        self.first = offset

    def before(self, offset: int) -> int:
        """Records that lie wholly in front of `offset`."""
        if offset >= self.end:
            return len(self.starts)
        return max(0, int(np.searchsorted(self.starts, offset, side="right")) - 1)

    def sizes(self, offset: int, max_bytes: int) -> list[int]:
        """Of the records from `offset` on that fit, as an index knows them."""
        ends = [*self.starts[1:], self.end]
        known = zip(self.starts, ends, strict=False)  # one end more than nothing
        return [end - start for start, end in known if start >= offset and end <= offset + max_bytes]

    def damage_at(self, offset: int) -> int | None:
        """Where the next record starts if the one at `offset` is damaged."""
        if offset not in self.starts:
            return None
        (size, *_) = self.sizes(offset, len(self.data))
        record = bytes(self.data[offset - self.first : offset - self.first + size])
        header = HEADER.unpack_from(record)
        body = record[HEADER_BYTES:]
        good = header[0] == len(body) and header[1] == checksum(body) and not is_blank(*header[:3])
        return None if good else offset + size

    def slice(self, offset: int, max_bytes: int, whole_first: bool = False) -> bytes:
        start = offset - self.first
        if whole_first and offset in self.starts:
            max_bytes = max(max_bytes, self.sizes(offset, len(self.data))[0])
        return bytes(self.data[start : start + max_bytes])


def _checked(records: memoryview, sizes: list[int]) -> list[RecordHeader]:
    """The headers of a batch. Raises RemoteProtocolError as a broker refuses what a client must not send."""
    found = list(iter_headers(records, stored=False))
    if [each.length + HEADER_BYTES for each in found] != sizes:
        raise RemoteProtocolError("record sizes do not match the records")
    if any(checksum(records[each.start + HEADER_BYTES : each.end]) != each.checksum or each.id for each in found):
        raise RemoteProtocolError("a record has a wrong checksum, or an id")
    return found


def _append(log: MemoryLog, records: memoryview, found: list[RecordHeader], ids: list[int]) -> int:
    start = log.end
    for each, identity in zip(found, ids, strict=True):
        log.append(records[each.start + HEADER_BYTES : each.end], identity, each.flag)
    return start


@dataclass(slots=True, eq=False)
class _Session:
    """One accepted connection."""

    sock: socket.socket
    reader: RequestReader = field(default_factory=RequestReader)
    out: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, eq=False)
class _Parked:
    """A pull that waits for data."""

    session: _Session
    opaque: int
    request: PullRequest
    deadline: float


class FakeBroker:
    """A broker in a thread. Start it as a context manager; every attribute below may be changed while it runs.

    speaks_frames: False = it answers as a Java broker does. takes_many: False = as our first ones, which did not know
    SEND_MANY. silent: it reads and never answers (a hung broker).
    refuse: called with each request; a number returned is the status (text) or response code (frame) it is refused
    with. max_transfer_bytes: most that it answers a `get` with, as maxTransferSize. sends, pulls, connections: how many
    were taken. transactions: those that are open.
    """

    def __init__(
        self,
        topics: Mapping[str, int],
        broker_id: int = 0,
        *,
        speaks_frames: bool = True,
        port: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.broker_id = broker_id
        self.topics = dict(topics)
        self.speaks_frames = speaks_frames
        self.takes_many = True
        self.silent = False
        self.max_transfer_bytes = MAX_FRAME_BYTES
        self.refuse: Callable[[Request], int | None] = lambda request: None
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        self.sends = self.pulls = self.connections = 0
        self.requests: list[str] = []
        self.transactions = FakeTransactions()
        self._clock = clock
        self._ids = itertools.count(counter_at(int(clock() * 1000)))
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.setblocking(False)
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_receive, self._wake_send = socket.socketpair()
        self._selector.register(self._wake_receive, selectors.EVENT_READ)
        self._sessions: dict[socket.socket, _Session] = {}
        self._parked: list[_Parked] = []
        self._calls: list[Callable[[], None]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"fake-broker-{broker_id}", daemon=True)

    # --- for tests (any thread) -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and every connection, as a killed process does. Idempotent."""
        self._stopped = True
        self._wake()
        self._thread.join(5)

    def drop_connections(self) -> None:
        """Close every connection but keep listening."""

        def drop_all() -> None:
            for session in list(self._sessions.values()):
                self._drop(session)

        self._run_there(drop_all)

    def append(self, topic: str, partition: int, *payloads: Buffer, flag: int = 0) -> list[int]:
        """Store messages directly; return their offsets. Parked pulls are answered."""
        offsets: list[int] = []
        log = self._log(topic, partition)
        self._run_there(lambda: offsets.extend(log.append(body, self._new_id(), flag) for body in payloads))
        return offsets

    def append_damaged(self, topic: str, partition: int, payload: Buffer) -> None:
        """Store a message whose last byte is not what its checksum says. Parked pulls are answered."""
        log = self._log(topic, partition)

        def store() -> None:
            log.append(payload, self._new_id(), 0)
            log.data[-1] ^= 1

        self._run_there(store)

    def log(self, topic: str, partition: int) -> MemoryLog:
        """The partition's log (made if it is not there yet)."""
        return self._log(topic, partition)

    def bodies(self, topic: str, partition: int) -> list[bytes]:
        """The bodies stored in a partition, in order."""
        log = self._log(topic, partition)
        data = bytes(log.data)
        return [data[each.start + HEADER_BYTES : each.end] for each in iter_headers(data)]

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, self.broker_id, p) for topic, n in self.topics.items() for p in range(n)]

    # --- its thread -------------------------------------------------------------------------------------------------

    def _run_there(self, call: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._calls.append(run)
        self._wake()
        if not done.wait(5):
            raise TimeoutError("the fake broker does not run")

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # already stopped
            self._wake_send.send(b"!")

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._turn()
        finally:
            for session in list(self._sessions.values()):
                session.sock.close()
            self._listener.close()
            self._wake_receive.close()
            self._wake_send.close()
            self._selector.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_receive:
                self._wake_receive.recv(4096)
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._sessions:
                self._serve(self._sessions[key.fileobj], events)
        while self._calls:
            self._calls.pop(0)()
        self._answer_parked()

    def _patience(self) -> float | None:
        if not self._parked:
            return None
        return max(0.0, min(parked.deadline for parked in self._parked) - time.monotonic())

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sessions[sock] = _Session(sock)
        self._selector.register(sock, selectors.EVENT_READ)
        self.connections += 1

    def _drop(self, session: _Session) -> None:
        if self._sessions.pop(session.sock, None) is not None:
            self._selector.unregister(session.sock)
            session.sock.close()
            self._parked = [parked for parked in self._parked if parked.session is not session]
            self.transactions.drop_local(session)

    def _serve(self, session: _Session, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                data = session.sock.recv(1 << 20)
                if not data:
                    self._drop(session)
                    return
                for request in one_by_one(session.reader.receive(data)):
                    if isinstance(request, Quit):
                        self._drop(session)
                        return
                    self._take(session, request)
                if session.reader.failure is not None:
                    self._drop(session)
                    return
            self._flush(session)
        except OSError:  # the peer is gone
            self._drop(session)

    def _flush(self, session: _Session) -> None:
        if session.out:
            with contextlib.suppress(BlockingIOError):
                sent = session.sock.send(session.out)
                del session.out[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.out else 0)
        self._selector.modify(session.sock, wanted)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _take(self, session: _Session, request: Request) -> None:
        self.requests.append(type(request).__name__ if not isinstance(request, Frame) else f"frame {request.code}")
        if self.silent:
            return
        refused = self.refuse(request)
        if isinstance(request, Frame):
            if refused is not None:
                self._reply(session, request.opaque, refused, {}, remark="refused by the test")
                return
            try:
                self._frame(session, request)
            except RemoteProtocolError as error:
                self._reply(session, request.opaque, ResponseCode.MESSAGE_ILLEGAL, {}, remark=str(error))
            except TransactionRefused as error:
                self._reply(session, request.opaque, ResponseCode.TRANSACTION_REFUSED, {}, remark=str(error))
        elif refused is not None and isinstance(request, (Put, Get, OffsetQuery, Stats, Version, Transaction)):
            session.out += encode_result(refused, "refused by the test", request.opaque)
        else:
            self._text(session, request)

    def _reply(
        self,
        session: _Session,
        opaque: int,
        code: int,
        ext: Mapping[str, str | int],
        body: Buffer = b"",
        remark: str = "",
    ) -> None:
        session.out += encode_frame(code, opaque, ext, len(body), flag=RESPONSE, remark=remark)
        session.out += body

    def _new_id(self) -> int:
        return message_id(next(self._ids), self.broker_id)

    def _log(self, topic: str, partition: int) -> MemoryLog:
        return self.logs.setdefault((topic, partition), MemoryLog())

    def _has(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self.topics.get(topic, 0)

    def _choose(self, topic: str, partition: int) -> int:
        """The partition that was named, or any one for -1."""
        return partition if partition >= 0 else self.sends % max(1, self.topics.get(topic, 0))

    def _frame(self, session: _Session, frame: Frame) -> None:
        handler = {
            RequestCode.SEND: self._send,
            RequestCode.SEND_BATCH: self._send_batch,
            RequestCode.SEND_MANY: self._send_many,
            RequestCode.PULL: self._pull,
            RequestCode.MIN_OFFSET: self._bounds,
            RequestCode.MAX_OFFSET: self._bounds,
            RequestCode.SEARCH_OFFSET_BY_TIME: self._search,
            RequestCode.MESSAGE_COUNTS: self._counts,
            RequestCode.HEARTBEAT: self._heartbeat,
            RequestCode.STATS: self._stats,
            RequestCode.TRANSACTION: self._transaction,
        }.get(RequestCode(frame.code))
        if handler is None:
            self._reply(session, frame.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, {})
        else:
            handler(session, frame)

    def _heartbeat(self, session: _Session, frame: Frame) -> None:
        self._reply(session, frame.opaque, ResponseCode.SUCCESS, {})

    def _stats(self, session: _Session, frame: Frame) -> None:
        item = StatsRequest.from_ext(frame.ext).item
        self._reply(session, frame.opaque, ResponseCode.SUCCESS, {}, self._stats_text(item).encode())

    def _stats_text(self, item: str) -> str:
        return f"STATS\r\nitem {item}\r\nbroker_id {self.broker_id}\r\nEND\r\n"

    def _refused_partition(self, session: _Session, opaque: int, topic: str, partition: int) -> bool:
        if not self._has(topic, partition):
            self._reply(session, opaque, ResponseCode.TOPIC_NOT_EXIST, {}, remark=f"no {topic}-{partition} here")
            return True
        if self._log(topic, partition).closed:
            self._reply(session, opaque, ResponseCode.NO_PERMISSION, {}, remark="closed")
            return True
        return False

    def _send(self, session: _Session, frame: Frame) -> None:
        request = SendRequest.from_ext(frame.ext)
        request = request._replace(partition=self._choose(request.topic, request.partition))
        if self._refused_partition(session, frame.opaque, request.topic, request.partition):
            return
        if request.checksum not in (-1, checksum(frame.body)):
            self._reply(session, frame.opaque, ResponseCode.MESSAGE_ILLEGAL, {}, remark="checksum")
            return
        self.sends += 1
        identity = self._new_id()
        log = self._log(request.topic, request.partition)
        offset = self._store(session, request.tx_key, lambda: log.append(frame.body, identity, request.flag))
        reply = SendReply(identity, request.partition, offset)
        self._reply(session, frame.opaque, ResponseCode.SUCCESS, reply.to_ext())

    def _send_batch(self, session: _Session, frame: Frame) -> None:
        request = SendBatchRequest.from_ext(frame.ext)
        request = request._replace(partition=self._choose(request.topic, request.partition))
        if self._refused_partition(session, frame.opaque, request.topic, request.partition):
            return
        sizes, records = split_batch(frame.body, request.records)
        found = _checked(records, sizes.tolist())
        log = self._log(request.topic, request.partition)
        self.sends += 1
        ids = [self._new_id() for _ in found]
        offset = self._store(session, request.tx_key, lambda: _append(log, records, found, ids))
        reply = SendReply(ids[0], request.partition, offset)
        self._reply(session, frame.opaque, ResponseCode.SUCCESS, reply.to_ext())

    def _send_many(self, session: _Session, frame: Frame) -> None:
        request = SendManyRequest.from_ext(frame.ext)
        parts = split_many(frame.body, request)
        found = _checked(parts.records, parts.sizes.tolist())
        self.sends += 1
        rows: list[tuple[int, int, int, int]] = []
        for topic, number, count in zip(parts.topics, parts.partitions, parts.counts.tolist(), strict=True):
            name = request.topics[topic]
            partition = self._choose(name, number)
            here, found = found[:count], found[count:]
            if not self._has(name, partition):
                rows.append((0, 0, partition, ResponseCode.TOPIC_NOT_EXIST))
            elif self._log(name, partition).closed:
                rows.append((0, 0, partition, ResponseCode.NO_PERMISSION))
            else:
                ids = [self._new_id() for _ in here]
                offset = _append(self._log(name, partition), parts.records, here, ids)
                rows.append((ids[0], offset, partition, ResponseCode.SUCCESS))
        first_ids, offsets, partitions, codes = zip(*rows, strict=True)
        body = encode_rows(np.array(first_ids), list(offsets), list(partitions), list(codes))
        remark = "refused" if any(codes) else ""
        self._reply(session, frame.opaque, ResponseCode.SUCCESS, SendManyReply(len(rows)).to_ext(), body, remark)

    def _store(self, session: _Session, tx_key: str | None, append: Callable[[], int]) -> int:
        """Append now, or at the commit of a transaction; the offset."""
        if tx_key is None:
            return append()
        self.transactions.put(tx_key, session, append)
        return -1

    def _transaction(self, session: _Session, frame: Frame) -> None:
        request = TransactionRequest.from_ext(frame.ext)
        kind = TransactionType(request.type)
        text = self.transactions.verb(kind, request.tx_key, session, request.qualifier)
        self._reply(session, frame.opaque, ResponseCode.SUCCESS, {}, text.encode())

    # --- pulls ------------------------------------------------------------------------------------------------------

    def _pull(self, session: _Session, frame: Frame) -> None:
        request = PullRequest.from_ext(frame.ext)
        if self._refused_partition(session, frame.opaque, request.topic, request.partition):
            return
        self.pulls += 1
        if not self._answer_pull(session, frame.opaque, request, last=request.wait_ms == 0):
            deadline = time.monotonic() + request.wait_ms / 1000
            self._parked.append(_Parked(session, frame.opaque, request, deadline))

    def _answer_parked(self) -> None:
        now = time.monotonic()
        waiting, self._parked = self._parked, []
        for parked in waiting:
            if self._answer_pull(parked.session, parked.opaque, parked.request, last=parked.deadline <= now):
                self._flush(parked.session)
            else:
                self._parked.append(parked)

    def _answer_pull(self, session: _Session, opaque: int, request: PullRequest, last: bool) -> bool:
        """Answer if there is something to say, or it is the last chance; True if answered."""
        log = self._log(request.topic, request.partition)
        offset, code, body, runs, sizes = request.offset, ResponseCode.SUCCESS, b"", 0, []
        damaged_from = NOT_DAMAGED
        if not log.first <= offset <= log.end:
            offset = log.first if offset < log.first else log.end
            code = ResponseCode.PULL_OFFSET_MOVED
        elif request.verify and (damage := log.damage_at(offset)) is not None:
            damaged_from, offset = offset, damage
            code = ResponseCode.PULL_OFFSET_MOVED
        elif request.tags:
            offset, body, runs = self._filtered(log, request)
            code = ResponseCode.SUCCESS if runs else ResponseCode.PULL_NOT_FOUND
        else:
            body = log.slice(offset, request.max_bytes, whole_first=True)
            sizes = log.sizes(offset, len(body))
            body = body[: sum(sizes)]
            offset += len(body)
            code = ResponseCode.SUCCESS if body else ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_NOT_FOUND and not last:
            return False
        behind = len(log.starts) - log.before(offset)
        records = len(sizes) if request.sizes else 0
        reply = PullReply(offset, log.first, log.end, behind, request.sequence, runs, records, damaged_from)
        table = encode_sizes(np.array(sizes, np.int32)) if records else b""
        self._reply(session, opaque, code, reply.to_ext(), table + body)
        return True

    def _filtered(self, log: MemoryLog, request: PullRequest) -> tuple[int, bytes, int]:
        wanted = {tag_hash(tag) for tag in request.tags}
        runs: list[tuple[int, int]] = []
        bodies: list[bytes] = []
        ends = [*log.starts[1:], log.end]
        for start, end, tag in zip(log.starts, ends, log.tags, strict=False):
            if start >= request.offset and tag in wanted:
                runs.append((start, end - start))
                bodies.append(bytes(log.data[start - log.first : end - log.first]))
        return log.end, encode_runs(runs) + b"".join(bodies), len(runs)

    # --- offsets ----------------------------------------------------------------------------------------------------

    def _bounds(self, session: _Session, frame: Frame) -> None:
        request = PartitionRequest.from_ext(frame.ext)
        if not self._refused_partition(session, frame.opaque, *request):
            log = self._log(*request)
            offset = log.first if frame.code == RequestCode.MIN_OFFSET else log.end
            self._reply(session, frame.opaque, ResponseCode.SUCCESS, OffsetReply(offset).to_ext())

    def _search(self, session: _Session, frame: Frame) -> None:
        request = SearchByTimeRequest.from_ext(frame.ext)
        if not self._refused_partition(session, frame.opaque, request.topic, request.partition):
            log = self._log(request.topic, request.partition)
            later = (s for s, i in zip(log.starts, log.ids, strict=True) if (store_time_ms(i) or 0) >= request.time_ms)
            self._reply(session, frame.opaque, ResponseCode.SUCCESS, OffsetReply(next(later, log.end)).to_ext())

    def _counts(self, session: _Session, frame: Frame) -> None:
        request = MessageCountsRequest.from_ext(frame.ext)
        if not self._refused_partition(session, frame.opaque, request.topic, request.partition):
            log = self._log(request.topic, request.partition)
            reply = MessageCountsReply(len(log.starts), log.before(request.offset), log.first, log.end)
            self._reply(session, frame.opaque, ResponseCode.SUCCESS, reply.to_ext())

    # --- text -------------------------------------------------------------------------------------------------------

    def _text(self, session: _Session, request: Request) -> None:
        if isinstance(request, Version):
            ours = f"0.1 {MANY_MARK} {FRAMES_MARK}" if self.takes_many else f"0.1 {FRAMES_MARK}"
            version = ours if self.speaks_frames else "1.4.6.2"
            session.out += encode_result(Status.SUCCESS, version, request.opaque)
        elif isinstance(request, Put):
            session.out += self._put(session, request)
        elif isinstance(request, Get):
            session.out += self._get(request)
        elif isinstance(request, OffsetQuery):
            session.out += self._offset(request)
        elif isinstance(request, Stats):
            session.out += encode_result(Status.SUCCESS, self._stats_text(request.item), request.opaque)
        elif isinstance(request, Transaction):
            session.out += self._text_transaction(session, request)

    def _text_transaction(self, session: _Session, request: Transaction) -> bytes:
        try:
            text = self.transactions.verb(request.type, request.key, session, request.qualifier or "")
        except TransactionRefused as error:
            return encode_result(Status.ERROR, str(error), request.opaque)
        return b"" if request.type is TransactionType.END else encode_result(Status.SUCCESS, text, request.opaque)

    def _put(self, session: _Session, put: Put) -> bytes:
        put = put._replace(partition=self._choose(put.topic, put.partition))
        if not self._has(put.topic, put.partition):
            return encode_result(Status.ERROR, f"The server do not accept topic {put.topic}", put.opaque)
        log = self._log(put.topic, put.partition)
        if log.closed:
            return encode_result(Status.FORBIDDEN, "has been closed", put.opaque)
        self.sends += 1
        identity = self._new_id()
        try:
            offset = self._store(session, put.tx_key, lambda: log.append(put.body, identity, put.flag))
        except TransactionRefused as error:
            return encode_result(Status.ERROR, str(error), put.opaque)
        return encode_result(Status.SUCCESS, f"{identity} {put.partition} {offset}", put.opaque)

    def _get(self, get: Get) -> bytes:
        self.pulls += 1
        log = self.logs.get((get.topic, get.partition))
        if log is None:
            return encode_result(Status.NOT_FOUND, "is not exists", get.opaque)
        if get.offset < log.first or get.offset == INT64_MAX:
            moved = log.first if get.offset < log.first else log.end
            return encode_result(Status.MOVED, str(moved), get.opaque)
        if get.offset >= log.end:
            return encode_result(Status.NOT_FOUND, f"Could not find message at position {get.offset}", get.opaque)
        data = log.slice(get.offset, min(get.max_size, self.max_transfer_bytes))
        return encode_value_line(len(data), get.opaque) + data

    def _offset(self, query: OffsetQuery) -> bytes:
        log = self.logs.get((query.topic, query.partition))
        if log is None:
            return encode_result(Status.NOT_FOUND, "is not exists", query.opaque)
        return encode_result(Status.SUCCESS, str(log.end if query.offset >= log.end else log.first), query.opaque)


class FakeCluster:
    """Which brokers are registered, without ZooKeeper: a producer's `metadata`. Any thread."""

    def __init__(self, brokers: Iterable[FakeBroker] = ()) -> None:
        self._brokers = {broker.broker_id: broker for broker in brokers}
        self._listeners: list[Callable[[str], None]] = []

    def register(self, broker: FakeBroker) -> None:
        """The broker (or its new incarnation) appears."""
        self._brokers[broker.broker_id] = broker
        self._changed(broker)

    def unregister(self, broker: FakeBroker) -> None:
        """The broker's session has ended."""
        del self._brokers[broker.broker_id]
        self._changed(broker)

    def _changed(self, broker: FakeBroker) -> None:
        for listener in self._listeners:
            for topic in broker.topics:
                listener(topic)

    def view(self, topic: str) -> TopicView:
        brokers = [self._brokers[number] for number in sorted(self._brokers)]
        partitions = (each for broker in brokers for each in broker.partitions if each.topic == topic)
        return TopicView(tuple(sorted(partitions)), {broker.broker_id: broker.endpoint for broker in brokers})

    def on_change(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def close(self, timeout: float = 10.0) -> None:
        """Nothing is held open."""
