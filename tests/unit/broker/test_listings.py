"""LIST_DELAYED and LIST_HALVES: what they cost is done in one worker thread at a time, with pauses."""

from base64 import b64decode

import pytest
import simplejson

from metaq.broker.runtime.account import MAX_LISTS
from metaq.protocol.delays import ListDelayedRequest
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import ListHalvesRequest
from metaq.protocol.record import DELAYED_FLAG, encode_attributes, encode_body, encode_record
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import raw_batch

LISTS = {
    "halves": (RequestCode.LIST_HALVES, ListHalvesRequest, {"metaq.half": "bank"}),
    "messages": (RequestCode.LIST_DELAYED, ListDelayedRequest, {"metaq.delay": "60000"}),
}


@pytest.fixture(params=list(LISTS))
def items(request):
    return request.param


def fill(peer, harness, items, count, payload=b"pay"):
    flag, attribute = encode_attributes(reserved=LISTS[items][2])
    flag |= DELAYED_FLAG
    record = encode_record(encode_body(payload, flag, attribute), 0, flag)
    answer = peer.ask_frame(raw_batch("t", 0, [record] * count), work=True)
    assert answer.code == ResponseCode.SUCCESS
    return encode_body(payload, flag, attribute)


def ask(items, opaque=1, **more):
    code, request, _ = LISTS[items]
    return encode_frame(code, opaque, request(**more).to_ext())


def listed(peer, items):
    (frame,) = peer.frames()
    return simplejson.loads(bytes(frame.body).decode())[items]


def test_one_list_is_made_at_a_time_and_each_in_an_iteration_of_its_own(peer, harness, items):
    fill(peer, harness, items, 3)
    peers = [harness.connect() for _ in range(5)]
    for each in peers:
        each.send(ask(items))
    answered = 0
    while answered < len(peers):
        assert len(harness.threads.waiting) == 1
        harness.threads.run()
        assert not harness.threads.waiting
        answered += 1
        done = [each for each in peers if each.transport.value()]
        assert len(done) == answered
        harness.reactor.advance(0.001)
    assert [len(listed(each, items)) for each in peers] == [3] * 5


def test_so_many_lists_wait_and_further_ones_are_refused(peer, harness, items):
    fill(peer, harness, items, 3)
    flood, other = harness.connect("127.0.0.2"), harness.connect("127.0.0.1")
    flood.send(ask(items) * 200)
    harness.turn()
    refused = flood.frames()
    alone = MAX_LISTS - MAX_LISTS // 16
    assert [frame.code for frame in refused] == [ResponseCode.SYSTEM_BUSY] * (200 - alone)
    other.send(ask(items))
    while harness.threads.waiting:
        harness.threads.run()
        harness.reactor.advance(0.001)
    assert len(listed(other, items)) == 3
    assert len(flood.frames()) == alone
    assert harness.broker.account.lists.used == 0


def test_a_list_is_made_with_pauses(peer, harness, items):
    fill(peer, harness, items, 1000)
    harness.pauses.clear()
    peer.send(ask(items, limit=1000))
    harness.threads.run()
    assert len(listed(peer, items)) == 1000
    assert len(harness.pauses) >= 2 * 1000 // 64 - 4  # described and encoded


def test_a_large_message_is_encoded_with_pauses(peer, harness):
    body = fill(peer, harness, "halves", 1, bytes(range(256)) * 4096)
    harness.pauses.clear()
    peer.send(ask("halves", limit=1, whole=True))
    harness.threads.run()
    (half,) = listed(peer, "halves")
    assert b64decode(half["body"]) == body
    assert len(harness.pauses) >= 5


def test_how_many_wait_is_told_at_once(peer, harness, items):
    fill(peer, harness, items, 2)
    peer.send(ask(items))
    other = harness.connect()
    other.send(ask(items, limit=0))
    assert listed(other, items) == []
