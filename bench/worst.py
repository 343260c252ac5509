"""Measure for the worst requests of each verb how long they occupy a broker's reactor without a pause.

`python -m bench.worst [words]` measures the requests of verbs whose name contains one of the words (without words:
all), on a broker in this process with many partitions, groups and delayed messages. A step is the reactor's work until
it polls its connections again: the handling of one read, one timer or one result of a thread. The processor time of
each step is measured, so other work of the machine has hardly any effect. A unit test fails for a verb of
broker/assembly/verbs.py that has no entry in FRAMES or TEXTS.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from typing import Any, TypeAlias

import numpy as np
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from metaq.broker.http.browsers import OwnNames
from metaq.broker.http.dashboard import Dashboard, RecentLog
from metaq.broker.http.gateway import Gateway
from metaq.broker.http.ports import GuardedSite
from metaq.broker.requests.gate import PageRequest
from metaq.broker.runtime.account import SPACE_READ_BYTES
from metaq.broker.runtime.heap import keep_for_good
from metaq.broker.tuning import HTTP_READ_BYTES, LARGE_READ_BYTES
from metaq.protocol.delays import CancelDelayedRequest, ListDelayedRequest
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import (
    CheckHalvesRequest,
    EndHalfRequest,
    EndHalvesRequest,
    ListHalvesRequest,
    encode_ends,
)
from metaq.protocol.half_messages import HalfOutcome as Outcome
from metaq.protocol.limits import (
    MAX_ACQUIRED,
    MAX_BATCH_RECORDS,
    MAX_BODY_BYTES,
    MAX_CHECKED_HALVES,
    MAX_ENDED_HALVES,
    MAX_FOUND_MESSAGES,
    MAX_FRAME_HEADER_BYTES,
    MAX_KEY_CHARACTERS,
    MAX_LEASE_MS,
    MAX_LINE_BYTES,
    MAX_LISTED_DELAYED,
    MAX_LISTED_HALVES,
    MAX_PARTS,
    MAX_PULLED_TAGS,
    MAX_RECORD_BODY_BYTES,
    MAX_SETTLEMENTS,
    MAX_TX_BATCH_RECORDS,
    MAX_WHERE_CONDITIONS,
)
from metaq.protocol.login import MAX_LOGIN_CHARACTERS, AuthenticateRequest
from metaq.protocol.pulls import PullRequest
from metaq.protocol.put_run import PutRun
from metaq.protocol.record import DELAYED_FLAG, checksum, encode_attributes, encode_body, encode_record
from metaq.protocol.remoting import (
    ClosePartitionsRequest,
    HandOverRequest,
    MessageCountsRequest,
    MoveRequest,
    OpenPartitionsRequest,
    PartitionRequest,
    QueryMessageRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
    StatsRequest,
    ViewMessageRequest,
)
from metaq.protocol.sends import SendBatchRequest, SendManyRequest, SendRequest, encode_parts
from metaq.protocol.shared import (
    AcquireRequest,
    SettleAction,
    Settlement,
    SettleRequest,
    SharedForgetRequest,
    SharedStatusRequest,
    encode_settlements,
)
from metaq.protocol.statuses import RequestCode
from metaq.protocol.text import (
    Get,
    IgnoredAnswer,
    OffsetQuery,
    Put,
    Stats,
    Sync,
    TooLargePut,
    TransactionCommand,
    Version,
    encode_put,
)
from metaq.protocol.transaction_requests import (
    CompleteTransactionRequest,
    PreparedTransactionsRequest,
    TransactionOutcomeRequest,
    TransactionRequest,
)
from tests.unit.broker.harness import Harness, Peer

from .memory import warm_page_cache

__all__ = ["FRAMES", "PAGES", "TEXTS", "Worst", "main"]

LIMIT_MS = 20.0
"""The limit in ms: no step of a request may be longer."""

PARTITIONS = 10_240
GROUPS = 10_000
HALVES = 50_000
TIMERS = 1_000_000
"""Number of delayed messages on the broker."""

ROUNDS = 5
"""The most rounds in which a case above the limit is measured, each on a new broker. A virtual machine's host can stop
a process for a while, and this counts as the process's own time. A step that is long by itself is long in each
round.
"""

WARM_BYTES = 256 << 20
"""Bytes of page cache that are written before each case, so that the broker's steps do not include the time in which a
virtual machine's host provides memory.
"""

Requests: TypeAlias = Iterator[tuple[str, "bytes | Callable[[Worst], bytes]"]]
"""Yields a name, and the bytes of a request or a function that prepares the broker and returns these bytes. For small
requests the bytes are a full read, which contains as many requests as fit.
"""


# --- requests ---------------------------------------------------------------------------------------------------------


def _frame(code: int, ext: Mapping[str, str | int], body: bytes = b"", opaque: int = 1) -> bytes:
    return encode_frame(code, opaque, ext, len(body)) + body


def _reads(request: bytes) -> bytes:
    """Return as many copies of the request as fit into one read."""
    return request * (LARGE_READ_BYTES // len(request))


_MANY = 100
"""How often a request that takes many steps is repeated. Thousands would take minutes and show the same steps."""


def _small(code: int, request: Any = None, body: bytes = b"") -> Callable[[], Requests]:
    """Return a source of requests for a verb whose requests have a fixed size: a single request, and as many as fit
    into one read.
    """

    def requests() -> Requests:
        ext = request.to_ext() if request is not None else {}
        frame = _frame(code, ext, body)
        yield "one", frame
        yield "a read full", _reads(frame)

    return requests


def _padded(code: int, ext: Mapping[str, str | int], body: bytes = b"") -> bytes:
    """Return a request whose header has as many fields as allowed."""
    fields = {f"{number:x}": "" for number in range((MAX_FRAME_HEADER_BYTES - 4096) // 13)}
    return _frame(code, {**fields, **ext}, body)


def _sized(records: list[bytes]) -> bytes:
    return np.array(list(map(len, records)), ">u4").tobytes() + b"".join(records)


_LEAST = encode_record(b"", 0, 0)


def _long_list() -> tuple[int, bytes]:
    """Return flag and body of a record with 900,000 properties."""
    flag, attribute = encode_attributes(tag="a", properties={f"{number:x}": "" for number in range(900_000)})
    return flag, encode_body(b"", flag, attribute)


def _long_lists() -> Iterator[tuple[str, int, bytes]]:
    """Yield name, flag and body of messages with the longest allowed attribute."""
    users = b"a\x01b\x02" * ((MAX_RECORD_BODY_BYTES - 100) // 4)
    waiting = 1 | 2 | DELAYED_FLAG
    for name, last in (("delayed", b"metaq.delay\x013600000\x02"), ("half", b"metaq.half\x01bank\x02")):
        yield f"2,000,000 properties, {name}", waiting, encode_body(b"", waiting, users + last)
    own = b"metaq.a\x01\x02" * ((MAX_RECORD_BODY_BYTES - 100) // 9)
    yield "900,000 properties of metaq's", waiting, encode_body(b"", waiting, own + b"metaq.delay\x011\x02")
    yield "a tag of no UTF-8", 1, encode_body(b"", 1, b"\xff" * (MAX_RECORD_BODY_BYTES - 4))
    yield "4,000,000 keys", 3, encode_body(b"", 3, b"KEYS\x01" + b"k " * (MAX_RECORD_BODY_BYTES // 2 - 10) + b"\x02")


def _send() -> Requests:
    yield "a read of empty ones", _reads(_frame(RequestCode.SEND, SendRequest("t", 0).to_ext()))
    frames = [_frame(RequestCode.SEND, SendRequest("many", number).to_ext()) for number in range(4000)]
    yield "each to another partition", b"".join(frames)
    body = bytes(MAX_RECORD_BODY_BYTES)
    yield "the largest", _frame(RequestCode.SEND, SendRequest("t", 0, 0, checksum(body)).to_ext(), body)
    flag, body = _long_list()
    yield "900,000 properties", _frame(RequestCode.SEND, SendRequest("t", 0, flag, checksum(body)).to_ext(), body)
    yield (
        "delayed, with them",
        _frame(RequestCode.SEND, SendRequest("t", 0, flag | DELAYED_FLAG, checksum(body)).to_ext(), body),
    )
    for name, flag, body in _long_lists():
        yield name, _frame(RequestCode.SEND, SendRequest("t", 0, flag, checksum(body)).to_ext(), body)
    yield "60,000 other fields", _padded(RequestCode.SEND, SendRequest("t", 0).to_ext())
    deep = b'{"code":10,"extFields":' + b'{"a":' * 900 + b"1" + b"}" * 901
    yield "deep JSON", (4 + len(deep)).to_bytes(4, "big") + len(deep).to_bytes(4, "big") + deep
    lists = b'{"code":10,"x":[' + b"[]," * 349_000 + b"0]}"
    yield "349,000 lists", (4 + len(lists)).to_bytes(4, "big") + len(lists).to_bytes(4, "big") + lists
    digits = b'{"code":10,"x":' + b"9" * 1_048_000 + b"}"
    yield "a number of 1 MB", (4 + len(digits)).to_bytes(4, "big") + len(digits).to_bytes(4, "big") + digits
    digits = b'{"code":10,"x":[' + b",".join([b"9" * 4000] * 260) + b"]}"
    yield "260 numbers of 4,000 digits", (4 + len(digits)).to_bytes(4, "big") + len(digits).to_bytes(4, "big") + digits
    key = SendRequest("t", 0, tx_key="TX:s:1").to_ext()
    yield (
        "new topics",
        lambda worst: b"".join(
            _frame(RequestCode.SEND, SendRequest(name, 0).to_ext()) for name in worst.new_topics(2000)
        ),
    )
    yield "in no transaction", _reads(_frame(RequestCode.SEND, key))
    begin = _frame(RequestCode.TRANSACTION, TransactionRequest("TX:s:1", "BEGIN").to_ext())
    yield "in a transaction", begin + _reads(_frame(RequestCode.SEND, key))[: -len(begin)]


def _send_batch() -> Requests:
    for name, ext, count in (
        ("empty records", {}, MAX_BATCH_RECORDS),
        ("in a transaction", {"txKey": "TX:s:2"}, MAX_TX_BATCH_RECORDS),
    ):
        body = _sized([_LEAST] * count)
        begin = _frame(RequestCode.TRANSACTION, TransactionRequest("TX:s:2", "BEGIN").to_ext()) if ext else b""
        yield name, begin + _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, count).to_ext() | ext, body)
    body = _sized([encode_record(bytes(MAX_BODY_BYTES // 8), 0, 0)] * 15)
    yield "large records", _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, 15).to_ext(), body)
    record = encode_record(bytes(MAX_BODY_BYTES * 2 // MAX_BATCH_RECORDS - 40), 0, 0)
    body = _sized([record] * MAX_BATCH_RECORDS)
    yield "the most", _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, MAX_BATCH_RECORDS).to_ext(), body)
    flag, attribute = encode_attributes(tag="a")
    records = [encode_record(encode_body(b"%d" % n, flag, attribute), 0, flag) for n in range(MAX_BATCH_RECORDS)]
    yield "tags", _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, len(records)).to_ext(), _sized(records))
    records = []
    for number in range(MAX_BATCH_RECORDS):
        flag, attribute = 1, b"%x" % number
        records.append(encode_record(encode_body(b"", flag, attribute), 0, flag))
    yield (
        "other tags each",
        _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, len(records)).to_ext(), _sized(records)),
    )
    flag, body = _long_list()
    lists = [b"%06d\x01\x02" % number * 2000 for number in range(900)]
    records = [encode_record(encode_body(b"", 3, attribute), 0, 3) for attribute in lists]
    yield (
        "properties of 16 KB each",
        _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, len(records)).to_ext(), _sized(records)),
    )
    yield (
        "900,000 properties",
        _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, 1).to_ext(), _sized([encode_record(body, 0, flag)])),
    )
    for name, reserved in (
        ("delayed", {"metaq.delay": "3600000"}),
        ("halves", {"metaq.half": "bank"}),
        ("old halves", {"metaq.half": "bank", "metaq.check-after": "3600000"}),
    ):
        flag, attribute = encode_attributes(reserved=reserved)
        record = encode_record(encode_body(b"", flag | DELAYED_FLAG, attribute), 0, flag | DELAYED_FLAG)
        count = MAX_BATCH_RECORDS
        yield name, _frame(RequestCode.SEND_BATCH, SendBatchRequest("t", 0, count).to_ext(), _sized([record] * count))


def _many(topics: tuple[str, ...], parts: list[tuple[int, ...]], record: bytes = _LEAST, **more: Any) -> bytes:
    """Return a SEND_MANY frame. parts: for each part, the number of its topic, its partition, its number of records
    and, optionally, its sequence number.
    """
    count = sum(part[2] for part in parts)
    sequences = [part[3] for part in parts if len(part) > 3]
    table = [(topic, partition, records) for topic, partition, records, *_ in parts]
    body = encode_parts(table, [len(record)] * count, sequences) + record * count
    ext = SendManyRequest(topics, len(parts), count).to_ext() | more
    return _frame(RequestCode.SEND_MANY, ext, body)


def _send_many() -> Requests:
    yield "one topic", _many(("many",), [(0, number % PARTITIONS, 1) for number in range(MAX_PARTS)])
    yield (
        "most records",
        _many(("many",), [(0, number % PARTITIONS, MAX_BATCH_RECORDS // MAX_PARTS) for number in range(MAX_PARTS)]),
    )
    yield "most records of one part", _many(("many",), [(0, 0, MAX_BATCH_RECORDS)])
    yield "unknown topics", _many(tuple(map(str, range(MAX_PARTS))), [(number, 0, 1) for number in range(MAX_PARTS)])
    names = tuple(f"{number:x}" for number in range(150_000))
    yield "names of 150,000 topics", _many(names, [(0, 0, 1)])
    yield "empty names", _many(("t", *[""] * 1_000_000), [(0, 0, 1)])
    yield "repeats", _many(("t",), [(0, 0, 1)], repeats=",".join(["1"] * 500_000))
    yield (
        "all of them repeats",
        _many(
            ("nowhere",),
            [(0, 0, 1, 1)] * MAX_PARTS,
            producerId=7,
            repeatMs=1,
            repeats=",".join(map(str, range(MAX_PARTS))),
        ),
    )
    yield "new topics", lambda worst: _many(worst.new_topics(5000), [(number, 0, 1) for number in range(5000)])
    for name, properties in (("delayed", {"metaq.delay": "3600000"}), ("halves", {"metaq.half": "bank"})):
        record = _pending(properties)
        yield name, _many(("t",), [(0, 0, 1)] * MAX_PARTS, record)
        yield f"most {name}", _many(("t",), [(0, 0, MAX_BATCH_RECORDS // MAX_PARTS)] * MAX_PARTS, record)


def _pull() -> Requests:
    def pull(topic: str = "t", **more: Any) -> bytes:
        request = PullRequest(topic, 0, **{"offset": 0, "max_bytes": 1 << 30, **more})
        return _frame(RequestCode.PULL, request.to_ext())

    yield "empty records", pull()
    yield "with sizes", pull(sizes=True)
    yield "a read of them", _reads(pull(offset=1 << 60))
    yield "waiting", _reads(pull("many", offset=1 << 20, wait_ms=1000))[: 1 << 16]
    yield "where", pull(where=" OR ".join([f"a{n} LIKE '%x_y%'" for n in range(MAX_WHERE_CONDITIONS)]))
    yield "where TAGS", pull(where="TAGS LIKE '%b%c%d%'")
    yield "not a filter", pull(where="(" * 4000)
    yield "IN", pull(where="a IN (" + ",".join(["1"] * 2000) + ")")
    yield "tags", pull(tags=tuple(f"{n:x}" for n in range(120_000)))
    yield (
        "a million empty tags",
        _frame(RequestCode.PULL, PullRequest("t", 0, 0, 1 << 20).to_ext() | {"tags": "||" * 500_000}),
    )
    yield "records of other tags", pull("tagged", tags=("zz",))
    yield "long attributes", pull("wide", where="a LIKE '%x%y%z%'")
    yield "many properties", pull("wide", where="a = 'x'")


def _search() -> Requests:
    yield (
        "all partitions",
        _frame(RequestCode.QUERY_MESSAGE, QueryMessageRequest("many", "k", MAX_FOUND_MESSAGES).to_ext()),
    )
    key = "k" * MAX_KEY_CHARACTERS
    yield "a long key", _reads(_frame(RequestCode.QUERY_MESSAGE, QueryMessageRequest("t", key).to_ext()))
    yield (
        "one partition",
        _frame(RequestCode.QUERY_MESSAGE, QueryMessageRequest("t", "k", MAX_FOUND_MESSAGES, partition=0).to_ext()),
    )


def _view() -> Requests:
    yield "all partitions", _frame(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest("many", 1).to_ext())
    yield "a read full", _reads(_frame(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest("t", 1).to_ext()))


def _stats() -> Requests:
    for item in ("", "topics", "offsets", "realtime", "config", "disk", "delayed", "halves", "journal", "shared"):
        yield item or "broker", _frame(RequestCode.STATS, StatsRequest(item).to_ext())
    yield "many", _frame(RequestCode.STATS, StatsRequest("many").to_ext())
    yield "a hundred", _frame(RequestCode.STATS, StatsRequest("").to_ext()) * _MANY
    yield "a long word", _frame(RequestCode.STATS, StatsRequest("x" * 1_000_000).to_ext())


def _transaction() -> Requests:
    yield (
        "a read of BEGIN",
        b"".join(
            _frame(RequestCode.TRANSACTION, TransactionRequest(f"TX:b:{n}", "BEGIN", "", 60).to_ext())
            for n in range(3000)
        ),
    )
    yield "RECOVER", _reads(_frame(RequestCode.TRANSACTION, TransactionRequest(None, "RECOVER").to_ext()))
    yield "a connection with 90,000 of them", _begun(90_000)
    yield "commit", _committed()
    yield "commit to all partitions", _committed_everywhere()


def _begun(count: int) -> bytes:
    return b"".join(
        _frame(RequestCode.TRANSACTION, TransactionRequest(f"TX:l:{number}", "BEGIN").to_ext())
        for number in range(count)
    )


def _committed() -> bytes:
    begin = _frame(RequestCode.TRANSACTION, TransactionRequest("TX:c:1", "BEGIN").to_ext())
    body = _sized([_LEAST] * MAX_TX_BATCH_RECORDS)
    ext = SendBatchRequest("t", 0, MAX_TX_BATCH_RECORDS, tx_key="TX:c:1").to_ext()
    commit = _frame(RequestCode.TRANSACTION, TransactionRequest("TX:c:1", "COMMIT_ONE_PHASE").to_ext())
    return begin + _frame(RequestCode.SEND_BATCH, ext, body) * 128 + commit


def _committed_everywhere() -> bytes:
    begin = _frame(RequestCode.TRANSACTION, TransactionRequest("TX:c:2", "BEGIN").to_ext())
    body = _sized([_LEAST])
    sends = [
        _frame(RequestCode.SEND_BATCH, SendBatchRequest("many", number, 1, tx_key="TX:c:2").to_ext(), body)
        for number in range(PARTITIONS)
    ]
    commit = _frame(RequestCode.TRANSACTION, TransactionRequest("TX:c:2", "COMMIT_ONE_PHASE").to_ext())
    return b"".join([begin, *sends, commit])


def _end_halves() -> Requests:
    ends = [(number + 1, Outcome.COMMITTED) for number in range(MAX_ENDED_HALVES)]
    frame = _frame(RequestCode.END_HALVES, EndHalvesRequest("t", 0).to_ext(), encode_ends(ends))
    yield "unknown ones", frame
    yield "a read full", _reads(frame)
    yield "padded", _padded(RequestCode.END_HALVES, EndHalvesRequest("t", 0).to_ext(), encode_ends(ends))


def _check_halves() -> Requests:
    topics = frozenset(f"{number:x}" for number in range(170_000))
    yield (
        "170,000 topics",
        _frame(RequestCode.CHECK_HALVES, CheckHalvesRequest("bank", MAX_CHECKED_HALVES, 0, topics).to_ext()),
    )
    yield "one", _frame(RequestCode.CHECK_HALVES, CheckHalvesRequest("bank", MAX_CHECKED_HALVES).to_ext())
    yield (
        "a read full",
        _reads(_frame(RequestCode.CHECK_HALVES, CheckHalvesRequest("bank", MAX_CHECKED_HALVES).to_ext())),
    )


def _list_halves() -> Requests:
    yield "all", _frame(RequestCode.LIST_HALVES, ListHalvesRequest(limit=MAX_LISTED_HALVES).to_ext())
    yield "one, whole", _frame(RequestCode.LIST_HALVES, ListHalvesRequest(limit=1, whole=True).to_ext())
    yield "of another topic", _frame(RequestCode.LIST_HALVES, ListHalvesRequest("safe", limit=1000).to_ext())
    yield "a hundred", _frame(RequestCode.LIST_HALVES, ListHalvesRequest(limit=MAX_LISTED_HALVES).to_ext()) * _MANY
    yield "a read full", _reads(_frame(RequestCode.LIST_HALVES, ListHalvesRequest(limit=0).to_ext()))


def _list_delayed() -> Requests:
    yield "all", _frame(RequestCode.LIST_DELAYED, ListDelayedRequest(limit=MAX_LISTED_DELAYED).to_ext())
    yield "of another topic", _frame(RequestCode.LIST_DELAYED, ListDelayedRequest("safe", 1000).to_ext())
    yield "a hundred", _frame(RequestCode.LIST_DELAYED, ListDelayedRequest(limit=MAX_LISTED_DELAYED).to_ext()) * _MANY
    yield "a read full", _reads(_frame(RequestCode.LIST_DELAYED, ListDelayedRequest(limit=0).to_ext()))


def _acquire_frame(
    topic: str, group: str, most: int = MAX_ACQUIRED, lease_ms: int = MAX_LEASE_MS, **more: Any
) -> bytes:
    request = AcquireRequest(topic, more.pop("partition", 0), group, "m", most, 1 << 30, lease_ms, **more)
    return _frame(RequestCode.ACQUIRE, request.to_ext())


def _acquire() -> Requests:
    yield "the most", _acquire_frame("t", "most")
    yield "a read full", _reads(_acquire_frame("t", "read"))
    yield "where", _acquire_frame("tagged", "where", lease_ms=1, where="TAGS LIKE '%b%c%'")
    yield "in order", _acquire_frame("t", "ordered", ordered=True)
    yield "in order, other keys each", _acquire_frame("keyed", "ordered", ordered=True)
    yield "groups", b"".join(_acquire_frame("t", f"x{number}", 1, 1) for number in range(2000))
    yield "tags", _acquire_frame("tagged", "tags", tags=tuple(f"{number:x}" for number in range(MAX_PULLED_TAGS)))
    yield "after leases that have ended", lambda worst: worst.ended_leases("ended")
    yield "of many members", lambda worst: worst.many_members("members")
    new = {"ordered": True, "where": " OR ".join([f"a{n} LIKE '%x_y%'" for n in range(MAX_WHERE_CONDITIONS)])}
    yield "another filter of many partitions", lambda worst: worst.many_partitions("spread", **new)


def _settle() -> Requests:
    def settled(*actions: SettleAction, step: int = 1) -> Callable[[Worst], bytes]:
        def frame(worst: Worst) -> bytes:
            group = f"settle{'-'.join(map(str, actions))}-{step}"
            leased = worst.leased(group)
            wanted = [*leased[::step], *(each for first in range(1, step) for each in leased[first::step])]
            rows = [Settlement(*each, 1000, actions[number % len(actions)]) for number, each in enumerate(wanted)]
            rows = rows[:MAX_SETTLEMENTS]
            ext = SettleRequest("t", 0, group, len(rows)).to_ext()
            return _frame(RequestCode.SETTLE, ext, encode_settlements(rows))

        return frame

    yield "acknowledged", settled(SettleAction.ACK)
    yield "acknowledged in between", settled(SettleAction.ACK, step=2)
    yield "released", settled(SettleAction.RELEASE)
    yield "extended", settled(SettleAction.EXTEND)
    yield "each another", settled(*SettleAction)
    rows = [Settlement(number * 20, number + 1, 0, SettleAction.ACK) for number in range(MAX_SETTLEMENTS)]
    ext = SettleRequest("t", 0, "nobody", len(rows)).to_ext()
    yield "of no group", _frame(RequestCode.SETTLE, ext, encode_settlements(rows))


def _shared_status() -> Requests:
    yield "all groups", _frame(RequestCode.SHARED_STATUS, SharedStatusRequest().to_ext())
    yield "a read full", _reads(_frame(RequestCode.SHARED_STATUS, SharedStatusRequest("g0").to_ext()))
    yield "much leased", lambda worst: worst.held_frame("held", _frame(RequestCode.SHARED_STATUS, {}))


def _follow() -> Requests:
    bodies = {
        "empty": b"",
        "many words": b'{"node":"x","offsets":{' + b",".join(b'"%x":0' % n for n in range(1_000_000)) + b"}}",
        "lists": b"[" + b"[]," * 5_000_000 + b"0]",
    }
    for name, body in bodies.items():
        yield name, _frame(RequestCode.FOLLOW, {}, body)


def _authenticate() -> Requests:
    for name, message in {
        "one": "n,,n=app,r=nonce",
        "the longest name": f"n,,n={'a' * (MAX_LOGIN_CHARACTERS - 20)},r=nonce",
        "the longest nonce": f"n,,n=app,r={'x' * (MAX_LOGIN_CHARACTERS - 20)}",
    }.items():
        frame = _frame(RequestCode.AUTHENTICATE, AuthenticateRequest(message).to_ext())
        yield name, frame
        yield f"{name}, a read full", _reads(frame)


FRAMES: Mapping[int, Callable[[], Requests]] = {
    RequestCode.SEND: _send,
    RequestCode.SEND_BATCH: _send_batch,
    RequestCode.SEND_MANY: _send_many,
    RequestCode.PULL: _pull,
    RequestCode.MIN_OFFSET: _small(RequestCode.MIN_OFFSET, PartitionRequest("t", 0)),
    RequestCode.MAX_OFFSET: _small(RequestCode.MAX_OFFSET, PartitionRequest("t", 0)),
    RequestCode.SEARCH_OFFSET_BY_TIME: _small(RequestCode.SEARCH_OFFSET_BY_TIME, SearchByTimeRequest("t", 0, 1 << 40)),
    RequestCode.SEARCH_OFFSET_BY_COUNT: _small(RequestCode.SEARCH_OFFSET_BY_COUNT, SearchByCountRequest("t", 0, 0)),
    RequestCode.MESSAGE_COUNTS: _small(RequestCode.MESSAGE_COUNTS, MessageCountsRequest("t", 0, 1 << 20, 5)),
    RequestCode.VIEW_MESSAGE_BY_ID: _view,
    RequestCode.QUERY_MESSAGE: _search,
    RequestCode.HEARTBEAT: _small(RequestCode.HEARTBEAT),
    RequestCode.AUTHENTICATE: _authenticate,
    RequestCode.STATS: _stats,
    RequestCode.TRANSACTION: _transaction,
    RequestCode.TRANSACTION_OUTCOME: _small(RequestCode.TRANSACTION_OUTCOME, TransactionOutcomeRequest("TX:s:1", 1)),
    RequestCode.CANCEL_DELAYED: _small(RequestCode.CANCEL_DELAYED, CancelDelayedRequest("t", 0, 1)),
    RequestCode.LIST_DELAYED: _list_delayed,
    RequestCode.END_HALF: _small(RequestCode.END_HALF, EndHalfRequest("t", 0, 1, Outcome.COMMITTED)),
    RequestCode.END_HALVES: _end_halves,
    RequestCode.CHECK_HALVES: _check_halves,
    RequestCode.LIST_HALVES: _list_halves,
    RequestCode.RELOAD_CONFIG: _small(RequestCode.RELOAD_CONFIG),
    RequestCode.CLOSE_PARTITIONS: _small(
        RequestCode.CLOSE_PARTITIONS, ClosePartitionsRequest("closed", 0, PARTITIONS - 1)
    ),
    RequestCode.OPEN_PARTITIONS: _small(RequestCode.OPEN_PARTITIONS, OpenPartitionsRequest("closed")),
    RequestCode.FOLLOW: _follow,
    RequestCode.REPLICATION_STATUS: _small(RequestCode.REPLICATION_STATUS),
    RequestCode.RESTART_REPLICATION: _small(RequestCode.RESTART_REPLICATION),
    RequestCode.HAND_OVER: _small(RequestCode.HAND_OVER, HandOverRequest("a")),
    RequestCode.SET_STATUS: _small(RequestCode.SET_STATUS),
    RequestCode.MOVE: _small(RequestCode.MOVE, MoveRequest("t", 0, 0)),
    RequestCode.ACQUIRE: _acquire,
    RequestCode.SETTLE: _settle,
    RequestCode.SHARED_STATUS: _shared_status,
    RequestCode.SHARED_FORGET: _small(RequestCode.SHARED_FORGET, SharedForgetRequest("g1")),
    RequestCode.PREPARED_TRANSACTIONS: _small(
        RequestCode.PREPARED_TRANSACTIONS, PreparedTransactionsRequest(active=True)
    ),
    RequestCode.COMPLETE_TRANSACTION: _small(
        RequestCode.COMPLETE_TRANSACTION, CompleteTransactionRequest("XID:1:1:1:q", "commit")
    ),
}
"""Sources of the requests that are frames, by request code."""


def _line(line: str) -> Callable[[], Requests]:
    """Return a source of requests with this text line: as many as fit into one read, and lines of the greatest allowed
    length.
    """

    def requests() -> Requests:
        data = f"{line}\r\n".encode()
        yield "a read full", _reads(data)
        yield "blanks", _reads(f"{line}{' ' * (MAX_LINE_BYTES - len(line))}\r\n".encode())
        yield "words", _reads(f"{line}{' x' * ((MAX_LINE_BYTES - len(line)) // 2)}\r\n".encode())

    return requests


def _puts() -> Requests:
    yield "a read of them with a transaction's key", _reads(b"put t 0 0 0 0 TX:s:1 1\r\n")
    yield "without a checksum", _reads(b"put t 0 0 0 1\r\n")
    yield "to many partitions", b"".join(b"put many %d 0 0 1\r\n" % n for n in range(10_000))
    yield "of unknown topics", b"".join(b"put u%d 0 0 0 1\r\n" % n for n in range(30_000))[:LARGE_READ_BYTES]
    body = bytes(MAX_BODY_BYTES)
    yield "the largest", b"put t 0 %d 0 1\r\n" % len(body) + body


def _runs() -> Requests:
    yield "a read of them", _reads(encode_put("t", 0, 0, 0, 1, b""))
    run = b"".join(encode_put("many", number % PARTITIONS, 0, 0, 1, b"") for number in range(16_000))
    yield "each to another partition", run[:LARGE_READ_BYTES]
    run = b"".join(encode_put(f"u{number}", 0, 0, 0, 1, b"") for number in range(16_000))
    yield "of unknown topics", run[:LARGE_READ_BYTES]
    flag, attribute = encode_attributes(reserved={"metaq.delay": "3600000"})
    body = encode_body(b"", flag | DELAYED_FLAG, attribute)
    yield "delayed", _reads(encode_put("t", 0, flag | DELAYED_FLAG, checksum(body), 1, body))
    yield "new topics", lambda worst: b"".join(encode_put(name, 0, 0, 0, 1, b"") for name in worst.new_topics(4000))


def _gets() -> Requests:
    yield "a read of them", _reads(b"get t g 0 0 1000000 1\r\n")
    yield "of nothing", _reads(b"get t g 0 99999999 1000 1\r\n")


def _stats_lines() -> Requests:
    for item in ("", "topics", "offsets", "shared"):
        yield item or "broker", f"stats {item}\r\n".encode() * _MANY


def _versions() -> Requests:
    yield "a read of them", _reads(b"v\r\n")


TEXTS: Mapping[type, Callable[[], Requests]] = {
    Put: _puts,
    PutRun: _runs,
    TooLargePut: lambda: iter([("a read of them", b"put t 0 %d 0 1\r\n" % (9 << 20) + bytes(9 << 20))]),
    Sync: _line("sync t 0 0 0 77 0 1"),
    Get: _gets,
    OffsetQuery: _line("offset t g 0 0 1"),
    TransactionCommand: _line("transaction TX:s:9 s BEGIN 1"),
    Stats: _stats_lines,
    Version: _versions,
    IgnoredAnswer: _line("result 200 0 1"),
    PageRequest: lambda: iter(()),  # PAGES
}
"""Sources of the requests that are text commands, by the type of the decoded command."""


def _http(method: str, target: str, body: bytes = b"", content_type: str = "", accept: str = "") -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}", "connection: close"]
    if content_type:
        lines.append(f"content-type: {content_type}")
    if accept:
        lines.append(f"accept: {accept}")
    return "\r\n".join([*lines, "", ""]).encode() + body


_FORM = "application/x-www-form-urlencoded"


def _pages() -> Requests:
    for path in (
        *("", "topics", "topics/many", "cluster", "stats", "stats/topics", "stats/offsets", "stats/shared"),
        *("config", "logging", "thread-dump", "properties", "metrics"),
    ):
        yield f"/{path}", _http("GET", f"/{path}")
    yield "/topics/many as JSON", _http("GET", "/topics/many", accept="application/json")
    yield "a form for a page", _http("POST", "/reload-config", b"&=" * (MAX_BODY_BYTES // 2), _FORM)


def _gateway() -> Requests:
    put = f"/put/t?topic=t&partition=0&flag=0&length={MAX_BODY_BYTES}"
    for name, body in (
        ("&=", b"&=" * (MAX_BODY_BYTES // 2)),
        ("one-letter fields", b"a=1&" * (MAX_BODY_BYTES // 4)),
        ("escapes", b"%41" * (MAX_BODY_BYTES // 3) + b"xx"),
        ("a=escapes", b"a=" + b"%41" * (MAX_BODY_BYTES // 3)),
        ("zeros", bytes(MAX_BODY_BYTES)),
    ):
        yield f"a form of {name}", _http("POST", put, body, _FORM)
    yield "other content", _http("POST", put, bytes(MAX_BODY_BYTES), "application/octet-stream")
    parts = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * (MAX_BODY_BYTES // 60) + b"--x--"
    yield "parts of a form", _http("POST", put, parts, "multipart/form-data; boundary=x")
    yield "headers", _http("POST", put, b"").replace(b"\r\n\r\n", b"\r\n" + b"a: b\r\n" * 400 + b"\r\n")
    yield (
        "chunks",
        _http("POST", put).replace(b"content-length: 0", b"transfer-encoding: chunked")
        + (b"1\r\nx\r\n" * 80_000 + b"0\r\n\r\n"),
    )
    yield "a long address", _http("GET", "/get/t?topic=t&partition=0&offset=0&maxsize=9&" + "&a=" * 5000)


PAGES: Mapping[str, Callable[[], Requests]] = {"pages": _pages, "gateway": _gateway}
"""Sources of HTTP requests: to the dashboard's pages, and to the gateway."""


# --- measuring --------------------------------------------------------------------------------------------------------


def filled_topics(partitions: int) -> dict[str, int]:
    """Return the number of partitions of each topic that the requests use, except `t` and `safe`."""
    return {"many": partitions, "closed": partitions, "tagged": 1, "wide": 1, "keyed": 1}


def _pending(properties: Mapping[str, str]) -> bytes:
    flag, attribute = encode_attributes(reserved=properties)
    flag |= DELAYED_FLAG
    return encode_record(encode_body(b"", flag, attribute), 0, flag)


def fill(do: Callable[[bytes, str], object], partitions: int, groups: int, halves: int, timers: int) -> None:
    """Fill a broker with many objects of each kind. do(data, host) sends requests from the address `host`, and waits
    until they are done.
    """

    def send(topic: str, partition: int, records: list[bytes]) -> None:
        ext = SendBatchRequest(topic, partition, len(records)).to_ext()
        do(_frame(RequestCode.SEND_BATCH, ext, _sized(records)), "127.0.0.1")

    do(_many(("many",), [(0, number, 1) for number in range(partitions)]), "127.0.0.1")
    for _ in range(4):
        send("t", 0, [_LEAST] * 50_000)
    flag, attribute = encode_attributes(tag="a" * 40)
    for _ in range(2):
        send("tagged", 0, [encode_record(encode_body(b"", flag, attribute), 0, flag)] * 50_000)
    keyed = []
    for number in range(100_000):
        flag, attribute = encode_attributes(keys=(f"{number:x}",))
        keyed.append(encode_record(encode_body(b"", flag, attribute), 0, flag))
    for start in (0, 50_000):
        send("keyed", 0, keyed[start : start + 50_000])
    flag, attribute = encode_attributes(properties={f"p{number:x}": "" for number in range(8000)})
    send("wide", 0, [encode_record(encode_body(b"", flag, attribute), 0, flag)] * 200)
    for start in range(0, timers, 50_000):
        send("t", 1, [_pending({"metaq.delay": f"{7_200_000 + start}"})] * min(50_000, timers - start))
    for start in range(0, halves, 50_000):
        send("t", 1, [_pending({"metaq.half": "bank"})] * min(50_000, halves - start))
    requests = [
        AcquireRequest("many", group % partitions, f"g{group}", "m", 1, 1 << 20, 60_000) for group in range(groups)
    ]
    do(b"".join(_frame(RequestCode.ACQUIRE, request.to_ext()) for request in requests), "127.0.0.2")
    frames = []
    for number in range(groups):
        flag, attribute = encode_attributes(reserved={"metaq.half": f"bank{number}"})
        body = encode_body(b"", flag | DELAYED_FLAG, attribute)
        ext = SendRequest("t", 2, flag | DELAYED_FLAG, checksum(body)).to_ext()
        frames.append(_frame(RequestCode.SEND, ext, body))
    do(b"".join(frames), "127.0.0.1")


class _MeasuredReactor(Clock):
    """Reactor whose clock is the processor time of this thread, so that the broker's time limits for a turn apply to
    processor time.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        super().__init__()
        self.steps: list[float] = []
        """Seconds of each step, without the garbage collector's time, because its work is not caused by a single
        request.
        """
        self.kernel: list[float] = []
        """Seconds of each step that were spent in the kernel. Writes of megabytes take such time when a virtual
        machine's host must provide memory.
        """
        self.collecting = 0.0
        """Seconds of the garbage collector's longest run."""
        self._collected = self._collects_since = 0.0
        gc.callbacks.append(self._collects)

    def _collects(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._collects_since = time.thread_time()
        else:
            taken = time.thread_time() - self._collects_since
            self._collected += taken
            self.collecting = max(self.collecting, taken)

    def close(self) -> None:
        """Unregister from the garbage collector."""
        gc.callbacks.remove(self._collects)

    def seconds(self) -> float:
        return time.thread_time() + self._ahead

    def advance_by(self, seconds: float) -> None:
        """Set the clock forward by `seconds`."""
        self._ahead += seconds

    def _sortCalls(self) -> None:  # noqa: N802
        """Do nothing. Twisted's test clock sorts all calls whenever one is added; its reactors do not do this. `turn`
        checks all calls anyway.
        """

    def step(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run a function as one step, and measure it."""
        started, self._collected = time.thread_time(), 0.0
        before = getrusage(RUSAGE_THREAD).ru_stime
        function(*arguments)
        self.steps.append(time.thread_time() - started - self._collected)
        self.kernel.append(getrusage(RUSAGE_THREAD).ru_stime - before)

    def turn(self) -> bool:
        """Run the calls that are due; return whether there were any."""
        now = self.seconds()
        due = sorted((call for call in self.calls if call.getTime() <= now), key=lambda call: call.getTime())
        for call in due:
            if call in self.calls:
                self.calls.remove(call)
                call.called = 1
                self.step(call.func, *call.args)
        return bool(due)


class _Sent(BytesIO):
    """Sink that discards the answers. A growing buffer of megabytes would be copied, and this time would count in the
    broker's steps.
    """

    def write(self, data: Any) -> int:
        return len(data)


class _HttpTransport(StringTransport):
    def unregisterProducer(self) -> None:  # noqa: N802
        """Allow a second call, as real transports do."""
        if self.producer is not None:
            super().unregisterProducer()  # type: ignore[no-untyped-call]


class Worst:
    """A broker with many objects that handles one request after the other."""

    def __init__(
        self,
        directory: Path,
        partitions: int = PARTITIONS,
        groups: int = GROUPS,
        halves: int = HALVES,
        timers: int = TIMERS,
    ):
        self.reactor = _MeasuredReactor()
        self._named = 0
        topics = "".join(
            f"[topic={name}]\nnumPartitions={count}\n" for name, count in filled_topics(partitions).items()
        )
        limits = f"[limits]\nsharedGroups={2 * groups}\nmadeTopics=1000000\n"  # above the limits that the cases need
        self.harness = Harness(directory, topics=topics + limits, reactor=self.reactor)
        fill(self.do, partitions, groups, halves, timers)
        self.harness.time += 3600  # so that the first checks are due

    # --- what a case needs --------------------------------------------------------------------------------------------

    def new_topics(self, count: int) -> tuple[str, ...]:
        """Return names of topics that do not exist yet. A broker creates such a topic when a message is sent to it."""
        self._named += count
        return tuple(f"%RETRY%{self._named - number:x}" for number in range(count))

    def leased(self, group: str, count: int = MAX_SETTLEMENTS, lease_ms: int = MAX_LEASE_MS) -> list[tuple[int, int]]:
        """Lease `count` messages for one member; return the offset and the token of each."""
        found: list[tuple[int, int]] = []
        while len(found) < count:
            request = AcquireRequest("t", 0, group, "m", MAX_ACQUIRED, 1 << 20, lease_ms)
            answer = self.harness.broker.shared.acquire(request)
            self._finish()
            if answer is not None:
                answer.addCallback(
                    lambda leases: found.extend((each.offset, leases.token) for each in leases.handed[0])
                )
        return found

    def ended_leases(self, group: str) -> bytes:
        """Lease as many messages as one request may settle, let these leases end, and return an ACQUIRE request of a
        member.
        """
        self.leased(group, lease_ms=600_000)
        self.reactor.advance_by(601.0)
        return _acquire_frame("t", group)

    def held_frame(self, group: str, frame: bytes) -> bytes:
        """Lease as many messages as one request may settle, and return `frame`."""
        self.leased(group)
        return frame

    def many_members(self, group: str) -> bytes:
        """Let many members wait for messages, and return a request that sends enough messages for all of them."""
        peer = self.harness.connect()
        for number in range(100):
            request = AcquireRequest("keyed", 0, group, f"m{number}", MAX_ACQUIRED, 1 << 30, 1000, 60_000, "latest")
            peer.send(_frame(RequestCode.ACQUIRE, request.to_ext()))
            self._finish()
        records = _sized([_LEAST] * MAX_BATCH_RECORDS)
        return _frame(RequestCode.SEND_BATCH, SendBatchRequest("keyed", 0, MAX_BATCH_RECORDS).to_ext(), records)

    def many_partitions(self, group: str, **more: Any) -> bytes:
        """Let a group use many partitions, and return a request of its first member with other terms (`more`) than
        before.
        """
        shared = self.harness.broker.shared
        for partition in range(500):
            shared.acquire(AcquireRequest("many", partition, group, "m", 1, 1 << 20, 1))
            self._finish()
        self.reactor.advance_by(61.0)
        return _acquire_frame("many", group, **more)

    # --- measuring ----------------------------------------------------------------------------------------------------

    def do(self, data: bytes, host: str = "127.0.0.1") -> list[float]:
        """Handle a request on the broker's port; return the seconds of each of its steps."""
        peer = self.harness.connect(host)
        peer.transport.io = _Sent()
        return self._steps(peer.lose, self._received, peer, data)

    def ask(self, gateway: bool, data: bytes) -> list[float]:
        """Handle an HTTP request of the gateway or the dashboard; return the seconds of each of its steps."""
        broker = self.harness.broker
        root: Any = (
            Gateway(self.harness.gate, broker, broker.logins)
            if gateway
            else Dashboard(broker, self.harness.gate, lambda: None, RecentLog()).resource()
        )
        site = GuardedSite(root, OwnNames([]), broker, self.reactor)
        channel = site.buildProtocol(None)
        transport = _HttpTransport()  # type: ignore[no-untyped-call]
        transport.io = _Sent()
        channel.makeConnection(transport)
        return self._steps(channel.connectionLost, self._fed, channel, data)

    def _steps(
        self, end: Callable[[], None], feed: Callable[[Any, bytes], None], connection: Any, data: bytes
    ) -> list[float]:
        """Call `feed` to deliver the data, then `end` to end the connection. Return the seconds of each step."""
        self.reactor.steps.clear()
        self.reactor.kernel.clear()
        self.reactor.collecting = 0.0
        feed(connection, data)
        self._finish()
        self.reactor.step(end)
        self._finish()
        return list(self.reactor.steps)

    def _received(self, peer: Peer, data: bytes) -> None:
        """Deliver data to the peer's session in pieces as a socket would."""
        session, position = peer.session, 0
        while position < len(data):
            space = session.space
            if space is not None:
                count = min(len(space), len(data) - position, SPACE_READ_BYTES)
                space[:count] = data[position : position + count]
                position += count
                self.reactor.step(session.received, count)
            else:
                chunk = data[position : position + LARGE_READ_BYTES]
                position += len(chunk)
                self.reactor.step(session.dataReceived, chunk)
            for _ in range(100_000):
                if peer.transport.producerState == "producing":
                    break
                if not self._worked():
                    break

    def _fed(self, channel: Any, data: bytes) -> None:
        for position in range(0, len(data), HTTP_READ_BYTES):
            if channel.transport.disconnecting:  # a socket would deliver nothing more
                return
            self.reactor.step(channel.dataReceived, data[position : position + HTTP_READ_BYTES])

    def _worked(self) -> bool:
        worked = self.reactor.turn()
        waiting = self.harness.threads.waiting
        for _ in range(len(waiting)):
            function, done = waiting.pop(0)
            try:
                result = function()
            except Exception as error:
                result = error
            self.reactor.step(done, result)
            worked = True
        return worked

    def _finish(self) -> None:
        for _ in range(100_000):
            if not self._worked():
                return
        raise RuntimeError("it does not end")


def _cases(words: list[str]) -> Iterator[tuple[str, Callable[[Worst], list[float]]]]:
    for code, requests in FRAMES.items():
        for name, data in _chosen(RequestCode(code).name, requests, words):
            yield name, lambda worst, data=data: worst.do(_made(worst, data))  # type: ignore[misc]
    for kind, requests in TEXTS.items():
        for name, data in _chosen(kind.__name__, requests, words):
            yield name, lambda worst, data=data: worst.do(_made(worst, data))  # type: ignore[misc]
    for port, requests in PAGES.items():
        for name, data in _chosen(port, requests, words):
            yield name, lambda worst, data=data, port=port: worst.ask(port == "gateway", _made(worst, data))  # type: ignore[misc]


def _made(worst: Worst, data: bytes | Callable[[Worst], bytes]) -> bytes:
    return data if isinstance(data, bytes) else data(worst)


def _chosen(verb: str, requests: Callable[[], Requests], words: list[str]) -> Requests:
    if words and not any(word.lower() in verb.lower() for word in words):
        return
    for name, data in requests():
        yield f"{verb}, {name}", data


def _above(words: list[str], only: set[str] | None) -> set[str]:
    """Measure cases on a new broker. only: the names of the cases to measure, None for all. Return the names of those
    above the limit.
    """
    above = set()
    with tempfile.TemporaryDirectory() as directory:
        started = time.monotonic()
        worst = Worst(Path(directory))
        keep_for_good()  # as a broker does after its start
        print(f"filled in {time.monotonic() - started:.0f} s")
        for name, measure in _cases(words):
            if only is not None and name not in only:
                continue
            warm_page_cache(Path(directory), WARM_BYTES)
            steps = measure(worst)
            longest = max(steps) * 1e3
            kernel = worst.reactor.kernel[steps.index(max(steps))] * 1e3
            mark = ""
            if longest > LIMIT_MS:
                above.add(name)
                mark = "  above"
            collector = f"{worst.reactor.collecting * 1e3:7.1f} collector"
            print(
                f"{longest:9.1f} ms ({kernel:5.1f} kernel) of {sum(steps) * 1e3:9.1f}, {len(steps):6} steps "
                f"{collector}  {name}{mark}",
                flush=True,
            )
    return above


def main(words: list[str]) -> int:
    """Print the longest step of each case in ms of processor time. Return 1 if a case is above the limit in each
    round.
    """
    above: set[str] | None = None
    for _ in range(ROUNDS):
        above = _above(words, above)
        if not above:
            return 0
    print(f"above {LIMIT_MS:g} ms in each of {ROUNDS} rounds: {'; '.join(sorted(above or ()))}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
