"""SEND_MANY: parts of several partitions in one frame, each stored or refused on its own, answered together."""

import gc
from itertools import starmap
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.protocol.errors import RemoteProtocolError, SlaveDisconnected
from metaq.protocol.frames import encode_frame
from metaq.protocol.record import COMPRESSED_FLAG, DELAYED_FLAG, HEADER_BYTES, encode_record, iter_headers
from metaq.protocol.sends import SendManyRequest, decode_rows, encode_rows, split_many
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.raising import raising
from tests.unit.broker.harness import many, put, record

OK = ResponseCode.SUCCESS


class Row(NamedTuple):
    """What became of one part."""

    message_id: int
    offset: int
    partition: int
    code: int


def rows(frame):
    assert (frame.code, frame.opaque) == (OK, 1), frame.remark
    return list(starmap(Row, zip(*decode_rows(frame.body, int(frame.ext["parts"])), strict=True)))


def test_each_part_is_one_append_and_one_row(peer, harness, appends):
    peer.ask(put("t", 1))
    parts = [("t", 1, [record(b"a"), record(b"bc")]), ("wildcat", 0, [record()]), ("t", 0, [record(b"d" * 9, 1)])]
    answer = peer.ask_frame(many(parts))
    first, second, third = rows(answer)
    assert [row[1:] for row in (first, second, third)] == [(25, 1, OK), (0, 0, OK), (0, 0, OK)]
    assert appends[1:] == [("t", 1, 2), ("wildcat", 0, 1), ("t", 0, 1)]
    assert answer.remark == ""
    units = harness.store.get("t", 1).lookup.units(0, 1000)
    assert units["offset"].tolist() == [0, 25, 46]
    assert units["size"].tolist() == [25, 21, 22]
    assert units["id"].tolist()[1:] == [first.message_id, first.message_id + 1]
    assert [row.message_id - first.message_id for row in (second, third)] == [2, 3]
    assert harness.store.get("t", 1).segments.read(46, 100) == encode_record(b"bc", first.message_id + 1, 0)
    assert harness.store.get("t", 0).segments.read(0, 100) == encode_record(b"d" * 9, third.message_id, 1)
    assert (harness.broker.metrics.cmd_put, harness.broker.metrics.put_failed) == (5, 0)


def test_a_refused_part_leaves_the_others_as_they_are(peer, harness):
    damaged = record(b"abc")[:-1] + b"X"
    harness.broker.partitions.close("t", 2, 2)
    parts = {
        ("t", 0): ([record(), damaged], ResponseCode.MESSAGE_ILLEGAL),
        ("t", 1): ([record()], OK),
        ("t", 2): ([record()], ResponseCode.NO_PERMISSION),
        ("t", 3): ([record()], ResponseCode.TOPIC_NOT_EXIST),
        ("none", 0): ([record()], ResponseCode.TOPIC_NOT_EXIST),
    }
    sent = [(*where, records) for where, (records, _) in parts.items()]
    answer = peer.ask_frame(many([*sent, ("t", 1, [record(b"again")])]))
    found = rows(answer)
    assert [row.code for row in found] == [*(code for _, code in parts.values()), OK]
    assert [(row.partition, row.offset) for row in found if row.code == OK] == [(1, 0), (1, 25)]
    assert "Checksum failure" in answer.remark
    assert {log.partition: log.segments.message_count for log in harness.store.logs()} == {1: 2}
    assert harness.broker.metrics.put_failed == 4  # a closed partition is not counted


@pytest.mark.parametrize("flag", [0, DELAYED_FLAG, COMPRESSED_FLAG])
def test_nothing_is_left_of_refused_parts(peer, harness, flag):
    """Else an error and the frames of its traceback hold each other, for each of them."""
    frame = many([(f"nobodys-{number}", 0, [record(flag=flag)]) for number in range(300)])
    peer.send(frame)
    gc.collect()
    gc.disable()
    try:
        peer.send(frame)
        harness.threads.run()
        left = gc.collect()
    finally:
        gc.enable()
    first, second = peer.frames()
    assert first.code == second.code == OK
    assert OK not in [row.code for row in rows(second)]
    assert left < 100


def test_a_log_that_takes_no_writes_refuses_its_parts_only(peer, harness):
    peer.ask(put("t", 0))
    harness.store.get("t", 0).durability.read_only = "disk full"
    answer = peer.ask_frame(many([("t", 1, [record()]), ("t", 0, [record()]), ("t", 0, [record()])]))
    assert [row.code for row in rows(answer)] == [OK] + [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert "disk full" in answer.remark


def test_the_broker_chooses_a_partition_where_none_is_named(peer, harness):
    found = rows(peer.ask_frame(many([("t", -1, [record()]) for _ in range(50)])))
    assert {row.partition for row in found} == {0, 1, 2}
    assert sum(log.segments.message_count for log in harness.store.logs()) == 50
    for partition in range(3):
        offsets = [row.offset for row in found if row.partition == partition]
        assert offsets == list(range(0, 25 * len(offsets), 25))


@pytest.mark.parametrize("fails", [False, True])
def test_the_answer_waits_until_all_parts_are_safe_and_a_failed_sync_refuses_those(peer, harness, monkeypatch, fails):
    peer.send(many([("t", 0, [record()]), ("safe", 0, [record()]), ("safe", 1, [record(), record()])]))
    assert peer.received() == b""
    assert harness.store.get("t", 0).segments.message_count == 1
    if fails:
        monkeypatch.setattr(harness.store.files, "fdatasync", raising(OSError(5, "Input/output error")))
    harness.threads.run()
    (answer,) = peer.frames()
    assert [row.code for row in rows(answer)] == [OK, *[ResponseCode.SERVICE_NOT_AVAILABLE if fails else OK] * 2]
    assert ("read-only" in answer.remark) == fails
    assert harness.broker.metrics.put_failed == 3 * fails


class Slave:
    """A synchronous slave that refuses what goes to partition 1."""

    def __init__(self):
        self.got = []

    def check(self):
        pass

    def replicate(self, log, records, done):
        found = list(iter_headers(records))
        bodies = [bytes(records[header.start + HEADER_BYTES : header.end]) for header in found]
        self.got.append((log.partition, bodies, [header.id for header in found]))
        done([SlaveDisconnected() if log.partition == 1 else None for _ in found])


def test_a_synchronous_master_answers_when_its_slave_has_every_part(peer, harness):
    slave = harness.broker.writing.slave = Slave()
    found = rows(peer.ask_frame(many([("t", 0, [record(b"a"), record(b"b")]), ("t", 1, [record(b"c")])])))
    assert [row.code for row in found] == [OK, ResponseCode.SERVICE_NOT_AVAILABLE]
    first = found[0].message_id
    assert slave.got == [(0, [b"a", b"b"], [first, first + 1]), (1, [b"c"], [first + 2])]


@pytest.mark.parametrize(
    "frame",
    [
        many([("t", 0, [record()])], wrong={"parts": 2}),
        many([("t", 0, [record()])], wrong={"parts": 0}),
        many([("t", 0, [record()])], wrong={"count": 2}),
        many([("t", 0, [record()]), ("t", 1, [])]),
        many([("t", 0, [record()]), ("u", 1, [record()])], wrong={"topics": "t"}),
        many([("t", -2, [record()])]),
        many([("t", 0, [record() + b"x"])]),
        many([("t", 0, [b"short"])]),
        encode_frame(RequestCode.SEND_MANY, 1, {"topics": "t", "parts": 1}),
    ],
)
def test_a_frame_whose_tables_do_not_fit_is_refused_as_a_whole(peer, harness, frame):
    answer = peer.ask_frame(frame)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark
    assert list(harness.store.logs()) == []


PLACES = st.sampled_from([("t", 0), ("t", 1), ("t", 2), ("wildcat", 0)])
PARTS = st.lists(st.tuples(PLACES, st.lists(st.binary(max_size=40), min_size=1)), min_size=1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PARTS)
def test_every_record_is_where_its_row_says(harness, parts):
    peer = harness.connect()
    frame = peer.ask_frame(many([(*where, [record(body) for body in bodies]) for where, bodies in parts]))
    for ((topic, _), bodies), row in zip(parts, rows(frame), strict=True):
        log = harness.store.get(topic, row.partition)
        expected = b"".join(encode_record(body, row.message_id + at, 0) for at, body in enumerate(bodies))
        stored = b""
        while len(stored) < len(expected):  # a segment ends somewhere
            stored += log.segments.read(row.offset + len(stored), len(expected) - len(stored))
        assert stored == expected


@given(st.binary(max_size=200), st.integers(1, 4), st.integers(1, 9))
def test_any_body_is_split_or_refused(body, parts, records):
    request = SendManyRequest(("t", "u"), parts, records)
    try:
        found = split_many(memoryview(body), request)
    except RemoteProtocolError:
        return
    assert len(found.topics) == len(found.partitions) == len(found.counts) == parts
    assert int(found.counts.sum()) == len(found.sizes) == records
    assert int(found.sizes.sum()) == len(found.records)


def test_the_rows_of_an_answer_come_back():
    columns = [2**62, -1], [2**40, 0], [7, -1], [0, 1010]
    body = encode_rows(*columns)
    assert decode_rows(body, 2) == columns
    with pytest.raises(RemoteProtocolError):
        decode_rows(body[:-1], 2)
