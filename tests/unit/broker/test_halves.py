"""Half messages of one broker: seen once if they are committed, never otherwise, and asked for until that is known."""

from base64 import b64decode

import numpy as np
import pytest
import simplejson

from metaq.broker import tuning
from metaq.broker.account import Shares
from metaq.broker.configuration.settings import BrokerOptions
from metaq.broker.store.internal_logs import HALVES_TOPIC, INTERNAL_TOPICS, InternalTopic
from metaq.protocol.frames import encode_frame
from metaq.protocol.halves import (
    CheckHalvesRequest,
    EndHalfReply,
    EndHalfRequest,
    EndHalvesRequest,
    HalfOutcome,
    ListHalvesRequest,
    decode_checked,
    decode_ended,
    encode_ends,
)
from metaq.protocol.record import (
    DELAYED_FLAG,
    attribute_of,
    checksum,
    encode_attributes,
    encode_body,
    encode_record,
    iter_headers,
)
from metaq.protocol.sends import SendBatchRequest, SendReply, SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import NOW, Harness, lose_partition
from tests.unit.broker.test_send_many import many, rows

OK, ILLEGAL = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL
COMMIT, ROLL_BACK = HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK
ALICE = 1


def half(payload, group="bank", **more):
    """Flag and body."""
    flag, attribute = encode_attributes(reserved={"metaq.half": group, **more})
    flag |= DELAYED_FLAG
    return flag, encode_body(payload, flag, attribute)


def send(payload, group="bank", topic="t", partition=0, producer=0, sequence=0, **more):
    flag, body = half(payload, group, **more)
    ext = SendRequest(topic, partition, flag, checksum(body), None, producer, sequence).to_ext()
    return encode_frame(RequestCode.SEND, 1, ext, len(body)) + body


def batch(items, topic="t", partition=0):
    records = [encode_record(body, 0, flag) for flag, body in items]
    payload = np.array(list(map(len, records)), ">u4").tobytes() + b"".join(records)
    ext = SendBatchRequest(topic, partition, len(records)).to_ext()
    return encode_frame(RequestCode.SEND_BATCH, 1, ext, len(payload)) + payload


def end_halves(outcomes, topic="t", partition=0):
    body = encode_ends(outcomes)
    return encode_frame(RequestCode.END_HALVES, 1, EndHalvesRequest(topic, partition).to_ext(), len(body)) + body


class Lives:
    """One broker after the other over the same files."""

    def __init__(self, directory, options):
        self.directory = directory
        self.options = options
        self.files = FaultyFiles()
        self.time = NOW
        self.start()

    def start(self):
        self.harness = Harness(self.directory, files=self.files, options=self.options)
        self.harness.time = self.time
        self.peer = self.harness.connect()

    def kill(self):
        """kill -9, and another start."""
        self.files.kill()
        self.files.heal()
        self.start()

    def restart(self):
        self.harness.close()
        self.start()

    def ask(self, data, peer=None):
        peer = peer or self.peer
        peer.send(data)
        self.work()
        (frame,) = peer.frames()
        return frame

    def work(self):
        for _ in range(20):
            self.harness.turn()
            if not self.harness.threads.run():
                break

    def wait(self, seconds, step=0.1):
        """Let both clocks go on."""
        for _ in range(round(seconds / step)):
            self.time = self.harness.time = self.harness.time + step
            self.harness.reactor.advance(step)
            self.harness.threads.run()

    @property
    def halves(self):
        return self.harness.broker.halves

    def sent(self, *arguments, **options):
        """The id of a half message."""
        frame = self.ask(send(*arguments, **options))
        assert frame.code == OK, frame.remark
        reply = SendReply.from_ext(frame.ext)
        assert reply.offset == -1
        return reply.message_id

    def end(self, half_id, outcome, topic="t", partition=0):
        ext = EndHalfRequest(topic, partition, half_id, outcome).to_ext()
        frame = self.ask(encode_frame(RequestCode.END_HALF, 1, ext))
        assert frame.code == OK, frame.remark
        return EndHalfReply.from_ext(frame.ext)

    def end_many(self, *outcomes, topic="t", partition=0):
        frame = self.ask(end_halves(outcomes, topic, partition))
        assert frame.code == OK, frame.remark
        return decode_ended(frame.body)

    def poll(self, group="bank", wait_ms=0, limit=32, peer=None, topics=None, producer=""):
        """Ask for questions; they come as a frame."""
        request = CheckHalvesRequest(group, limit, wait_ms, topics and frozenset(topics), producer)
        (peer or self.peer).send(encode_frame(RequestCode.CHECK_HALVES, 7, request.to_ext()))
        self.work()

    def questions(self, peer=None):
        """(payload, how often it was asked for) of each half message that a poll has been given; None without one."""
        frames = (peer or self.peer).frames()
        if not frames:
            return None
        (frame,) = frames
        assert frame.code == OK, frame.remark
        return [(payload_of(each.body, each.flag), each.asked) for each in decode_checked(frame.body)]

    def asked(self, group="bank", limit=32, **more):
        self.poll(group, limit=limit, **more)
        return self.questions(more.get("peer"))

    def listed(self, **options):
        frame = self.ask(encode_frame(RequestCode.LIST_HALVES, 1, ListHalvesRequest(**options).to_ext()))
        assert frame.code == OK, frame.remark
        return simplejson.loads(bytes(frame.body))

    def stored(self, topic="t", partition=0):
        """(payload, flag) of each message."""
        log = self.harness.store.find(topic, partition)
        if log is None or log.visible_end == log.first_offset:
            return []
        data = log.segments.snapshot().read(log.first_offset, log.visible_end - log.first_offset)
        return [(payload_of(data[each.start + 20 : each.end], each.flag), each.flag) for each in iter_headers(data)]

    def payloads(self, topic="t", partition=0):
        return [payload for payload, _ in self.stored(topic, partition)]


def payload_of(body, flag):
    attribute = attribute_of(body, flag)
    return bytes(body[0 if attribute is None else 4 + len(attribute) :])


@pytest.fixture
def lives(tmp_path):
    lives = Lives(tmp_path, BrokerOptions(half_check_seconds=6.0, half_checks=4))
    yield lives
    lives.files.heal()
    lives.harness.close()


def test_one_half_message_is_given_whole_if_that_is_asked_for(lives):
    first, second = lives.sent(b"one" * 100), lives.sent(b"two" * 100)
    for half_id, payload in ((first, b"one" * 100), (second, b"two" * 100)):
        (found,) = lives.listed(after=half_id - 1, limit=10, whole=True)["halves"]
        assert found["id"] == half_id
        assert payload_of(b64decode(found["body"]), found["flag"]) == payload
    assert lives.listed(after=second, limit=10, whole=True)["halves"] == []
    assert all("body" not in each for each in lives.listed()["halves"])


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_half_message_is_in_no_partition_until_it_is_committed(lives):
    first = lives.sent(b"one")
    second = lives.sent(b"two")
    lives.wait(30)
    assert lives.payloads() == []
    reply = lives.end(second, COMMIT)
    assert lives.payloads() == [b"two"]
    assert (reply.outcome, reply.offset) == (COMMIT, 0)
    assert lives.end(first, COMMIT).offset > 0
    assert lives.payloads() == [b"two", b"one"]


def test_delivered_message_has_lost_the_flag_and_keeps_its_properties(lives):
    lives.end(lives.sent(b"one"), COMMIT)
    ((_, flag),) = lives.stored()
    assert flag & DELAYED_FLAG == 0
    assert flag & 3 == 3


def test_rolled_back_message_is_never_seen_nor_asked_for(lives):
    half_id = lives.sent(b"one")
    assert lives.end(half_id, ROLL_BACK) == EndHalfReply(ROLL_BACK, 0, -1)
    lives.wait(30)
    assert lives.asked() == []
    lives.restart()
    assert lives.payloads() == []
    assert len(lives.halves) == 0


def test_repeated_outcome_is_answered_as_the_first_one(lives):
    half_id = lives.sent(b"one")
    first = lives.end(half_id, COMMIT)
    assert lives.end(half_id, COMMIT) == first
    assert lives.payloads() == [b"one"]


def test_contradicting_outcome_is_told_what_was_decided(lives):
    committed, rolled_back = lives.sent(b"one"), lives.sent(b"two")
    lives.end(committed, COMMIT)
    lives.end(rolled_back, ROLL_BACK)
    assert lives.end(committed, ROLL_BACK).outcome == COMMIT
    assert lives.end(rolled_back, COMMIT).outcome == ROLL_BACK
    assert lives.payloads() == [b"one"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_outcomes_are_known_after_a_restart(lives, end):
    committed, rolled_back, open_half = lives.sent(b"one"), lives.sent(b"two"), lives.sent(b"three")
    first = lives.end(committed, COMMIT)
    lives.end(rolled_back, ROLL_BACK)
    getattr(lives, end)()
    assert lives.end(committed, ROLL_BACK) == first
    assert lives.end(rolled_back, COMMIT).outcome == ROLL_BACK
    assert lives.end(open_half, COMMIT).outcome == COMMIT
    assert lives.payloads() == [b"one", b"three"]


def test_unknown_half_message_is_said_to_be_unknown(lives):
    half_id = lives.sent(b"one")
    assert lives.end(half_id + 1, COMMIT).outcome == HalfOutcome.UNKNOWN
    assert lives.end(half_id, COMMIT, partition=1).outcome == HalfOutcome.UNKNOWN
    assert lives.payloads() == []


def test_two_answers_at_the_same_time_are_given_the_same_decision(lives):
    half_id = lives.sent(b"one", topic="safe")
    peers = [lives.harness.connect() for _ in range(2)]
    for peer, outcome in zip(peers, (COMMIT, ROLL_BACK), strict=True):
        peer.send(encode_frame(RequestCode.END_HALF, 1, EndHalfRequest("safe", 0, half_id, outcome).to_ext()))
    lives.work()
    outcomes = [EndHalfReply.from_ext(frame.ext).outcome for peer in peers for frame in peer.frames()]
    assert outcomes == [COMMIT, COMMIT]
    assert lives.payloads("safe") == [b"one"]


def test_commit_that_the_partition_refuses_leaves_the_half_message_waiting(lives):
    half_id = lives.sent(b"one")
    partitions = lives.harness.broker.partitions
    partitions.close("t", 0, 0)
    frame = lives.ask(encode_frame(RequestCode.END_HALF, 1, EndHalfRequest("t", 0, half_id, COMMIT).to_ext()))
    assert frame.code == ResponseCode.NO_PERMISSION
    partitions.open("t")
    assert lives.end(half_id, COMMIT).outcome == COMMIT
    assert lives.payloads() == [b"one"]


def test_commit_that_cannot_be_written_leaves_the_half_message_waiting(lives):
    half_id = lives.sent(b"one")
    lives.files.fail("pwritev")
    frame = lives.ask(encode_frame(RequestCode.END_HALF, 1, EndHalfRequest("t", 0, half_id, COMMIT).to_ext()))
    assert frame.code != OK
    assert lives.halves.count(("t", 0)) == 1
    lives.kill()
    assert lives.end(half_id, ROLL_BACK).outcome == ROLL_BACK
    assert lives.payloads() == []


# --- outcomes of several half messages --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_several_outcomes_are_decided_at_once_and_known_after_a_restart(lives, end):
    one, two, three, four = (lives.sent(payload) for payload in (b"one", b"two", b"three", b"four"))
    replies = lives.end_many((four, COMMIT), (two, ROLL_BACK), (one, COMMIT))
    assert [each.outcome for each in replies] == [COMMIT, ROLL_BACK, COMMIT]
    assert lives.payloads() == [b"one", b"four"]
    assert [replies[2].offset, replies[1].offset] == [0, -1]
    assert replies[0].offset > 0
    assert replies[0].message_id == replies[2].message_id + 1
    getattr(lives, end)()
    assert [lives.end(each, ROLL_BACK) for each in (four, two, one)] == replies
    assert lives.end(three, COMMIT).outcome == COMMIT
    assert lives.halves.committed == 1
    assert lives.payloads() == [b"one", b"four", b"three"]


def test_of_several_outcomes_one_may_be_unknown_decided_before_or_said_twice(lives):
    one, two = lives.sent(b"one"), lives.sent(b"two")
    first = lives.end(one, ROLL_BACK)
    unknown, again, committed, repeated = lives.end_many((two + 1, COMMIT), (one, COMMIT), (two, COMMIT), (two, COMMIT))
    assert unknown == EndHalfReply(HalfOutcome.UNKNOWN)
    assert again == first
    assert committed == repeated
    assert lives.payloads() == [b"two"]


@pytest.mark.parametrize(("turn_bytes", "marks"), [(1 << 20, 2), (100, 40)])
def test_many_outcomes_are_decided_in_as_few_writes_as_one_turn_may_read(lives, monkeypatch, turn_bytes, marks):
    monkeypatch.setattr(tuning, "HALVES_TURN_BYTES", turn_bytes)
    payloads = [b"%d" % number for number in range(40)]
    lives.ask(batch([half(payload, tag=payload.decode()) for payload in payloads[:20]]))
    for payload in payloads[20:]:
        lives.sent(payload)
    ids = [each["id"] for each in lives.listed()["halves"]]
    (log,) = lives.harness.store.internal_logs(HALVES_TOPIC)
    before = records_in(log)
    outcomes = [(each, ROLL_BACK if number % 4 == 3 else COMMIT) for number, each in enumerate(ids)]
    replies = lives.end_many(*outcomes)
    assert [each.outcome for each in replies] == [outcome for _, outcome in outcomes]
    committed = [reply for reply in replies if reply.outcome == COMMIT]
    assert sorted(each.offset for each in committed) == [each.start for each in stored_headers(lives)]
    assert [each.message_id for each in committed] == [each.id for each in stored_headers(lives)]
    assert lives.payloads() == [payload for number, payload in enumerate(payloads) if number % 4 != 3]
    assert records_in(log) - before == marks
    assert len(lives.halves) == 0
    assert lives.end_many(*outcomes) == replies
    lives.kill()
    assert lives.end_many(*outcomes) == replies


def records_in(log):
    return len(list(iter_headers(log.segments.snapshot().read(log.first_offset, log.end_offset - log.first_offset))))


def stored_headers(lives, topic="t", partition=0):
    log = lives.harness.store.find(topic, partition)
    return list(iter_headers(log.segments.snapshot().read(0, log.visible_end)))


def test_several_outcomes_wait_until_they_are_safe_and_another_answer_with_them(lives):
    ids = [lives.sent(payload, topic="safe") for payload in (b"one", b"two")]
    peers = [lives.harness.connect() for _ in range(2)]
    peers[0].send(end_halves([(each, COMMIT) for each in ids], "safe"))
    peers[1].send(encode_frame(RequestCode.END_HALF, 1, EndHalfRequest("safe", 0, ids[1], ROLL_BACK).to_ext()))
    assert [peer.frames() for peer in peers] == [[], []]
    lives.work()
    (both,), (one,) = (peer.frames() for peer in peers)
    assert decode_ended(both.body)[1] == EndHalfReply.from_ext(one.ext)
    assert lives.payloads("safe") == [b"one", b"two"]


def test_several_outcomes_of_another_partition_are_unknown_there(lives):
    ids = [lives.sent(payload) for payload in (b"one", b"two")]
    replies = lives.end_many(*((each, COMMIT) for each in ids), partition=1)
    assert [each.outcome for each in replies] == [HalfOutcome.UNKNOWN] * 2
    assert lives.payloads("t", 1) == lives.payloads() == []
    assert len(lives.halves) == 2


def test_several_outcomes_that_the_partition_refuses_leave_their_messages_waiting(lives):
    outcomes = [(lives.sent(payload), COMMIT) for payload in (b"one", b"two")]
    partitions = lives.harness.broker.partitions
    partitions.close("t", 0, 0)
    assert lives.ask(end_halves(outcomes)).code == ResponseCode.NO_PERMISSION
    assert len(lives.halves) == 2
    partitions.open("t")
    assert [each.outcome for each in lives.end_many(*outcomes)] == [COMMIT, COMMIT]


def test_many_bytes_are_committed_all_the_same(lives, monkeypatch):
    monkeypatch.setattr(tuning, "HALVES_TURN_BYTES", 1)
    ids = [lives.sent(payload) for payload in (b"one", b"two", b"three")]
    assert [each.outcome for each in lives.end_many(*((each, COMMIT) for each in ids))] == [COMMIT] * 3
    assert lives.payloads() == [b"one", b"two", b"three"]


@pytest.mark.parametrize("body", [b"", bytes(9), b"\0" * 7 + b"\1\3", b"\0" * 7 + b"\1\1" + b"\0"])
def test_wrong_outcomes_are_refused(lives, body):
    frame = lives.ask(encode_frame(RequestCode.END_HALVES, 1, EndHalvesRequest("t", 0).to_ext(), len(body)) + body)
    assert frame.code == ILLEGAL


# --- sends ------------------------------------------------------------------------------------------------------------


def test_repeated_numbered_half_message_is_kept_once(lives):
    first = lives.sent(b"one", producer=ALICE, sequence=1)
    assert lives.sent(b"one", producer=ALICE, sequence=1) == first
    lives.kill()
    assert lives.sent(b"one", producer=ALICE, sequence=1) == first
    lose_partition(lives, "t")
    assert lives.sent(b"one", producer=ALICE, sequence=1) == first
    lives.end(first, COMMIT)
    assert lives.sent(b"one", producer=ALICE, sequence=1) == first
    assert lives.payloads() == [b"one"]


def test_half_messages_of_a_batch_are_decided_each_by_itself(lives):
    frame = lives.ask(batch([half(b"one"), half(b"two"), half(b"three")]))
    assert frame.code == OK, frame.remark
    first = SendReply.from_ext(frame.ext).message_id
    lives.end(first + 2, COMMIT)
    lives.end(first, ROLL_BACK)
    lives.end(first + 1, COMMIT)
    assert lives.payloads() == [b"three", b"two"]


def test_batch_of_half_messages_and_others_is_refused(lives):
    flag, attribute = encode_attributes(reserved={"metaq.delay": "1"})
    delayed = flag | DELAYED_FLAG, encode_body(b"late", flag, attribute)
    for items in ([half(b"one"), (0, b"plain")], [half(b"one"), delayed], [delayed, half(b"one")]):
        frame = lives.ask(batch(items))
        assert frame.code == ILLEGAL
        assert "one batch" in frame.remark
    assert len(lives.halves) == len(lives.harness.broker.delays) == 0


def test_half_message_cannot_be_delayed_too(lives):
    frame = lives.ask(send(b"one", **{"metaq.delay": "5"}))
    assert frame.code == ILLEGAL
    assert "half message" in frame.remark


@pytest.mark.parametrize(
    "wrong", [{"group": ""}, {"group": "a b"}, {"metaq.check-after": "-1"}, {"metaq.check-after": "9" * 14}]
)
def test_wrong_properties_are_refused(lives, wrong):
    frame = lives.ask(send(b"one", **wrong))
    assert frame.code == ILLEGAL


def test_too_many_half_messages_are_refused_for_now_with_a_remedy(lives):
    limit(lives, 32)
    first = lives.sent(b"one")
    assert lives.ask(batch([half(b"more")] * 28)).code == OK
    lives.sent(b"last")
    frame = lives.ask(send(b"too many"))
    assert frame.code == ResponseCode.SYSTEM_BUSY
    assert "30 of at most 32, 30 of them from" in frame.remark
    assert "halfMessages=32" in frame.remark
    assert "metaq halves list" in frame.remark
    lives.end(first, ROLL_BACK)
    assert lives.ask(batch([half(b"more")] * 2)).code == ResponseCode.SYSTEM_BUSY
    (row,) = rows(lives.ask(many([("t", 0, [encode_record(body, 0, flag) for flag, body in [half(b"more")] * 2])])))
    assert row.code == ResponseCode.SYSTEM_BUSY
    lives.sent(b"four")
    assert lives.harness.broker.account.half_messages.used == len(lives.halves) == 30


def limit(lives, most):
    """Before any is counted."""
    lives.harness.broker.account.half_messages = Shares("half messages", "halfMessages", most, 50)


def test_one_address_does_not_have_all_places_of_half_messages(lives):
    limit(lives, 32)
    crowd, other = lives.harness.connect("10.0.0.1"), lives.harness.connect("10.0.0.2")
    assert lives.ask(batch([half(b"crowd")] * 30), crowd).code == OK
    assert lives.ask(send(b"mine"), other).code == OK
    assert lives.ask(send(b"crowd"), crowd).code == ResponseCode.SYSTEM_BUSY
    assert lives.ask(send(b"mine"), other).code == OK
    places = lives.harness.broker.account.half_messages
    assert (places.used, places.largest) == (32, 30)


@pytest.mark.parametrize("outcome", [COMMIT, ROLL_BACK])
def test_places_of_half_messages_are_given_back_with_their_outcomes(lives, outcome):
    crowd, other = lives.harness.connect("10.0.0.1"), lives.harness.connect("10.0.0.2")
    ids: list[int] = []
    for peer, count in ((crowd, 3), (other, 2)):
        frame = lives.ask(batch([half(b"one")] * count), peer)
        first = SendReply.from_ext(frame.ext).message_id
        ids += range(first, first + count)
    places = lives.harness.broker.account.half_messages
    assert (places.used, places.largest) == (5, 3)
    lives.end_many(*((each, outcome) for each in ids[:2]))
    assert (places.used, places.largest) == (3, 2)
    lives.wait(7)
    lives.end_many(*((each, outcome) for each in ids[2:]))
    assert (places.used, places.largest) == (0, 0)


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_half_messages_of_before_a_start_have_places_that_no_address_pays(lives, end):
    first = lives.sent(b"one")
    lives.sent(b"two")
    getattr(lives, end)()
    places = lives.harness.broker.account.half_messages
    assert (places.used, places.room("127.0.0.1")) == (2, places.limit // 2)
    lives.sent(b"three")
    assert places.used == 3
    lives.end(first, COMMIT)
    assert places.used == len(lives.halves) == 2
    lives.halves.follow()
    assert (places.used, places.largest) == (0, 0)


# --- questions --------------------------------------------------------------------------------------------------------


def test_first_checks_that_are_due_at_once_become_so_in_turns(lives, monkeypatch):
    monkeypatch.setattr(tuning, "HALVES_TURN_RECORDS", 2)
    for number in range(5):
        lives.sent(b"%d" % number)
    lives.harness.time += 7
    asked = []
    for _ in range(3):
        lives.halves._wake()
        asked.append(lives.halves._groups.asked)
    assert asked == [2, 4, 5]


def test_message_says_itself_when_its_first_check_is(lives):
    lives.sent(b"soon", **{"metaq.check-after": "1000"})
    lives.sent(b"late", **{"metaq.check-after": "60000"})
    lives.wait(2)
    assert lives.asked() == [(b"soon", 1)]


def test_producer_that_waits_is_asked_as_soon_as_the_check_is_due(lives):
    lives.sent(b"one")
    lives.poll(wait_ms=30_000)
    lives.wait(5.9)
    assert lives.questions() is None
    lives.wait(0.3)
    assert lives.questions() == [(b"one", 1)]


def test_poll_is_answered_when_its_time_is_over(lives):
    lives.poll(wait_ms=2000)
    lives.wait(1.9)
    assert lives.questions() is None
    lives.wait(1.2)
    assert lives.questions() == []


def test_only_producers_of_the_group_are_asked(lives):
    lives.sent(b"one", "bank")
    lives.wait(7)
    assert lives.asked("shop") == []
    assert lives.asked("bank") == [(b"one", 1)]


def test_half_message_is_given_to_one_producer_at_a_time(lives):
    first, second = lives.harness.connect(), lives.harness.connect()
    lives.sent(b"one")
    for peer in (first, second):
        lives.poll(wait_ms=10_000, peer=peer)
    lives.wait(7)
    assert lives.questions(first) == [(b"one", 1)]
    assert lives.questions(second) is None


def test_pauses_between_questions_double_until_it_is_parked(lives):
    lives.sent(b"one")
    at = []
    start = lives.time
    for _ in range(1200):
        lives.wait(0.1)
        if lives.asked():
            at.append(round(lives.time - start))
    assert at == [6, 12, 24, 48]
    assert lives.listed()["states"] == {"asked": 0, "parked": 1, "waiting": 0}


def test_parked_half_message_waits_for_an_operator(lives):
    half_id = lives.sent(b"one")
    for _ in range(200):
        lives.wait(1, step=1)
        lives.asked()
    assert [each["state"] for each in lives.listed()["halves"]] == ["parked"]
    lives.restart()
    lives.wait(100, step=1)
    assert lives.asked() == []
    assert [each["state"] for each in lives.listed(state="parked")["halves"]] == ["parked"]
    lives.end(half_id, COMMIT)
    assert lives.payloads() == [b"one"]
    assert lives.listed()["count"] == 0


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_questions_are_counted_on_after_a_restart(lives, end):
    lives.sent(b"one")
    lives.wait(7)
    assert lives.asked() == [(b"one", 1)]
    lives.wait(7)
    assert lives.asked() == [(b"one", 2)]
    getattr(lives, end)()
    lives.wait(10)
    assert lives.asked() == []
    lives.wait(3)
    assert lives.asked() == [(b"one", 3)]


def test_check_that_became_due_while_the_broker_was_down_comes_at_once(lives):
    lives.sent(b"one")
    lives.harness.close()
    lives.time += 3600
    lives.start()
    lives.wait(0.5)
    assert lives.asked() == [(b"one", 1)]


def test_producer_that_goes_is_replaced_by_another_one_soon(lives):
    lives.sent(b"one")
    gone = lives.harness.connect()
    lives.poll(wait_ms=10_000, peer=gone)
    lives.wait(7)
    assert lives.questions(gone) == [(b"one", 1)]
    gone.lose()
    assert lives.asked() == []
    lives.wait(1.5)
    assert lives.asked() == [(b"one", 2)]


def test_nothing_is_given_to_a_producer_that_went_while_it_waited(lives):
    gone = lives.harness.connect()
    lives.poll(wait_ms=10_000, peer=gone)
    lives.sent(b"one")
    gone.lose()
    lives.wait(7)
    assert lives.asked() == [(b"one", 1)]


def test_answers_are_bounded_by_count(lives):
    for number in range(5):
        lives.sent(b"%d" % number)
    lives.wait(7)
    assert [len(lives.asked(limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_answers_are_bounded_by_bytes(lives, monkeypatch):
    monkeypatch.setattr(tuning, "HALVES_TURN_BYTES", 1000)
    for number in range(5):
        lives.sent(b"%d" % number * 400)
    lives.wait(7)
    counts = []
    while found := lives.asked():
        counts.append(len(found))
    assert sum(counts) == 5
    assert max(counts) == 2


def test_both_modes_of_flushing_are_asked_for(lives):
    lives.sent(b"loose")
    lives.sent(b"safe", topic="safe")
    lives.wait(7)
    assert sorted(lives.asked() + lives.asked()) == [(b"loose", 1), (b"safe", 1)]


def test_half_message_that_is_decided_is_not_asked_for_again(lives):
    half_id = lives.sent(b"one")
    lives.wait(7)
    assert lives.asked() == [(b"one", 1)]
    lives.end(half_id, COMMIT)
    lives.wait(20)
    assert lives.asked() == []
    assert lives.halves.figures(10) == {}


def test_follower_is_no_more_asked_and_says_who_leads(lives):
    lives.sent(b"one")
    lives.poll(wait_ms=10_000)
    lives.halves.follow()
    lives.work()
    (frame,) = lives.peer.frames()
    assert frame.code == ResponseCode.NOT_LEADER
    lives.halves.lead()
    lives.wait(7)
    assert lives.asked() == [(b"one", 1)]


# --- who is asked -----------------------------------------------------------------------------------------------------

SENT_BY = {"metaq.half-producer": "p1"}


def test_producers_are_asked_for_their_topics_alone(lives):
    lives.sent(b"one")
    lives.sent(b"two", topic="safe")
    lives.poll(wait_ms=30_000, topics=["safe", "other"])
    lives.wait(7)
    assert lives.questions() == [(b"two", 1)]
    assert lives.asked(topics=["other"]) == []
    assert lives.asked() == [(b"one", 1)]  # an older one, which does not name topics


def test_who_sent_it_is_asked_alone_while_it_asks(lives):
    sender, other = lives.harness.connect(), lives.harness.connect()
    lives.sent(b"one", **SENT_BY)
    for _ in range(2):
        lives.poll(wait_ms=4000, peer=other, producer="p2")
        lives.poll(wait_ms=4000, peer=sender, producer="p1")
        lives.wait(5)
        assert lives.questions(other) == []
    assert [len(decode_checked(frame.body)) for frame in sender.frames()] == [0, 1]
    lives.poll(wait_ms=60_000, peer=other, producer="p2")
    lives.wait(5)
    assert lives.questions(other) is None
    lives.wait(2)  # the sender is silent for 10 s now
    assert lives.questions(other) == [(b"one", 2)]


def test_sender_that_is_back_is_asked_again(lives):
    sender, other = lives.harness.connect(), lives.harness.connect()
    lives.sent(b"one", **SENT_BY)
    lives.wait(7.5)
    lives.poll(wait_ms=30_000, peer=sender, producer="p1")
    assert lives.questions(sender) == [(b"one", 1)]
    lives.wait(11)
    lives.poll(wait_ms=30_000, peer=sender, producer="p1")
    assert lives.questions(sender) == [(b"one", 2)]
    lives.poll(wait_ms=30_000, peer=sender, producer="p1")
    lives.poll(wait_ms=30_000, peer=other, producer="p2")
    lives.wait(13)
    assert (lives.questions(sender), lives.questions(other)) == ([(b"one", 3)], None)


def test_others_are_asked_soon_after_the_sender_s_connection_is_lost(lives):
    sender = lives.harness.connect()
    lives.sent(b"one", **SENT_BY)
    lives.poll(wait_ms=60_000, peer=sender, producer="p1")
    lives.wait(5.5)
    sender.lose()
    lives.poll(wait_ms=60_000, producer="p2")
    lives.wait(2.5)
    assert lives.questions() is None
    lives.wait(1.5)
    assert lives.questions() == [(b"one", 1)]


def test_sender_that_has_never_asked_is_waited_for_a_moment(lives):
    lives.sent(b"one", **SENT_BY)
    lives.poll(wait_ms=60_000, producer="p2")
    lives.wait(8.5)
    assert lives.questions() is None
    lives.wait(1)
    assert lives.questions() == [(b"one", 1)]


def test_sender_has_time_to_come_back_after_a_start_of_the_broker(lives):
    lives.sent(b"one", **SENT_BY)
    lives.wait(7)
    lives.restart()
    lives.poll(wait_ms=60_000, producer="p2")
    lives.wait(9)
    assert lives.questions() is None
    lives.wait(2)
    assert lives.questions() == [(b"one", 1)]


def test_pause_of_the_broker_makes_nobody_silent(lives):
    sender, other = lives.harness.connect(), lives.harness.connect()
    lives.sent(b"one", **{"metaq.check-after": "1000"}, **SENT_BY)
    assert lives.asked(peer=sender, producer="p1") == []
    lives.poll(wait_ms=60_000, peer=other, producer="p2")
    lives.wait(30, step=30)  # it stands still; then the sender's next question is read
    assert lives.asked(peer=sender, producer="p1") == [(b"one", 1)]
    assert lives.questions(other) is None


@pytest.mark.parametrize("name", ["", "a b", "x" * 65])
def test_wrong_name_of_a_producer_is_refused(lives, name):
    assert lives.ask(send(b"one", **{"metaq.half-producer": name})).code == ILLEGAL


def test_what_is_remembered_of_askers_is_bounded(lives):
    groups = lives.halves._groups
    for number in range(300):
        lives.asked(f"group-{number}", producer=f"p{number}")
        lives.asked("bank", producer=f"p{number}")
        lives.asked("bank")
    assert len(groups._groups) <= 300
    assert len(groups._alarms) < 1000
    lives.wait(12)
    assert not groups._groups
    assert not groups._callers


# --- cleaning ---------------------------------------------------------------------------------------------------------


def test_counts_of_questions_survive_that_a_record_is_written_anew(lives, monkeypatch):
    monkeypatch.setattr(tuning, "DELAYED_LOG_BYTES", 1)
    monkeypatch.setitem(INTERNAL_TOPICS, HALVES_TOPIC, InternalTopic("metaqhalves", 100_000))
    lives.sent(b"kept")
    lives.wait(7)
    assert lives.asked() == [(b"kept", 1)]
    log = lives.harness.store.internal_log(HALVES_TOPIC, False)
    for _ in range(10):
        lives.end(lives.sent(b"x" * 30_000), ROLL_BACK)
    for _ in range(20):
        lives.halves.tick()
        lives.harness.store.tick()
        lives.wait(1, step=1)
    assert log.first_offset > 0
    lives.restart()
    lives.wait(20)
    assert lives.asked() == [(b"kept", 2)]


# --- lists ------------------------------------------------------------------------------------------------------------


def test_list_tells_of_all_and_is_filtered(lives):
    first = lives.sent(b"one", "bank")
    second = lives.sent(b"two!", "shop", partition=1)
    lives.wait(7)
    lives.asked("shop")
    third = lives.sent(b"three", "bank", topic="safe")
    listed = lives.listed()
    assert listed["count"] == 3
    assert listed["states"] == {"asked": 2, "parked": 0, "waiting": 1}
    assert listed["groups"]["shop"] == {"asked": 1, "parked": 0, "askers": 0}
    assert [each["id"] for each in listed["halves"]] == [first, second, third]
    assert [each["asked"] for each in listed["halves"]] == [0, 1, 0]
    assert listed["next"] == 0
    for options, expected in (
        ({"topic": "t"}, [first, second]),
        ({"group": "shop"}, [second]),
        ({"state": "waiting"}, [third]),
        ({"after": first}, [second, third]),
        ({"limit": 0}, []),
    ):
        assert [each["id"] for each in lives.listed(**options)["halves"]] == expected, options
    page = lives.listed(limit=2)
    assert page["next"] == second
