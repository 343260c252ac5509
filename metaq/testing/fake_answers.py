"""Answer the requests of clients like a broker, in both protocols. The data is kept in memory. To decode requests and
encode answers, this module uses the same code as real brokers. It does no I/O.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from metaq.protocol.compression import check_packed
from metaq.protocol.delays import CancelDelayedReply, CancelDelayedRequest
from metaq.protocol.errors import (
    CompressionNotAccepted,
    DelayRefused,
    MetaqError,
    PartitionClosed,
    RemoteProtocolError,
    TopicNotAccepted,
    TransactionRefused,
)
from metaq.protocol.frames import RESPONSE, Frame, encode_frame
from metaq.protocol.half_messages import (
    CheckHalvesRequest,
    EndHalfRequest,
    EndHalvesRequest,
    decode_ends,
    encode_checked,
    encode_ended,
    is_half,
)
from metaq.protocol.limits import (
    COMPRESSED_MARK,
    DELAYS_MARK,
    FRAMES_MARK,
    HALF_CHECK_MARK,
    HALVES_MARK,
    INT64_MAX,
    MANY_MARK,
    MAX_FRAME_BYTES,
    WHERE_MARK,
)
from metaq.protocol.message_id import counter_at, message_id, store_time_ms
from metaq.protocol.own_topics import OWN_PARTITIONS, is_own_topic
from metaq.protocol.pulls import NOT_DAMAGED, PullReply, PullRequest, encode_runs, encode_sizes
from metaq.protocol.record import COMPRESSED_FLAG, DELAYED_FLAG, HEADER_BYTES, Buffer, checksum
from metaq.protocol.refusals import LEADER, response_code
from metaq.protocol.remoting import (
    MessageCountsReply,
    MessageCountsRequest,
    OffsetReply,
    PartitionRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
    StatsRequest,
)
from metaq.protocol.requests import WireRequest
from metaq.protocol.sends import (
    SendBatchRequest,
    SendManyReply,
    SendManyRequest,
    SendReply,
    SendRequest,
    encode_replicas,
    encode_rows,
    send_reply,
    split_batch,
    split_many,
)
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import (
    Get,
    OffsetQuery,
    Put,
    Stats,
    TransactionCommand,
    TransactionType,
    Version,
    encode_put_result,
    encode_result,
    encode_value_line,
)
from metaq.protocol.transaction_requests import TransactionRequest
from metaq.protocol.where import parse_where

from .fake_delays import FakeDelays
from .fake_halves import CHECK_MS, FakeHalf, FakeHalves
from .fake_log import MemoryLog, checked
from .fake_transactions import FakeTransactions

__all__ = ["Answers", "Connected"]


class Connected:
    """An open connection of a client. out: bytes that are to be sent to the client."""

    def __init__(self) -> None:
        self.out = bytearray()


class _Reply(NamedTuple):
    ext: Mapping[str, str | int]
    body: Buffer = b""
    code: int = ResponseCode.SUCCESS
    remark: str = ""


@dataclass(slots=True, eq=False)
class _Parked:
    """A pull request that waits for data."""

    caller: Connected
    opaque: int
    request: PullRequest
    deadline: float


@dataclass(slots=True, eq=False)
class _ParkedCheck:
    """A producer's CHECK_HALVES request, which waits until the producer must be asked for the outcome of a half
    message.
    """

    caller: Connected
    opaque: int
    request: CheckHalvesRequest
    deadline: float


class Answers:
    """The partitions and the transactions of one fake broker, and its answers to requests. Only one thread may use this
    object. The docstring of FakeBroker describes the attributes.
    """

    def __init__(
        self, topics: Mapping[str, int], broker_id: int, *, speaks_frames: bool, clock: Callable[[], float]
    ) -> None:
        self.broker_id = broker_id
        self.topics = dict(topics)
        self.speaks_frames = speaks_frames
        self.takes_many = True
        self.knows_compressed = True
        self.accept_compressed: Collection[str] = ()
        self.takes_where = True
        self.takes_delays = self.takes_halves = True
        self.silent = False
        self.max_transfer_bytes = MAX_FRAME_BYTES
        self.refuse: Callable[[WireRequest], int | None] = lambda request: None
        self.leader: str | None = None
        self.role = ""
        self.replicas = 0
        self.logs: dict[tuple[str, int], MemoryLog] = {}
        self.sends = self.pulls = 0
        self.requests: list[str] = []
        self.transactions = FakeTransactions()
        self.delays = FakeDelays(clock)
        self.halves = FakeHalves(clock, self._commit)
        self._ids = itertools.count(counter_at(int(clock() * 1000)))
        self._parked: list[_Parked] = []
        self._parked_checks: list[_ParkedCheck] = []

    def log(self, topic: str, partition: int) -> MemoryLog:
        """Return the log of a partition. Create the log if it does not exist yet."""
        return self.logs.setdefault((topic, partition), MemoryLog())

    def _take(self, caller: Connected, request: WireRequest) -> None:
        self.requests.append(type(request).__name__ if not isinstance(request, Frame) else f"frame {request.code}")
        if self.silent:
            return
        refused = self.refuse(request)
        if self.silent and refused is None:  # silent from this request on
            return
        if isinstance(request, Frame):
            if self.leader is not None and request.code not in (RequestCode.HEARTBEAT, RequestCode.SET_STATUS):
                ext: dict[str, str | int] = {LEADER: self.leader}
                self._reply(caller, request.opaque, ResponseCode.NOT_LEADER, ext, remark="it does not lead")
            elif refused is not None:
                self._reply(caller, request.opaque, refused, {}, remark="refused by the test")
            else:
                self._answer_frame(caller, request)
        elif refused is not None and isinstance(request, (Put, Get, OffsetQuery, Stats, Version, TransactionCommand)):
            partition = getattr(request, "partition", 0)
            is_closed = refused == Status.FORBIDDEN and type(request) is not Version  # the only such answer of 1.x
            why = str(PartitionClosed(self.broker_id, partition)) if is_closed else "refused by the test"
            caller.out += encode_result(refused, why, request.opaque)
        else:
            caller.out += self._text(caller, request)

    def _drop_caller(self, caller: Connected) -> None:
        """Handle the end of a client's connection: drop its waiting requests and its local transactions."""
        self._parked = [parked for parked in self._parked if parked.caller is not caller]
        self._parked_checks = [parked for parked in self._parked_checks if parked.caller is not caller]
        self.halves.lost(caller)
        self.transactions.drop_local(caller)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _new_id(self) -> int:
        return message_id(next(self._ids), self.broker_id)

    def _choose(self, topic: str, partition: int) -> int:
        """If `partition` is -1, return a partition that the broker chooses; otherwise return `partition`."""
        return partition if partition >= 0 else self.sends % max(1, self._count(topic))

    def _count(self, topic: str) -> int:
        """Return the number of partitions of `topic` that the broker serves. Unless the broker imitates a Java broker,
        it also serves metaq's own topics.
        """
        own = OWN_PARTITIONS if self.speaks_frames and is_own_topic(topic) else 0
        return self.topics.get(topic, own)

    def _open(self, topic: str, partition: int) -> MemoryLog:
        """Return the log of a partition that the broker serves. Raises TopicNotAccepted if the broker does not serve
        the partition, and PartitionClosed if the partition is closed.
        """
        if not 0 <= partition < self._count(topic):
            raise TopicNotAccepted(topic)
        log = self.log(topic, partition)
        if log.closed:
            raise PartitionClosed(self.broker_id, partition)
        return log

    def _takes_compressed(self, topic: str) -> bool:
        """Whether the topic has acceptCompressed=true and the broker knows this setting. A broker that imitates a Java
        broker or an earlier version does not know the setting. It stores compressed messages in every topic, because it
        does not notice the compression.
        """
        return topic in self.accept_compressed and self.speaks_frames and self.knows_compressed

    def _check_packed(self, topic: str, records: Iterable[tuple[int, Buffer]]) -> None:
        """Check whether the broker accepts the compressed records among the records of a send. records: the flags and
        bodies of all records of the send. Raises CompressionNotAccepted, PayloadUnreadable.
        """
        if not (self.speaks_frames and self.knows_compressed):
            return
        for flag, body in records:
            if flag & COMPRESSED_FLAG:
                if topic not in self.accept_compressed:
                    raise CompressionNotAccepted(topic)
                check_packed(body, flag)

    def _asked(self, frame: Frame) -> MemoryLog:
        request = PartitionRequest.from_ext(frame.ext)
        return self._open(request.topic, request.partition)

    def _store(self, caller: Connected, tx_key: str | None, append: Callable[[], int]) -> int:
        """Call `append`, which stores a message, and return the message's offset. If `tx_key` names a transaction, only
        add `append` to the transaction, whose commit then calls it, and return -1.
        """
        if tx_key is None:
            return append()
        self.transactions.put(tx_key, caller, append)
        return -1

    def _store_one(self, caller: Connected, sent: SendRequest | Put, body: Buffer) -> SendReply:
        """Store one message, and return the answer. If the broker refuses the message, raise the error that the caller
        reports to the client.
        """
        partition = self._choose(sent.topic, sent.partition)
        log = self._open(sent.topic, partition)
        if isinstance(sent, SendRequest) and sent.checksum not in (-1, checksum(body)):
            raise RemoteProtocolError("checksum")
        self._check_packed(sent.topic, [(sent.flag, body)])
        self.sends += 1
        if (first_id := self._wait(sent.topic, partition, [(sent.flag, body)], sent.tx_key)) is not None:
            return send_reply(first_id, partition, -1, self.replicas)
        identity = self._new_id()
        offset = self._store(caller, sent.tx_key, partial(log.append, body, identity, sent.flag))
        return send_reply(identity, partition, offset, self.replicas)

    def _wait(
        self, topic: str, partition: int, records: Sequence[tuple[int, Buffer]], tx_key: str | None
    ) -> int | None:
        """If these records (flag, body) are delayed messages, keep them until their delivery time; if they are half
        messages, keep them until their outcome is known. In both cases return the id of the first. For other records
        return None; the caller then stores them at once. Raises RemoteProtocolError, DelayRefused.
        """
        if tx_key is not None and any(flag & DELAYED_FLAG for flag, _ in records):
            raise DelayRefused("a delayed message cannot be in a transaction: send it outside, or without a delay")
        if records and is_half(*records[0]):
            return self.halves.take(topic, partition, records)
        return self.delays.take(topic, partition, records)

    def _commit(self, half: FakeHalf) -> tuple[int, int]:
        identity = self._new_id()
        return identity, self.log(half.topic, half.partition).append(half.body, identity, half.flag & ~DELAYED_FLAG)

    def _deliver(self, *, everything: bool = False) -> None:
        """Store each delayed message in its partition if its delivery time has come. everything: if true, store all
        delayed messages, whatever their time.
        """
        for each in self.delays.take_due(everything=everything):
            self.log(each.topic, each.partition).append(each.body, self._new_id(), each.flag)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _answer_frame(self, caller: Connected, frame: Frame) -> None:
        try:
            reply = self._frame(caller, frame)
        except MetaqError as error:
            reply = _Reply({}, code=response_code(error), remark=str(error))
        if reply is not None:
            self._reply(caller, frame.opaque, reply.code, reply.ext, reply.body, reply.remark)

    def _reply(
        self,
        caller: Connected,
        opaque: int,
        code: int,
        ext: Mapping[str, str | int],
        body: Buffer = b"",
        remark: str = "",
    ) -> None:
        caller.out += encode_frame(code, opaque, ext, len(body), flag=RESPONSE, remark=remark)
        caller.out += body

    def _frame(self, caller: Connected, frame: Frame) -> _Reply | None:
        """Return the answer to a request of the framed protocol, or None if the request must wait and is answered
        later.
        """
        match RequestCode(frame.code):
            case RequestCode.SEND:
                return _Reply(self._store_one(caller, SendRequest.from_ext(frame.ext), frame.body).to_ext())
            case RequestCode.SEND_BATCH:
                return self._send_batch(caller, frame)
            case RequestCode.SEND_MANY:
                return self._send_many(frame)
            case RequestCode.PULL:
                return self._pull(caller, frame)
            case RequestCode.MIN_OFFSET:
                return _Reply(OffsetReply(self._asked(frame).first).to_ext())
            case RequestCode.MAX_OFFSET:
                return _Reply(OffsetReply(self._asked(frame).end).to_ext())
            case RequestCode.SEARCH_OFFSET_BY_TIME:
                return self._search(SearchByTimeRequest.from_ext(frame.ext))
            case RequestCode.MESSAGE_COUNTS:
                return self._counts(MessageCountsRequest.from_ext(frame.ext))
            case RequestCode.SEARCH_OFFSET_BY_COUNT:
                return self._after(SearchByCountRequest.from_ext(frame.ext))
            case RequestCode.HEARTBEAT:
                return _Reply({})
            case RequestCode.STATS:
                return _Reply({}, self._stats(StatsRequest.from_ext(frame.ext).item).encode())
            case RequestCode.TRANSACTION:
                request = TransactionRequest.from_ext(frame.ext)
                kind = TransactionType(request.type)
                return _Reply({}, self.transactions.verb(kind, request.tx_key, caller, request.qualifier).encode())
            case RequestCode.CANCEL_DELAYED:
                cancel = CancelDelayedRequest.from_ext(frame.ext)
                state = self.delays.cancel(cancel.topic, cancel.partition, cancel.message_id)
                return _Reply(CancelDelayedReply(state).to_ext())
            case RequestCode.END_HALF:
                return _Reply(self.halves.end(EndHalfRequest.from_ext(frame.ext)).to_ext())
            case RequestCode.END_HALVES:
                place = EndHalvesRequest.from_ext(frame.ext)
                ends = [EndHalfRequest(place.topic, place.partition, *each) for each in decode_ends(frame.body)]
                return _Reply({}, encode_ended([self.halves.end(each) for each in ends]))
            case RequestCode.CHECK_HALVES:
                return self._check(caller, frame)
            case RequestCode.SET_STATUS:
                role = self.role or ("leader" if self.leader is None else "follower")
                return _Reply({}, b'{"role": "%s"}' % role.encode())
            case _:
                return _Reply({}, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def _stats(self, item: str) -> str:
        return f"STATS\r\nitem {item}\r\nbroker_id {self.broker_id}\r\nEND\r\n"

    def _send_batch(self, caller: Connected, frame: Frame) -> _Reply:
        request = SendBatchRequest.from_ext(frame.ext)
        partition = self._choose(request.topic, request.partition)
        log = self._open(request.topic, partition)
        sizes, records = split_batch(frame.body, request.records)
        found = checked(records, sizes.tolist())
        waiting = [(each.flag, records[each.start + HEADER_BYTES : each.end]) for each in found]
        self._check_packed(request.topic, waiting)
        self.sends += 1
        if (first_id := self._wait(request.topic, partition, waiting, request.tx_key)) is not None:
            return _Reply(send_reply(first_id, partition, -1, self.replicas).to_ext())
        ids = [self._new_id() for _ in found]
        offset = self._store(caller, request.tx_key, lambda: log.append_all(records, found, ids))
        return _Reply(send_reply(ids[0], partition, offset, self.replicas).to_ext())

    def _send_many(self, frame: Frame) -> _Reply:
        request = SendManyRequest.from_ext(frame.ext)
        parts = split_many(frame.body, request)
        found = checked(parts.records, parts.sizes.tolist())
        self.sends += 1
        rows: list[tuple[int, int, int, int]] = []
        for topic, number, count in zip(parts.topics, parts.partitions, parts.counts.tolist(), strict=True):
            partition = self._choose(request.topics[topic], number)
            here, found = found[:count], found[count:]
            try:
                log = self._open(request.topics[topic], partition)
                waiting = [(each.flag, parts.records[each.start + HEADER_BYTES : each.end]) for each in here]
                self._check_packed(request.topics[topic], waiting)
                first_id = self._wait(request.topics[topic], partition, waiting, None)
            except MetaqError as error:
                rows.append((0, 0, partition, response_code(error)))
                continue
            if first_id is not None:
                rows.append((first_id, -1, partition, ResponseCode.SUCCESS))
                continue
            ids = [self._new_id() for _ in here]
            rows.append((ids[0], log.append_all(parts.records, here, ids), partition, ResponseCode.SUCCESS))
        first_ids, offsets, partitions, codes = zip(*rows, strict=True)
        body = encode_rows(list(first_ids), list(offsets), list(partitions), list(codes))
        if self.replicas:
            body += encode_replicas([self.replicas] * len(rows))
        return _Reply(SendManyReply(len(rows)).to_ext(), body, remark="refused" if any(codes) else "")

    def _search(self, request: SearchByTimeRequest) -> _Reply:
        log = self._open(request.topic, request.partition)
        later = (s for s, i in zip(log.starts, log.ids, strict=True) if (store_time_ms(i) or 0) >= request.time_ms)
        return _Reply(OffsetReply(next(later, log.end)).to_ext())

    def _counts(self, request: MessageCountsRequest) -> _Reply:
        log = self._open(request.topic, request.partition)
        return _Reply(MessageCountsReply(len(log.starts), log.before(request.offset), log.first, log.end).to_ext())

    def _after(self, request: SearchByCountRequest) -> _Reply:
        log = self._open(request.topic, request.partition)
        number = min(log.before(request.offset) + request.messages, log.before(request.offset + request.max_bytes))
        return _Reply(OffsetReply(log.starts[number] if number < len(log.starts) else log.end).to_ext())

    # --- pulls --------------------------------------------------------------------------------------------------------

    def _pull(self, caller: Connected, frame: Frame) -> _Reply | None:
        request = PullRequest.from_ext(frame.ext)
        self._open(request.topic, request.partition)
        self.pulls += 1
        reply = self._pulled(request, last=request.wait_ms == 0)
        if reply is None:
            self._parked.append(_Parked(caller, frame.opaque, request, time.monotonic() + request.wait_ms / 1000))
        return reply

    def _check(self, caller: Connected, frame: Frame) -> _Reply | None:
        request = CheckHalvesRequest.from_ext(frame.ext)
        if request.producer:
            self.halves.askers[request.producer] = caller
        for parked in [each for each in self._parked_checks if each.caller is caller]:
            if parked.request.group == request.group:
                self._parked_checks.remove(parked)
                self._reply(caller, parked.opaque, ResponseCode.SUCCESS, {}, b"")
        halves = self.halves.checked(request)
        if halves or not request.wait_ms:
            return _Reply({}, b"".join(encode_checked(halves)))
        deadline = time.monotonic() + request.wait_ms / 1000
        self._parked_checks.append(_ParkedCheck(caller, frame.opaque, request, deadline))
        return None

    def _answer_checks(self, now: float) -> list[Connected]:
        """Answer each waiting CHECK_HALVES request whose producer must be asked about a half message now, or whose
        waiting time is over. Return the connections of the answered requests.
        """
        waiting, self._parked_checks = self._parked_checks, []
        answered: list[Connected] = []
        for parked in waiting:
            halves = self.halves.checked(parked.request)
            if halves or parked.deadline <= now:
                body = b"".join(encode_checked(halves))
                self._reply(parked.caller, parked.opaque, ResponseCode.SUCCESS, {}, body)
                answered.append(parked.caller)
            else:
                self._parked_checks.append(parked)
        return answered

    def _patience(self) -> float | None:
        """Return the number of seconds until `_answer_parked` must be called, or None if nothing waits for a time."""
        patience = [parked.deadline - time.monotonic() for parked in self._parked]
        patience += [parked.deadline - time.monotonic() for parked in self._parked_checks]
        asked = self.halves.patience([parked.request for parked in self._parked_checks])
        patience += [each for each in (self.delays.patience, asked) if each is not None]
        return max(0.0, min(patience)) if patience else None

    def _answer_parked(self) -> list[Connected]:
        """Deliver the delayed messages that are due. Also answer each waiting request for which there is data, or whose
        waiting time is over. Return the connections of the answered requests.
        """
        self._deliver()
        now = time.monotonic()
        answered = self._answer_checks(now)
        waiting, self._parked = self._parked, []
        for parked in waiting:
            reply = self._pulled(parked.request, last=parked.deadline <= now)
            if reply is None:
                self._parked.append(parked)
            else:
                self._reply(parked.caller, parked.opaque, reply.code, reply.ext, reply.body)
                answered.append(parked.caller)
        return answered

    def _pulled(self, request: PullRequest, last: bool) -> _Reply | None:
        """Return the answer to a pull if there is data, or if the pull must be answered now even without data (`last`).
        Otherwise return None, so that the pull waits.
        """
        log = self.log(request.topic, request.partition)
        offset, code, body, runs, sizes = request.offset, ResponseCode.SUCCESS, b"", 0, []
        damaged_from = NOT_DAMAGED
        if not log.first <= offset <= log.end:
            offset = log.first if offset < log.first else log.end
            code = ResponseCode.PULL_OFFSET_MOVED
        elif (begin := log.begin_of(offset)) != offset:
            offset, code = begin, ResponseCode.PULL_OFFSET_MOVED
        elif request.verify and (damage := log.damage_at(offset)) is not None:
            damaged_from, offset = offset, damage
            code = ResponseCode.PULL_OFFSET_MOVED
        elif request.tags or request.where:
            found = log.chosen(offset, request.tags, parse_where(request.where) if request.where else None)
            runs, offset = len(found), log.end
            body = encode_runs(found) + b"".join(log.slice(start, size) for start, size in found)
            code = ResponseCode.SUCCESS if runs else ResponseCode.PULL_NOT_FOUND
        else:
            body = log.slice(offset, request.max_bytes, whole_first=True)
            sizes = log.sizes(offset, len(body))
            body = body[: sum(sizes)]
            offset += len(body)
            code = ResponseCode.SUCCESS if body else ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_NOT_FOUND and not last:
            return None
        behind = len(log.starts) - log.before(offset)
        records = len(sizes) if request.sizes else 0
        reply = PullReply(offset, log.first, log.end, behind, request.sequence, runs, records, damaged_from)
        table = encode_sizes(np.array(sizes, np.int32)) if records else b""
        return _Reply(reply.to_ext(), table + body, code)

    # --- text ---------------------------------------------------------------------------------------------------------

    def _text(self, caller: Connected, request: WireRequest) -> bytes:
        match request:
            case Version():
                marks = [*([MANY_MARK] if self.takes_many else []), *([WHERE_MARK] if self.takes_where else [])]
                marks += [COMPRESSED_MARK] if self.knows_compressed else []
                marks += [DELAYS_MARK] if self.takes_delays else []
                marks += [HALVES_MARK] if self.takes_halves else []
                marks += [f"{HALF_CHECK_MARK}{CHECK_MS}"] if self.takes_halves else []
                ours = " ".join(("0.1", *marks, FRAMES_MARK))
                return encode_result(Status.SUCCESS, ours if self.speaks_frames else "1.4.6.2", request.opaque)
            case Put():
                return self._put(caller, request)
            case Get():
                return self._get(request)
            case OffsetQuery():
                return self._offset(request)
            case Stats():
                return encode_result(Status.SUCCESS, self._stats(request.item), request.opaque)
            case TransactionCommand():
                return self._transaction(caller, request)
            case _:
                return b""

    def _transaction(self, caller: Connected, request: TransactionCommand) -> bytes:
        try:
            text = self.transactions.verb(request.type, request.key, caller, request.qualifier or "")
        except TransactionRefused as error:
            return encode_result(Status.ERROR, str(error), request.opaque)
        return b"" if request.type is TransactionType.END else encode_result(Status.SUCCESS, text, request.opaque)

    def _put(self, caller: Connected, put: Put) -> bytes:
        try:
            stored = self._store_one(caller, put, put.body)
        except MetaqError as error:
            return encode_result(error.status, str(error), put.opaque)
        return encode_put_result(put.opaque, stored.message_id, stored.partition, stored.offset)

    def _get(self, get: Get) -> bytes:
        self.pulls += 1
        log = self.logs.get((get.topic, get.partition))
        if log is None:
            return encode_result(Status.NOT_FOUND, "is not exists", get.opaque)
        if not get.unpacks and self._takes_compressed(get.topic):
            refusal = CompressionNotAccepted(get.topic, get.group)
            return encode_result(refusal.status, str(refusal), get.opaque)
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
