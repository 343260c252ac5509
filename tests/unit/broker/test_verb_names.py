"""Every verb refuses a bad name in each of its fields of text, and what is shown afterwards is whole.

A new verb, or a new field of text, has no entry here yet, and fails.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pytest

from metaq.broker.assembly.stats import stats_text
from metaq.broker.http.metrics import exposition
from metaq.broker.requests.gate import PageRequest
from metaq.protocol.delays import CancelDelayedRequest, ListDelayedRequest
from metaq.protocol.fields import ExtFields
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import CheckHalvesRequest, EndHalfRequest, EndHalvesRequest, ListHalvesRequest
from metaq.protocol.login import AuthenticateRequest
from metaq.protocol.pulls import PullRequest
from metaq.protocol.put_run import LEAST_PUTS, PutRun
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
from metaq.protocol.sends import SendBatchRequest, SendManyRequest, SendRequest
from metaq.protocol.shared import AcquireRequest, SettleRequest, SharedForgetRequest, SharedStatusRequest
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
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
)
from metaq.protocol.transaction_requests import (
    CompleteTransactionRequest,
    TransactionOutcomeRequest,
    TransactionRequest,
)
from tests.unit.broker.harness import put, worked_off

HALF, CONTROL, LONG = "a\ud800", "a\x01b", "a" * 5000
BAD = [HALF, CONTROL, LONG]


class Entry(NamedTuple):
    """A request that names something. others: fields of text that are no names, and why."""

    kind: type[ExtFields] | None
    ext: Mapping[str, Any] = {}
    others: Mapping[str, str] = {}


T = {"topic": "t"}
T0 = {"topic": "t", "partition": 0}
KEY = {"txKey": "TX:s:1"}
ACQUIRED = {"group": "g", "member": "m", "maxRecords": 1, "maxBytes": 99, "leaseMs": 9}
FILTERS = {"tags": "compared with those of messages", "where": "an expression, or an error that names the character"}
CHOICE = "one of a few words"
KEYS = {"txKey": "as 1.x takes them"}
REPEATS = {"repeats": "numbers of the parts"}
SEARCHED = {"key": "compared with those of messages"}
FRAMES = {
    RequestCode.SEND: Entry(SendRequest, T0, KEYS),
    RequestCode.SEND_BATCH: Entry(SendBatchRequest, T0 | {"count": 1}, KEYS),
    RequestCode.SEND_MANY: Entry(SendManyRequest, {"topics": "t", "parts": 1, "count": 1}, REPEATS),
    RequestCode.PULL: Entry(PullRequest, T0 | {"offset": 0, "maxBytes": 99, "group": "g"}, FILTERS),
    RequestCode.MIN_OFFSET: Entry(PartitionRequest, T0),
    RequestCode.MAX_OFFSET: Entry(PartitionRequest, T0),
    RequestCode.SEARCH_OFFSET_BY_TIME: Entry(SearchByTimeRequest, T0 | {"timestamp": 1}),
    RequestCode.SEARCH_OFFSET_BY_COUNT: Entry(SearchByCountRequest, T0 | {"offset": 0, "count": 1}),
    RequestCode.MESSAGE_COUNTS: Entry(MessageCountsRequest, T0),
    RequestCode.VIEW_MESSAGE_BY_ID: Entry(ViewMessageRequest, T0 | {"msgId": 1}),
    RequestCode.QUERY_MESSAGE: Entry(QueryMessageRequest, T0 | {"key": "k"}, SEARCHED),
    RequestCode.HEARTBEAT: Entry(None),
    RequestCode.AUTHENTICATE: Entry(
        AuthenticateRequest, {"message": "n,,n=app,r=x"}, {"message": "SCRAM's", "mechanism": CHOICE}
    ),
    RequestCode.STATS: Entry(StatsRequest, {}, {"item": "any word that is no item is an unknown topic"}),
    RequestCode.TRANSACTION: Entry(
        TransactionRequest,
        KEY | {"type": "BEGIN", "sessionId": "s", "qualifier": "q"},
        KEYS | {"type": CHOICE, "sessionId": "ignored", "qualifier": "compared with those of keys"},
    ),
    RequestCode.TRANSACTION_OUTCOME: Entry(TransactionOutcomeRequest, KEY | {"firstId": 1}, KEYS),
    RequestCode.CANCEL_DELAYED: Entry(CancelDelayedRequest, T0 | {"msgId": 1}),
    RequestCode.LIST_DELAYED: Entry(ListDelayedRequest, T),
    RequestCode.END_HALF: Entry(EndHalfRequest, T0 | {"msgId": 1, "outcome": "committed"}, {"outcome": CHOICE}),
    RequestCode.END_HALVES: Entry(EndHalvesRequest, T0),
    RequestCode.CHECK_HALVES: Entry(CheckHalvesRequest, {"group": "g", "topics": "t", "producer": "p"}),
    RequestCode.LIST_HALVES: Entry(ListHalvesRequest, T | {"group": "g"}, {"state": CHOICE}),
    RequestCode.RELOAD_CONFIG: Entry(None),
    RequestCode.CLOSE_PARTITIONS: Entry(ClosePartitionsRequest, T | {"start": 0, "end": 0}),
    RequestCode.OPEN_PARTITIONS: Entry(OpenPartitionsRequest, T),
    RequestCode.FOLLOW: Entry(None),  # JSON in its body: sets/
    RequestCode.REPLICATION_STATUS: Entry(None),
    RequestCode.RESTART_REPLICATION: Entry(None),
    RequestCode.HAND_OVER: Entry(HandOverRequest, {"node": "a"}),
    RequestCode.SET_STATUS: Entry(None),
    RequestCode.MOVE: Entry(MoveRequest, T0 | {"broker": 0}),
    RequestCode.ACQUIRE: Entry(AcquireRequest, T0 | ACQUIRED, FILTERS | {"start": CHOICE}),
    RequestCode.SETTLE: Entry(SettleRequest, T0 | {"group": "g", "records": 1}),
    RequestCode.SHARED_STATUS: Entry(SharedStatusRequest, {"group": "g"}),
    RequestCode.SHARED_FORGET: Entry(SharedForgetRequest, {"group": "g"}),
    RequestCode.PREPARED_TRANSACTIONS: Entry(None),
    RequestCode.COMPLETE_TRANSACTION: Entry(
        CompleteTransactionRequest, KEY | {"action": "commit"}, KEYS | {"action": CHOICE}
    ),
}
TOO_MANY = 9 << 20
TEXTS = {
    Put: ["put {} 0 5 0 -1 7\r\nhello", "put t 0 5 0 -1 TX:{}:1 7\r\nhello"],
    PutRun: ["put {} 0 5 0 907060870 7\r\nhello" * LEAST_PUTS],
    TooLargePut: [f"put {{}} 0 {TOO_MANY} 0 7\r\n" + "x" * TOO_MANY],
    Sync: ["sync {} 0 5 0 777 7\r\nhello"],
    Get: ["get {} g 0 0 100 7\r\n", "get t {} 0 0 100 7\r\n"],
    OffsetQuery: ["offset {} g 0 0 7\r\n", "offset t {} 0 0 7\r\n"],
    TransactionCommand: ["transaction TX:{}:1 s BEGIN 7\r\n", "transaction TX:s:1 {} BEGIN 7\r\n"],
    Stats: ["stats {} 7\r\n"],
    Version: [],
    IgnoredAnswer: [],
    PageRequest: [],  # by HTTP: http/test_http_pages.py
}
HARMLESS = {"get t {}", "offset t {}", "transaction", "stats", "put t 0"}
"""As 1.x, text commands take any group, session and key; they are in no file or figure."""


def texts_of(kind: type[ExtFields]) -> set[str]:
    """The fields on the wire that are no numbers and no truth values."""
    found = set()
    for hint in get_type_hints(kind, include_extras=True).values():
        if not hasattr(hint, "__metadata__"):
            continue
        base = get_args(hint)[0]
        if get_origin(base) is not None or base not in (int, bool):
            found.add(hint.__metadata__[0].name)
    return found


@pytest.fixture
def shown(harness):
    """Asserts that whatever is shown is whole."""
    harness.connect().send(put("t", 0))
    yield harness
    harness.threads.run()
    exposition(harness.broker)
    for item in ("", "topics", "offsets", "shared", "delayed", "halves", "journal", "disk"):
        assert worked_off(stats_text(harness.broker, item)).endswith(b"END\r\n")
    assert {log.topic for log in harness.store.logs()} <= {"t"}


def test_each_verb_has_an_entry(harness):
    assert set(FRAMES) == set(harness.gate.frames)
    assert set(TEXTS) == set(harness.gate.texts)


FIELDS = [
    pytest.param(code, name, id=f"{code.name}-{name}")
    for code, entry in FRAMES.items()
    if entry.kind is not None
    for name in sorted(texts_of(entry.kind))
]


@pytest.mark.parametrize(("code", "name"), FIELDS)
def test_a_frame_with_a_bad_name_is_refused(shown, caplog, code, name):
    entry = FRAMES[code]
    for bad in [HALF] if name in entry.others else BAD:
        ext = {key: str(value) for key, value in entry.ext.items()} | {name: f"TX:{bad}:1" if name == "txKey" else bad}
        answer = shown.connect().ask_frame(encode_frame(code, 7, ext, 5) + b"hello")
        assert (ascii(bad)[:9], answer.code) == (ascii(bad)[:9], ResponseCode.MESSAGE_ILLEGAL), answer.remark
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("code", [code for code, entry in FRAMES.items() if entry.kind is not None])
def test_the_same_frame_without_it_is_not_illegal(shown, code):
    """What the other test proves would hold of a request that is wrong in itself, too."""
    entry = FRAMES[code]
    assert entry.kind is not None
    entry.kind.from_ext({key: str(value) for key, value in entry.ext.items()})


@pytest.mark.parametrize("line", [line for lines in TEXTS.values() for line in lines], ids=lambda line: line[:12])
def test_a_text_command_with_a_bad_name_is_refused(shown, line):
    for bad in (b"\xed\xa0\x80", b"a\x01b", LONG.encode()):
        peer = shown.connect()
        peer.send(bad.join(part.encode() for part in line.split("{}")))
        shown.threads.run()
        codes = {answer.code for answer in peer.answers() if hasattr(answer, "code")}
        if not any(line.startswith(each.partition("{}")[0]) for each in HARMLESS):
            assert codes, bad[:9]
            assert Status.SUCCESS not in codes, bad[:9]
