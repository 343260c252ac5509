"""VIEW_MESSAGE_BY_ID and QUERY_MESSAGE on a whole broker: answers, partitions, bounds, what is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaq.broker.reading import search as broker_searches
from metaq.broker.runtime.account import Shares
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.record import checksum, encode_attributes, encode_body, encode_record, iter_headers
from metaq.protocol.remoting import FoundReply, QueryMessageRequest, ViewMessageRequest, decode_found
from metaq.protocol.sends import SendReply
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_put
from tests.unit.broker.harness import NOW, Harness, Peer, noted, put, raw_batch


def keyed(peer: Peer, partition: int, *keys: str, topic: str = "t", payload: bytes = b"p") -> SendReply:
    """Send one message with keys."""
    flag, attribute = encode_attributes(keys=keys)
    record = encode_record(encode_body(payload, flag, attribute), 0, flag)
    return SendReply.from_ext(peer.ask_frame(raw_batch(topic, partition, [record])).ext)


def ask(peer: Peer, request: ViewMessageRequest | QueryMessageRequest) -> Frame:
    by_id = isinstance(request, ViewMessageRequest)
    code = RequestCode.VIEW_MESSAGE_BY_ID if by_id else RequestCode.QUERY_MESSAGE
    return peer.ask_frame(encode_frame(code, 1, request.to_ext()), work=True)


def found(frame: Frame) -> list[tuple[int, int, int]]:
    """(partition, offset, id) of each message, with the records checked."""
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    reply = FoundReply.from_ext(frame.ext)
    assert reply.unsearched == 0
    rows = []
    for row, record in decode_found(frame.body, reply.messages):
        (header,) = iter_headers(record)
        assert header.checksum == checksum(record[20:])
        rows.append((row.partition, row.offset, header.id))
    return rows


def test_a_message_is_found_by_its_id_whatever_its_partition(peer, harness):
    sent = [keyed(peer, partition, "k") for partition in (0, 1, 2, 0, 1)]
    for reply in sent:
        expected = [(reply.partition, reply.offset, reply.message_id)]
        assert found(ask(peer, ViewMessageRequest("t", reply.message_id))) == expected
        assert found(ask(peer, ViewMessageRequest("t", reply.message_id, reply.partition))) == expected
        other = ask(peer, ViewMessageRequest("t", reply.message_id, (reply.partition + 1) % 3))
        assert other.code == ResponseCode.QUERY_NOT_FOUND
        assert FoundReply.from_ext(other.ext) == FoundReply(0, 0, False)


def test_messages_with_a_key_come_newest_first_over_all_partitions(peer, harness):
    sent = []
    for number, partition in enumerate((2, 0, 1, 0, 2)):
        harness.time = NOW + number
        reply = keyed(peer, partition, "other", f"k{number}", "same")
        sent.append((reply.partition, reply.offset, reply.message_id))
    keyed(peer, 0, "somebody")
    assert found(ask(peer, QueryMessageRequest("t", "same"))) == sent[::-1]
    assert found(ask(peer, QueryMessageRequest("t", "same", oldest_first=True))) == sent
    assert found(ask(peer, QueryMessageRequest("t", "k3"))) == [sent[3]]
    frame = ask(peer, QueryMessageRequest("t", "same", max_messages=2))
    assert found(frame) == sent[:-3:-1]
    assert FoundReply.from_ext(frame.ext).more
    begin, end = int(NOW * 1000) + 1000, int(NOW * 1000) + 3000
    assert found(ask(peer, QueryMessageRequest("t", "same", 9, begin, end))) == sent[3:0:-1]
    assert ask(peer, QueryMessageRequest("t", "KEYS")).code == ResponseCode.QUERY_NOT_FOUND


def test_an_answer_is_as_large_as_a_pull_s_but_has_one_message_at_least(peer, harness):
    for _ in range(3):
        keyed(peer, 0, "big", payload=bytes(700))  # maxTransferSize is 1,000
    frame = ask(peer, QueryMessageRequest("t", "big"))
    assert len(found(frame)) == 1
    assert FoundReply.from_ext(frame.ext).more
    keyed(peer, 1, "huge", payload=bytes(70_000))
    assert len(found(ask(peer, QueryMessageRequest("t", "huge")))) == 1


def test_messages_of_the_text_protocol_are_found_by_the_id_they_were_answered_with(peer, harness):
    answer = peer.ask(encode_put("t", 1, 0, checksum(b"hello"), 1, b"hello"))
    message_id, partition, offset = map(int, answer.text.split())
    assert found(ask(peer, ViewMessageRequest("t", message_id))) == [(partition, offset, message_id)]


def test_what_is_not_there_is_said_in_the_same_words_as_by_other_requests(peer, harness):
    assert ask(peer, ViewMessageRequest("nope", 1)).code == ResponseCode.TOPIC_NOT_EXIST
    assert ask(peer, ViewMessageRequest("t", 1, 3)).code == ResponseCode.TOPIC_NOT_EXIST
    assert ask(peer, ViewMessageRequest("t", 1)).code == ResponseCode.QUERY_NOT_FOUND
    assert ask(peer, ViewMessageRequest("t", -1, 2)).code == ResponseCode.QUERY_NOT_FOUND


def test_a_closed_partition_is_not_read_and_not_passed_over_in_silence(peer, harness):
    reply = keyed(peer, 1, "k")
    keyed(peer, 2, "k")
    harness.broker.partitions.close("t", 1, 1)
    frame = ask(peer, QueryMessageRequest("t", "k"))
    answer = FoundReply.from_ext(frame.ext)
    assert (answer.messages, answer.unsearched) == (1, harness.store.get("t", 1).segments.size_bytes)
    assert ask(peer, ViewMessageRequest("t", reply.message_id, 1)).code == ResponseCode.NO_PERMISSION


WRONG = [{"key": ""}, {"key": "k" * 70_000}, {"maxNum": "1025"}, {"oldest": "2"}, {"partition": "-2"}]


@pytest.mark.parametrize(
    "ext", [{"topic": "t"}, {"key": "k"}, *({"topic": "t", "key": "k"} | wrong for wrong in WRONG)]
)
def test_wrong_fields_are_refused(peer: Peer, ext: dict[str, str | int]) -> None:
    assert peer.ask_frame(encode_frame(RequestCode.QUERY_MESSAGE, 1, ext)).code == ResponseCode.MESSAGE_ILLEGAL


def test_a_bounded_number_runs_and_waits_and_addresses_take_turns(peer, harness):
    harness.broker.account.searches = Shares("searches for messages", "", 16, 50)
    keyed(peer, 0, "k")
    request = encode_frame(RequestCode.QUERY_MESSAGE, 1, QueryMessageRequest("t", "k").to_ext())
    for _ in range(18):
        peer.send(request)
    assert len(harness.threads.waiting) == broker_searches.MAX_RUNNING_SEARCHES
    refused = peer.frames()
    assert [frame.code for frame in refused] == [ResponseCode.SYSTEM_BUSY] * 3
    assert "too many searches for messages" in refused[0].remark
    other = harness.connect("10.0.0.2")
    other.send(request)
    answered = 0
    while not (found := other.frames()):
        harness.threads.run_one()
        answered += len(peer.frames())
    assert found[0].code == ResponseCode.SUCCESS
    assert answered <= 3
    harness.threads.run()
    assert answered + len(peer.frames()) == 15
    assert harness.broker.account.searches.used == 0


def test_many_partitions_are_searched_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaq.broker.tuning.SEARCH_LOGS_PER_STEP", 2)
    harness = Harness(tmp_path, topics="[topic=wide]\nnumPartitions=9\n")
    peer = harness.connect()
    sent = [keyed(peer, partition, "k", topic="wide") for partition in range(9)]
    assert len(found(ask(peer, QueryMessageRequest("wide", "k")))) == 9
    first = found(ask(peer, QueryMessageRequest("wide", "k", max_messages=3, oldest_first=True)))
    assert [message_id for _, _, message_id in first] == [reply.message_id for reply in sent[:3]]
    for reply in sent:
        assert found(ask(peer, ViewMessageRequest("wide", reply.message_id)))[0][0] == reply.partition
    harness.store.close()


def test_plain_messages_have_no_keys(peer, harness):
    peer.ask(put("t", 0, b"KEYS\x01k\x02"))
    assert ask(peer, QueryMessageRequest("t", "k")).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(("body", "count"), [(b"", 1), (bytes(24), 1), (bytes(48), 1), (b"x", 0)])
def test_a_body_that_its_rows_do_not_fill_is_refused(body: bytes, count: Any) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_found(memoryview(body), count)


def test_the_partitions_of_a_topic_are_looked_at_in_turns(peer, harness, monkeypatch):
    sent = [keyed(peer, partition, "k") for partition in (0, 1, 2)]
    monkeypatch.setattr("metaq.broker.tuning.SEARCH_LOGS_PER_STEP", 1)
    looked_at = noted(monkeypatch, harness.broker.partitions, "for_read", lambda topic, partition: partition)
    peer.send(encode_frame(RequestCode.QUERY_MESSAGE, 1, QueryMessageRequest("t", "k", 9).to_ext()))
    assert len(looked_at) <= 2
    harness.threads.run()
    (frame,) = peer.frames()
    assert sorted(found(frame)) == sorted((each.partition, each.offset, each.message_id) for each in sent)
    assert set(looked_at) == {0, 1, 2}
