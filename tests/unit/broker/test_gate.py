"""The gate: each request passes it once before anything is done for it, and a check there can refuse any."""

from collections import Counter
from pathlib import Path

import pytest

from metaq.broker.assembly.verbs import make_gate
from metaq.broker.requests.gate import PageRequest
from metaq.protocol.access import AccessOperation, Need
from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import ONE_WAY, encode_frame
from metaq.protocol.limits import MAX_BODY_BYTES
from metaq.protocol.put_run import LEAST_PUTS, PutRun
from metaq.protocol.requests import RequestReader
from metaq.protocol.sends import announced_topics
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
    encode_put,
)
from tests.unit.broker.harness import pull, put, send

NO = "nothing is permitted here"
RUN = [put("t", number % 3, b"body", number) for number in range(LEAST_PUTS)]
TOO_LARGE = MAX_BODY_BYTES + 1

TEXTS = {
    Put: put("t", 0, opaque=7),
    PutRun: b"".join(RUN),
    TooLargePut: b"put t 0 %d 0 7\r\n" % TOO_LARGE + bytes(TOO_LARGE),
    Sync: b"sync t 0 5 0 777 7\r\nhello",
    Get: b"get t g 0 0 100 7\r\n",
    OffsetQuery: b"offset t g 0 0 7\r\n",
    TransactionCommand: b"transaction TX:s:1 s BEGIN 7\r\n",
    Stats: b"stats t 7\r\n",
    Version: b"version 7\r\n",
    IgnoredAnswer: b"result 200 3 7\r\n0.1",
    PageRequest: b"",  # by HTTP: http/test_http_pages.py
}
"""A request of each type. In front of what refuses it nobody looks into a frame, so those are made of their code."""

IN_TRANSACTION = {Put: b"put t 0 5 0 -1 TX:s:1 7\r\nhello"}
MANY_TOPICS = {"topics": "t/safe/t", "parts": 3, "count": 3}


def refuse_all(*asked):
    raise MetaqError(NO)


def refuse_safe(need, *_):
    if need.topic == "safe":
        raise MetaqError(NO)


class Asked:
    """A guard that asks a function."""

    by_grants = False

    def __init__(self, check):
        self.check = check


def guarded(harness, check=None, guard=None):
    """Its sessions ask `check` about the request, and `guard` about what it needs."""
    harness.gate = make_gate(harness.broker, check)
    harness.gate.guard = guard and Asked(guard)
    return harness.connect()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def filled(harness):
    """What is there before, and what a request could change: a closed partition, an open transaction."""
    peer = harness.connect("127.0.0.1")
    peer.send(put("t", 0) + b"transaction TX:s:1 s BEGIN 1\r\n" + IN_TRANSACTION[Put])
    harness.threads.run()
    assert [answer.code for answer in peer.answers()] == [200, 200, 200]
    return harness


def frames(harness):
    """(code, extFields) of each row, also of those for messages in a transaction."""
    found = []
    for code, verb in harness.gate.frames.items():
        ext = MANY_TOPICS if code == RequestCode.SEND_MANY else {"topic": "t", "partition": "0"}
        found += [(code, ext)] + ([(code, ext | {"txKey": "TX:s:1"})] if verb.in_transaction else [])
    return found


@pytest.mark.parametrize("refuses", ["check", "guard"])
def test_a_check_that_refuses_all_leaves_no_text_command_through(filled, tmp_path, refuses):
    before = contents(tmp_path)
    seen = []

    def check(verb, request):
        seen.append(type(request))
        if refuses == "check":
            raise MetaqError(NO)

    peer = guarded(filled, check, refuse_all)
    assert set(TEXTS) == set(filled.gate.texts), "a request for each"
    assert set(IN_TRANSACTION) == {kind for kind, verb in filled.gate.texts.items() if verb.in_transaction}
    for kind, data in [*TEXTS.items(), *IN_TRANSACTION.items()]:
        peer.send(data)
        answers = [(answer.code, answer.text, answer.opaque) for answer in peer.answers()]
        if kind in (IgnoredAnswer, PageRequest):
            expected = []
        elif kind is PutRun:
            expected = [(Status.ERROR, NO, number) for number in range(len(RUN))]
        else:
            expected = [(Status.ERROR, NO, 7)]
        assert answers == expected, kind
        assert seen == [kind] * bool(data), "that is what it is, and it is asked once"
        seen.clear()
    peer.send(b"transaction TX:s:1 s END 7\r\n")
    assert peer.received() == b""  # never answered
    unchanged(filled, before, tmp_path)


@pytest.mark.parametrize("refuses", ["check", "guard"])
def test_a_check_that_refuses_all_leaves_no_frame_through(filled, tmp_path, refuses):
    before = contents(tmp_path)
    peer = guarded(filled, **{refuses: refuse_all})
    assert set(filled.gate.frames) == set(RequestCode)
    for code, ext in frames(filled):
        answer = peer.ask_frame(encode_frame(code, 7, ext, 5) + b"hello")
        assert (answer.code, answer.remark, answer.opaque) == (ResponseCode.SYSTEM_ERROR, NO, 7), (code, ext)
        peer.send(encode_frame(code, 7, ext, 5, flag=ONE_WAY) + b"hello")
        assert peer.received() == b"", code
    unchanged(filled, before, tmp_path)


def unchanged(harness, before, directory):
    harness.threads.run()
    harness.turn()
    assert contents(directory) == before
    assert [(log.topic, log.partition, log.end_offset) for log in harness.store.logs()] == [("t", 0, 25)]
    assert harness.broker.partitions.closed("t") == []
    assert not harness.broker.pending_puts.bytes


def test_refusals_come_in_the_order_of_the_commands(filled):
    peer = guarded(filled, guard=refuse_safe)
    peer.send(put("t", 0, opaque=1) + put("safe", 0, opaque=2) + put("t", 0, opaque=3) + b"get safe g 0 0 9 4\r\n")
    answers = [(each.opaque, each.code, each.text == NO) for each in peer.answers()]
    assert answers == [(1, 200, False), (2, 500, True), (3, 200, False), (4, 500, True)]
    assert not any(log.topic == "safe" for log in filled.store.logs())


def test_of_a_run_the_puts_of_refused_topics_are_refused(harness):
    asked = []

    def refuse(need, peer, request):
        asked.append(need)
        refuse_safe(need, peer)

    topics = [("t", "safe")[number % 5 == 0] for number in range(2 * LEAST_PUTS)]
    peer = guarded(harness, guard=refuse)
    peer.send(b"".join(put(topic, 0, b"body", number) for number, topic in enumerate(topics)))
    harness.threads.run()
    assert asked == [Need(AccessOperation.SEND, topic) for topic in ("safe", "t")]  # once for each topic, not each put
    answers = peer.answers()
    expected = [(number, 200 if topic == "t" else 500) for number, topic in enumerate(topics)]
    assert [(each.opaque, each.code) for each in answers] == expected
    assert {each.text for each in answers if each.code == 500} == {NO}
    assert [(log.topic, log.segments.message_count) for log in harness.store.logs()] == [("t", topics.count("t"))]


def test_a_check_is_told_the_row_and_a_guard_the_topics_and_the_peer(harness):
    asked = []
    peer = guarded(
        harness,
        lambda verb, request: asked.append(verb),
        lambda need, peer, request: asked.append((need, peer)),
    )
    gate = harness.gate
    for code, ext in frames(harness):
        peer.send(encode_frame(code, 7, ext, 5) + b"hello")
        verb = gate.frames[code]
        row = verb.in_transaction if "txKey" in ext else verb
        needs = [each for each in asked if each is not row and each != row]
        assert asked[:1] == [row]
        assert needs[:2] == [(need, peer.session) for need in row.needs(decoded(code, ext))], code
        asked.clear()
    assert announced_topics({}) == (None,)


def decoded(code, ext):
    (frame,) = RequestReader().receive(encode_frame(code, 7, ext, 5) + b"hello")
    return frame


def test_what_has_to_wait_passes_the_gate_once(harness):
    """A connection that is held back, one that others get their turn before, a pull that is woken, work in slices."""
    asked: Counter[int] = Counter()

    def count(verb, request):
        asked[request.opaques[0] if isinstance(request, PutRun) else request.opaque] += 1

    harness.broker.pending_puts.limit = 2000
    peer = guarded(harness, count)
    body = b"x" * 500
    data = [put("safe", 0, body * 6, 1), put("safe", 0, body, 2), send("safe", 0, body, 3), b"get t g 0 0 9 4\r\n"]
    data += [pull("t", 1, 0, opaque=5, wait_ms=1000), put("t", 1, body, 6)]
    data += [b"".join(put("safe", 0, body, 100 + number) for number in range(LEAST_PUTS))]
    for part in data:  # what is not read yet comes when it is
        peer.send(part)
    harness.connect().send(put("t", 1, opaque=9))
    for _ in range(len(data)):
        harness.threads.run()
        harness.turn()
    got = peer.received()
    assert got.count(b"result 200") == 3 + LEAST_PUTS, got
    assert asked == dict.fromkeys((1, 2, 3, 4, 5, 6, 9, 100), 1)


@pytest.mark.parametrize("asked", ["check", "guard"])
def test_a_check_with_a_bug_permits_nothing(harness, caplog, asked):
    peer = guarded(harness, **{asked: lambda *asked: 1 / 0})
    assert peer.ask(put("t", 0)).text == "internal error: ZeroDivisionError"
    assert "ZeroDivisionError" in caplog.text
    assert list(harness.store.logs()) == []


def test_the_same_requests_are_served_without_a_check(filled):
    """What the others prove would hold of a broker that answers nothing, too."""
    peer = filled.connect()
    peer.send(TEXTS[Put] + TEXTS[Version] + encode_put("t", 0, 0, -1, 8, b"x") + TEXTS[PutRun])
    assert {answer.code for answer in peer.answers()} == {200}
    assert peer.ask_frame(send("t", 0, b"x")).code == ResponseCode.SUCCESS
    assert len(list(filled.store.logs())) == 3
