"""Delayed messages of one broker: delivered once, in order, never early, whatever happens in between."""

import json
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from metaq.broker import tuning
from metaq.broker.assembly import kinds
from metaq.broker.memory.topics import DELAYED_TOPIC
from metaq.broker.store.partition_log import PartitionLog
from metaq.cli.app import run
from metaq.protocol.delays import CancelDelayedRequest, ListDelayedRequest, due_ms, pending_ids
from metaq.protocol.errors import DiskFull
from metaq.protocol.frames import encode_frame
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.record import DELAYED_FLAG, attribute_of, iter_headers, property_of
from metaq.protocol.sends import decode_rows
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from tests.raising import raising
from tests.unit.broker import harness
from tests.unit.broker.harness import NOW, lose_partition, noted, place, put, raw_batch, records_of, reserved

OK, ILLEGAL = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL
NOW_MS = int(NOW * 1000)
ALICE = 1
LOOSE_AND_SAFE = "topic", ["t", "safe"]


def delayed(payload, delay=None, due=None):
    """Flag and body."""
    return reserved(payload, {"metaq.due": str(due)} if delay is None else {"metaq.delay": str(delay)})


def send(topic, partition, payload, delay=None, due=None, **more):
    flag, body = delayed(payload, delay, due)
    return harness.send(topic, partition, body, flag=flag, **more)


def batch(topic, partition, items, **more):
    return raw_batch(topic, partition, records_of(items), **more)


def many(*parts, **more):
    """parts: (topic, partition, items) of each."""
    return harness.many([(topic, partition, records_of(items)) for topic, partition, items in parts], **more)


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_a_message_comes_at_its_time_and_not_before(lives, topic):
    message_id, offset = place(lives.ask(send(topic, 0, b"later", delay=1500)))
    assert (offset, due_ms(message_id)) == (-1, NOW_MS + 1500)
    place(lives.ask(send(topic, 0, b"sooner", due=NOW_MS + 700)))
    lives.wait(0.65)
    assert lives.payloads(topic) == []
    lives.wait(0.1)
    assert lives.payloads(topic) == [b"sooner"]
    lives.wait(0.7)
    assert len(lives.broker.delays) == 1
    lives.wait(0.1)
    (_, first_id, flag), (payload, last_id, _) = lives.stored(topic)
    assert payload == b"later"
    assert not flag & DELAYED_FLAG
    assert first_id < last_id
    assert (store_time_ms(last_id) or 0) >= NOW_MS + 1500
    assert len(lives.broker.delays) == 0


def test_what_is_delivered_keeps_its_properties(lives):
    place(lives.ask(send("t", 0, b"a", due=NOW_MS + 10)))
    lives.wait(0.1)
    data = bytes(lives.harness.store.get("t", 0).segments.read(0, 1000))
    (header,) = iter_headers(data)
    assert (attribute := attribute_of(data[20:], header.flag)) is not None
    assert property_of(attribute, b"metaq.due") == str(NOW_MS + 10).encode()


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_a_batch_comes_message_by_message_in_the_order_of_their_times(lives, topic):
    waits = [300, 100, 200, 0, 100]
    items = [delayed(b"%d" % number, wait) for number, wait in enumerate(waits)]
    message_id, _ = place(lives.ask(batch(topic, 0, items)))
    assert [due_ms(each) - NOW_MS for each in pending_ids(message_id, waits)] == waits
    lives.wait(0.5, 0.01)
    assert lives.payloads(topic) == [b"3", b"1", b"4", b"2", b"0"]


def test_the_parts_of_a_send_many_are_judged_each_on_its_own(lives):
    plain = [(0, b"plain")]
    mixed = [delayed(b"x", 100), (0, b"y")]
    waiting = [delayed(b"a", 100), delayed(b"b", 50)]
    frame = lives.ask(many(("t", 0, waiting), ("t", 1, plain), ("safe", 0, mixed), ("safe", 1, plain)))
    rows = decode_rows(frame.body, 4)
    assert rows.codes == [OK, OK, ILLEGAL, OK]
    assert rows.offsets[:2] == [-1, 0]
    assert "cannot be in one batch" in frame.remark
    assert lives.payloads("t", 1) == lives.payloads("safe", 1) == [b"plain"]
    lives.wait(0.2)
    assert lives.payloads("safe", 0) == []
    assert lives.payloads("t", 0) == [b"b", b"a"]
    assert due_ms(rows.ids[0]) == NOW_MS + 100


@pytest.mark.parametrize("count", [1, 200])
def test_a_text_put_with_the_flag_and_a_time_waits_too(lives, count):
    flag, body = delayed(b"text", 100)
    now = b"".join(put("t", 0, b"now", opaque) for opaque in range(count))
    lives.peer.send(put("t", 0, body, count, flag) + now)
    first, second, *_ = lives.peer.answers()
    assert (first.code, first.text.split()[2], second.text.split()[2]) == (Status.SUCCESS, "-1", "0")
    assert lives.payloads() == [b"now"] * count
    lives.wait(0.2)
    assert lives.payloads() == [*[b"now"] * count, b"text"]


@pytest.mark.parametrize("count", [1, 200])
def test_without_a_time_the_flag_of_a_text_put_is_its_senders_own(lives, count):
    lives.peer.send(b"".join(put("t", 0, b"now", opaque, flag=-1) for opaque in range(count)))
    assert [answer.code for answer in lives.peer.answers()] == [Status.SUCCESS] * count
    assert [flag for _, _, flag in lives.stored("t", 0)] == [-1] * count


YEAR_MS = 366 * 24 * 3600 * 1000


TIMES: dict[str, tuple[dict[str, Any], str]] = {
    "a delay of more than a year": ({"delay": YEAR_MS + 1}, "366 days"),
    "a time in more than a year": ({"due": NOW_MS + YEAR_MS + 1}, "366 days"),
    "a time long ago": ({"due": 12}, "2011"),
    "a word": ({"due": "soon"}, "no number"),
    "a delay below 0": ({"delay": -1}, "no number"),
}
REFUSED = {
    **{f"{name}, by itself": (send("t", 0, b"a", **time), [why]) for name, (time, why) in TIMES.items()},
    **{f"{name}, in a batch": (batch("t", 0, [delayed(b"a", **time)]), [why]) for name, (time, why) in TIMES.items()},
    "the flag without a time": (batch("t", 0, [(DELAYED_FLAG, b"a")]), ["metaq.due"]),
    "a delayed one in a transaction": (send("t", 0, b"a", 1, tx_key="TX:x:1"), ["delayed", "transaction"]),
}


@pytest.mark.parametrize(("frame", "why"), REFUSED.values(), ids=REFUSED)
def test_what_no_broker_can_keep_is_refused_and_named(lives, frame, why):
    answer = lives.ask(frame)
    assert (answer.code, [each in answer.remark for each in why]) == (ILLEGAL, [True] * len(why))
    assert len(lives.broker.delays) == 0


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("clean", [True, False])
def test_what_waits_survives_a_restart_and_what_is_due_comes_at_once_in_order(lives, topic, clean):
    items = [delayed(b"%d" % number, wait) for number, wait in enumerate([5000, 300, 200, 9_000_000])]
    place(lives.ask(batch(topic, 0, items)))
    place(lives.ask(send(topic, 1, b"other", delay=100)))
    lives.time += 6
    (lives.restart if clean else lives.kill)()
    assert len(lives.broker.delays) == 5
    assert lives.broker.delays.counts() == Counter({(topic, 0): 4, (topic, 1): 1})
    lives.wait(0.05)
    assert lives.payloads(topic) == [b"2", b"1", b"0"]
    assert lives.payloads(topic, 1) == [b"other"]
    (lives.restart if clean else lives.kill)()
    lives.wait(1)
    assert lives.payloads(topic) == [b"2", b"1", b"0"]
    assert len(lives.broker.delays) == 1


def test_a_delivery_gives_others_their_turn(lives):
    count = 3 * tuning.DELAYED_TURN_RECORDS
    place(lives.ask(batch("t", 0, [delayed(b"%d" % number, 100) for number in range(count)])))
    other = lives.harness.connect()
    lives.harness.reactor.callLater(0.2, other.send, batch("t", 0, [(0, b"new")]))
    lives.wait(0.2, 0.2)
    assert len(lives.payloads()) == count + 1
    assert lives.payloads().index(b"new") == tuning.DELAYED_TURN_RECORDS


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("left", [0, 10, 25, 60, 75])
def test_a_kill_in_the_middle_of_a_delivery_neither_loses_nor_repeats(lives, topic, left):
    """The mark is there, and of the messages only so many bytes."""
    place(lives.ask(batch(topic, 0, [delayed(b"%d" % number, 100 + number) for number in range(4)])))
    lives.step_clock(1)
    lives.harness.reactor.advance(1)
    lives.files.kill()
    log = lives.harness.store.get(topic, 0)
    os.truncate(log.segments.active.path, left)
    lives.files.heal()
    lives.start()
    lives.wait(0.2)
    assert lives.payloads(topic) == [b"0", b"1", b"2", b"3"]
    place(lives.ask(batch(topic, 0, [(0, b"more")])))
    lives.kill()
    lives.wait(0.2)
    assert lives.payloads(topic) == [b"0", b"1", b"2", b"3", b"more"]
    assert len(lives.broker.delays) == 0


@pytest.mark.parametrize("change", [1, 2])
def test_a_write_that_fails_is_tried_again(lives, change):
    """That of the mark, and that of the messages."""
    place(lives.ask(batch("t", 0, [(0, b"first")])))
    place(lives.ask(batch("t", 0, [delayed(b"a", 100), delayed(b"b", 100)])))
    lives.fail_change(change)
    lives.wait(0.15)
    assert lives.payloads() == [b"first"]
    assert len(lives.broker.delays) == 2
    lives.mend()
    place(lives.ask(batch("t", 0, [(0, b"between")])))
    lives.wait(6)
    assert lives.payloads() == [b"first", b"between", b"a", b"b"]
    lives.kill()
    lives.wait(6)
    assert lives.payloads() == [b"first", b"between", b"a", b"b"]


def test_a_failed_delivery_is_not_believed_after_a_kill(lives):
    """Another message lies where its messages were to be."""
    place(lives.ask(batch("t", 0, [(0, b"first")])))
    place(lives.ask(batch("t", 0, [delayed(b"a", 100), delayed(b"b", 100)])))
    lives.fail_change(2)
    lives.wait(0.15)
    lives.mend()
    place(lives.ask(batch("t", 0, [(0, b"between" * 30)])))
    lives.kill()
    assert len(lives.broker.delays) == 2
    lives.wait(1)
    assert lives.payloads() == [b"first", b"between" * 30, b"a", b"b"]


def test_a_closed_partition_waits_and_others_do_not(lives):
    place(lives.ask(batch("t", 0, [delayed(b"%d" % number, 100 + number) for number in range(700)])))
    place(lives.ask(send("t", 1, b"other", delay=200)))
    lives.broker.partitions.close("t", 0, 0)
    lives.wait(1.1)
    assert lives.payloads("t", 1) == [b"other"]
    ((name, (count, why)),) = lives.broker.delays.late().items()
    assert (name, count, "closed" in why) == (("t", 0), 700, True)
    assert lives.broker.delays.count(("t", 0)) == 700
    lives.broker.partitions.open("t")
    lives.wait(6)
    assert lives.payloads("t", 0) == [b"%d" % number for number in range(700)]
    assert lives.broker.delays.late() == {}


def test_partitions_that_take_nothing_are_tried_in_turns(lives, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.TURN_SECONDS", 0.0)
    for partition in range(3):
        place(lives.ask(send("t", partition, b"%d" % partition, delay=200)))
        lives.broker.partitions.close("t", partition, partition)
    lives.wait(0.25)
    assert len(lives.broker.delays.late()) == 3
    tries = noted(monkeypatch, lives.broker.delays.writing, "log")
    turns = noted(monkeypatch, lives.broker.delays, "_turn", lambda: len(tries))
    lives.wait(1)
    assert max(after - before for before, after in pairwise([*turns, len(tries)])) == 1
    assert len(tries) > 6
    lives.broker.partitions.open("t")
    lives.wait(6)
    assert [lives.payloads("t", partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]


# --- cancelling and listing -------------------------------------------------------------------------------------------


def cancelling(topic, partition, message_id):
    return encode_frame(RequestCode.CANCEL_DELAYED, 1, CancelDelayedRequest(topic, partition, message_id).to_ext())


def cancel(lives, topic, partition, message_id):
    frame = lives.ask(cancelling(topic, partition, message_id))
    assert frame.code == OK, frame.remark
    return frame.ext["state"]


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_all_who_cancel_a_message_at_once_are_told_that_it_is_cancelled(lives, topic):
    message_id, _ = place(lives.ask(send(topic, 0, b"x", delay=100)))
    peers = [lives.harness.connect() for _ in range(3)]
    for peer in peers:
        peer.send(cancelling(topic, 0, message_id))
    lives.work()
    assert [frame.ext["state"] for peer in peers for frame in peer.frames()] == ["cancelled"] * 3
    lives.wait(0.2)
    assert lives.payloads(topic) == []


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_a_cancelled_message_never_comes(lives, topic):
    waits = [100, 200, 300]
    first, _ = place(lives.ask(batch(topic, 0, [delayed(b"%d" % number, wait) for number, wait in enumerate(waits)])))
    ids = pending_ids(first, waits)
    assert cancel(lives, topic, 1, ids[1]) == "unknown"
    assert cancel(lives, topic, 0, ids[1]) == "cancelled"
    assert cancel(lives, topic, 0, ids[1]) == "cancelled"
    assert lives.broker.delays.count((topic, 0)) == 2
    lives.wait(0.15)
    assert cancel(lives, topic, 0, ids[0]) == "late"
    assert cancel(lives, topic, 0, ids[2] + 1) == "unknown"
    lives.kill()
    lives.wait(1)
    assert lives.payloads(topic) == [b"0", b"2"]
    assert cancel(lives, topic, 0, ids[1]) == "cancelled"  # its answer may have been lost with the broker


def test_a_cancellation_is_answered_when_it_is_safe(lives):
    message_id, _ = place(lives.ask(send("safe", 0, b"a", delay=1000)))
    peers = [lives.peer, lives.harness.connect()]
    lives.peer.send(cancelling("safe", 0, message_id))
    lives.harness.threads.run_one()  # it reads the record
    assert peers[0].frames() == []
    peers[1].send(cancelling("safe", 0, message_id))
    assert peers[1].frames() == []
    lives.harness.threads.run()
    assert [[frame.ext["state"] for frame in peer.frames()] for peer in peers] == [["cancelled"]] * 2


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_a_cancellation_that_cannot_be_written_is_none(lives, topic):
    message_id, _ = place(lives.ask(send(topic, 0, b"x", delay=1000)))
    lives.files.fail("pwritev")
    assert lives.ask(cancelling(topic, 0, message_id)).code != OK
    assert lives.broker.delays.count((topic, 0)) == 1
    lives.kill()
    lives.wait(2)
    assert lives.payloads(topic) == [b"x"]


def test_a_cancellation_that_is_not_on_the_disk_is_not_answered_as_one(lives):
    message_id, _ = place(lives.ask(send("safe", 0, b"x", delay=1000)))
    lives.files.fail("fdatasync")
    assert lives.ask(cancelling("safe", 0, message_id)).code != OK


def test_a_full_disk_takes_no_delayed_message_of_a_topic_that_has_another_disk(lives):
    lives.harness.close()
    lives.start(topics=f"\n[topic=other]\ndataPath={lives.directory}/other\n")
    store = lives.harness.store
    store.space.full[store.data_paths[0]] = DiskFull(store.data_paths[0], "0 MiB are free")
    assert lives.ask(send("other", 0, b"x", delay=100)).code == ResponseCode.DISK_FULL
    assert len(lives.broker.delays) == 0


def test_what_was_read_for_a_delivery_is_not_delivered_when_another_node_has_begun_to_lead(lives):
    place(lives.ask(send("t", 0, b"x", delay=1000)))
    lives.kill()
    lives.harness.threads.run()
    lives.files.page_cache_empty = True
    lives.step_clock(3)
    lives.harness.reactor.pump([0.05] * 60)
    assert len(lives.harness.threads.waiting) == 1
    lives.broker.delays.follow()
    lives.work()
    assert lives.payloads() == []


def listed(lives, **request):
    frame = lives.ask(encode_frame(RequestCode.LIST_DELAYED, 1, ListDelayedRequest(**request).to_ext()))
    assert frame.code == OK, frame.remark
    return json.loads(bytes(frame.body))


def test_what_waits_is_listed_and_counted_by_topic(lives):
    place(lives.ask(batch("t", 1, [delayed(b"x" * number, 1000 * number) for number in range(1, 6)])))
    place(lives.ask(send("safe", 0, b"s", delay=2500)))
    answer = listed(lives, limit=3)
    assert (answer["count"], answer["topics"]) == (6, {"safe": 1, "t": 5})
    assert [each["topic"] for each in answer["messages"]] == ["t", "t", "safe"]
    rest = listed(lives, limit=10, after=answer["next"])
    assert [each["due"] - NOW_MS for each in rest["messages"]] == [3000, 4000, 5000]
    assert rest["messages"][0]["taken"] == NOW_MS
    assert rest["next"] == 0 or not listed(lives, after=rest["next"])["messages"]
    one = listed(lives, topic="safe")
    assert (one["count"], [each["topic"] for each in one["messages"]]) == (1, ["safe"])
    assert listed(lives, limit=0)["messages"] == []
    assert listed(lives, topic="none")["count"] == 0


# --- numbered sends ---------------------------------------------------------------------------------------------------


KINDS = "kind", ["one", "batch", "many"]


def numbered(kind, topic, payload, sequence):
    items = [delayed(payload, 1000), delayed(payload + b"2", 2000)]
    if kind == "one":
        return send(topic, 0, payload, 1000, producer=ALICE, sequence=sequence)
    if kind == "batch":
        return batch(topic, 0, items, producer=ALICE, sequence=sequence)
    return many((topic, 0, items), producer=ALICE, sequences=[sequence])


def answered(kind, frame):
    if kind != "many":
        return place(frame)
    rows = decode_rows(frame.body, 1)
    assert rows.codes == [OK], frame.remark
    return rows.ids[0], rows.offsets[0]


def delivered(kind, *payloads):
    return [each for payload in payloads for each in ([payload] if kind == "one" else [payload, payload + b"2"])]


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize(*KINDS)
def test_a_repeated_send_waits_once_and_is_answered_as_the_first(lives, kind, topic):
    first = answered(kind, lives.ask(numbered(kind, topic, b"a", 7)))
    assert answered(kind, lives.ask(numbered(kind, topic, b"a", 7))) == first
    lives.kill()
    assert answered(kind, lives.ask(numbered(kind, topic, b"a", 7))) == first
    place(lives.ask(batch(topic, 0, [(0, b"plain")], producer=ALICE, sequence=8)))
    late = lives.ask(batch(topic, 0, [(0, b"late")], producer=ALICE, sequence=7))
    assert late.code == ResponseCode.STALE_SEQUENCE
    lives.wait(3)
    assert lives.payloads(topic) == [b"plain", *delivered(kind, b"a")]
    second = answered(kind, lives.ask(numbered(kind, topic, b"b", 9)))
    lives.wait(3)
    assert answered(kind, lives.ask(numbered(kind, topic, b"b", 9))) == second
    lives.wait(3)
    assert lives.payloads(topic) == [b"plain", *delivered(kind, b"a", b"b")]


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize(*KINDS)
@pytest.mark.parametrize("takes_nothing", [False, True], ids=["is not there", "takes nothing any more"])
def test_a_repeated_send_is_answered_as_the_first_though_its_partition(lives, kind, topic, takes_nothing):
    """An empty partition is not copied to other nodes, and a power cut may take it away."""
    first = answered(kind, lives.ask(numbered(kind, topic, b"a", 7)))
    if takes_nothing:
        lives.broker.partitions.close(topic, 0, 0)
    else:
        lose_partition(lives, topic)
    assert answered(kind, lives.ask(numbered(kind, topic, b"a", 7))) == first
    assert len(lives.broker.delays) == len(delivered(kind, b"a"))
    lives.broker.partitions.open(topic)
    lives.wait(3)
    assert lives.payloads(topic) == delivered(kind, b"a")


def test_a_cancelled_send_stays_so_on_a_node_that_has_no_such_partition(lives):
    first = place(lives.ask(numbered("one", "t", b"a", 7)))
    assert cancel(lives, "t", 0, first[0]) == "cancelled"
    lose_partition(lives, "t")
    assert place(lives.ask(numbered("one", "t", b"a", 7))) == first
    assert len(lives.broker.delays) == 0


def test_no_partition_is_made_of_a_topic_that_is_not_accepted_any_more(lives):
    lives.harness.close()
    lives.start(topics="\n[topic=gone]\n")
    place(lives.ask(numbered("one", "gone", b"a", 7)))
    lose_partition(lives, "gone")
    assert lives.harness.store.find("gone", 0) is None


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("left", [0, 10, 30, 60, 90])
def test_a_kill_in_the_middle_of_a_numbered_write_leaves_nothing_of_it(lives, topic, left):
    place(lives.ask(batch(topic, 0, [delayed(b"before", 1000)])))
    (log,) = lives.harness.store.internal_logs(DELAYED_TOPIC)
    before = log.end_offset
    lives.peer.send(numbered("batch", topic, b"a", 1))
    lives.files.kill()
    os.truncate(log.segments.active.path, before + left)
    lives.files.heal()
    lives.start()
    assert len(lives.broker.delays) == 1
    place(lives.ask(numbered("batch", topic, b"a", 1)))
    lives.kill()
    place(lives.ask(numbered("batch", topic, b"a", 1)))
    lives.wait(3)
    assert lives.payloads(topic) == [b"before", b"a", b"a2"]


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due", "before", "step", "left"),
    [
        pytest.param({"due": NOW_MS + 3_600_000}, 0.5, 3600, 0, id="forward: by the new time"),
        pytest.param({"delay": 500}, 0.4, -60, 59.9, id="back: later and never early"),
    ],
)
def test_a_clock_steps_and_what_waits_is_delivered(lives, due, before, step, left):
    place(lives.ask(send("t", 0, b"a", **due)))
    lives.wait(before)
    lives.step_clock(step)
    lives.wait(left, 0.1)
    assert lives.payloads() == []
    lives.wait(1, 0.1)
    assert lives.payloads() == [b"a"]


# --- many for one millisecond -----------------------------------------------------------------------------------------


def test_ids_that_are_in_use_are_not_given_again(lives, monkeypatch):
    for module in ("metaq.broker.delays.delays", "metaq.protocol.delays"):
        monkeypatch.setattr(f"{module}.COUNTER_MASK", 3)
    ids = [place(lives.ask(send("t", 0, b"%d" % number, due=NOW_MS + 1000)))[0] for number in range(10)]
    assert len(set(ids)) == 10
    assert Counter(due_ms(each) - NOW_MS for each in ids) == {1000: 4, 1001: 4, 1002: 2}
    lives.wait(1.2)
    assert sorted(lives.payloads()) == [b"%d" % number for number in range(10)]


# --- cleaning ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(lives, monkeypatch):
    """Segments of a few kibibytes."""
    monkeypatch.setitem(kinds.KINDS, DELAYED_TOPIC, replace(kinds.KINDS[DELAYED_TOPIC], max_segment_size=4096))
    monkeypatch.setattr(tuning, "DELAYED_LOG_BYTES", 8192)
    return lives


def tick(lives, times=6):
    for _ in range(times):
        lives.broker.delays.tick()
        lives.wait(0.5)


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_segments_in_which_nothing_waits_go(small, topic):
    for number in range(20):
        place(small.ask(batch(topic, 0, [delayed(b"x" * 200, 100) for _ in range(10)])))
        small.wait(0.2)
        if number % 5 == 4:
            small.harness.store.get(topic, 0).checkpoint()
            tick(small, 2)
    (log,) = small.harness.store.internal_logs(DELAYED_TOPIC)
    assert len(small.payloads(topic)) == 200
    assert log.first_offset > 20_000
    small.kill()
    tick(small, 1)
    assert len(small.payloads(topic)) == 200
    assert len(small.broker.delays) == 0


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
@pytest.mark.parametrize("killed", [True, False])
def test_what_waits_long_is_written_anew_and_keeps_its_id(small, topic, killed):
    first, _ = place(small.ask(batch(topic, 0, [delayed(b"long%d" % number, 3_600_000) for number in range(10)])))
    for number in range(20):
        place(small.ask(batch(topic, 0, [delayed(b"x" * 200, 100) for _ in range(10)])))
        small.wait(0.2)
        if number % 4 == 3:
            small.harness.store.get(topic, 0).checkpoint()
            tick(small, 4)
    (log,) = small.harness.store.internal_logs(DELAYED_TOPIC)
    assert log.first_offset > 10_000
    assert len(small.broker.delays) == 10
    if killed:
        small.kill()
    assert small.broker.delays.counts() == Counter({(topic, 0): 10})
    ids = pending_ids(first, [3_600_000] * 10)
    assert cancel(small, topic, 0, ids[4]) == "cancelled"
    live = small.broker.delays.live_bytes
    small.kill()
    assert small.broker.delays.live_bytes == live
    small.step_clock(3600)
    small.wait(1)
    assert small.payloads(topic)[200:] == [b"long%d" % number for number in range(10) if number != 4]


@pytest.mark.parametrize(*LOOSE_AND_SAFE)
def test_what_is_written_anew_is_synced_for_the_old_segment_to_go(small, topic):
    """Nothing else comes that would have it synced."""
    place(small.ask(batch(topic, 0, [delayed(b"long", 3_600_000)])))
    for _ in range(20):
        place(small.ask(batch(topic, 0, [delayed(b"x" * 200, 100) for _ in range(10)])))
    small.wait(0.2)
    small.harness.store.get(topic, 0).checkpoint()
    tick(small)
    (log,) = small.harness.store.internal_logs(DELAYED_TOPIC)
    assert log.first_offset > 10_000


def test_nothing_goes_while_what_waits_cannot_be_written_anew(small, monkeypatch, caplog):
    place(small.ask(batch("t", 0, [delayed(b"long", 3_600_000)])))
    for _ in range(20):
        place(small.ask(batch("t", 0, [delayed(b"x" * 200, 100) for _ in range(10)])))
    small.wait(0.2)
    small.harness.store.get("t", 0).checkpoint()
    (log,) = small.harness.store.internal_logs(DELAYED_TOPIC)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, "append", raising(DiskFull(log.directory, "0 MiB are free")))
        tick(small)
    assert "is not made shorter now" in caplog.text
    small.kill()
    assert len(small.broker.delays) == 1
    small.step_clock(3600)
    small.wait(1)
    assert small.payloads()[200:] == [b"long"]


def test_metaq_check_finds_nothing_wrong_with_what_waits(lives, capsys):
    for topic in ("t", "safe"):
        place(lives.ask(batch(topic, 0, [delayed(b"a", 100), delayed(b"b", 1000)])))
    lives.wait(0.2)
    lives.files.kill()
    lives.files.heal()
    run(["check", str(lives.directory / "data"), "--json"])
    report = capsys.readouterr().out
    lives.start()
    assert "metaqdelayed" not in report
    assert json.loads(report)["damaged"] is False


# --- following --------------------------------------------------------------------------------------------------------


def test_a_log_whose_end_is_being_cut_off_is_not_read_meanwhile(lives):
    """That of a deposed leader: what is known of its end is not there any more."""
    place(lives.ask(batch("t", 0, [delayed(b"a", 100)])))
    lives.broker.delays.follow()
    (log,) = lives.broker.delays.store.internal_logs(DELAYED_TOPIC)
    log.durability.write_failed("its end is being cut off")
    for segment in log.segments:
        os.truncate(segment.path, 0)
    lives.broker.delays.tick()


def test_a_node_that_follows_delivers_nothing_and_knows_what_to_do_when_it_leads(lives):
    payloads = [b"%d" % number for number in range(1, 6)]
    items = [delayed(payload, 100 * number) for number, payload in enumerate(payloads, 1)]
    place(lives.ask(batch("t", 0, items)))
    lives.wait(0.25)
    assert lives.payloads() == payloads[:2]
    lives.broker.delays.follow()
    lives.wait(1)
    assert lives.payloads() == payloads[:2]
    lives.broker.delays.tick()
    lives.broker.delays.lead()
    assert len(lives.broker.delays) == 3
    for end in (lambda: None, lives.kill):
        end()
        lives.wait(0.1)
        assert lives.payloads() == payloads
