"""Half messages of one broker: seen once if they are committed, never otherwise, and asked for until that is known."""

from base64 import b64decode
from dataclasses import replace

import pytest
import simplejson

from metaq.broker import tuning
from metaq.broker.assembly.kinds import KINDS
from metaq.broker.configuration.settings import BrokerOptions
from metaq.broker.memory.topics import HALVES_TOPIC
from metaq.broker.runtime.account import Shares
from metaq.protocol.frames import encode_frame
from metaq.protocol.half_messages import (
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
from metaq.protocol.record import DELAYED_FLAG, iter_headers
from metaq.protocol.sends import decode_rows
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker import harness
from tests.unit.broker.harness import Lives, lose_partition, many, payload_of, place, raw_batch, records_of, reserved

OK, ILLEGAL, BUSY = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_BUSY
COMMIT, ROLL_BACK, UNKNOWN = HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK, HalfOutcome.UNKNOWN
NUMBERED = {"producer": 1, "sequence": 1}
ENDS = "end", ["restart", "kill"]


def half(payload, group="bank", **more):
    """Flag and body. more: further properties."""
    return reserved(payload, {"metaq.half": group, **more})


def send(payload, group="bank", topic="t", partition=0, numbered=None, **more):
    flag, body = half(payload, group, **more)
    return harness.send(topic, partition, body, flag=flag, **numbered or {})


def batch(items):
    return raw_batch("t", 0, records_of(items))


def end_half(half_id, outcome, topic="t", partition=0):
    return encode_frame(RequestCode.END_HALF, 1, EndHalfRequest(topic, partition, half_id, outcome).to_ext())


def end_halves(outcomes, topic="t", partition=0):
    body = encode_ends(outcomes)
    return encode_frame(RequestCode.END_HALVES, 1, EndHalvesRequest(topic, partition).to_ext(), len(body)) + body


class HalfLives(Lives):
    @property
    def halves(self):
        return self.broker.halves

    @property
    def places(self):
        return self.broker.account.half_messages

    def wait(self, seconds, step=0.1):
        super().wait(seconds, step)

    def accepted(self, data, peer=None):
        frame = self.ask(data, peer)
        assert frame.code == OK, frame.remark
        return frame

    def sent(self, *arguments, **options):
        """The id of a half message."""
        message_id, offset = place(self.ask(send(*arguments, **options)))
        assert offset == -1
        return message_id

    def end_one(self, *arguments, **options):
        return EndHalfReply.from_ext(self.accepted(end_half(*arguments, **options)).ext)

    def end_many(self, *outcomes, **options):
        return decode_ended(self.accepted(end_halves(outcomes, **options)).body)

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
        frame = self.accepted(encode_frame(RequestCode.LIST_HALVES, 1, ListHalvesRequest(**options).to_ext()))
        return simplejson.loads(bytes(frame.body))


@pytest.fixture
def lives(tmp_path):
    lives = HalfLives(tmp_path, options=BrokerOptions(half_check_seconds=6.0, half_checks=4))
    yield lives
    lives.end()


def test_one_half_message_is_given_whole_if_that_is_asked_for(lives):
    first, second = lives.sent(b"one" * 100), lives.sent(b"two" * 100)
    for half_id, payload in ((first, b"one" * 100), (second, b"two" * 100)):
        (found,) = lives.listed(after=half_id - 1, limit=10, whole=True)["halves"]
        assert found["id"] == half_id
        assert payload_of(b64decode(found["body"]), found["flag"]) == payload
    assert lives.listed(after=second, limit=10, whole=True)["halves"] == []
    assert all("body" not in each for each in lives.listed()["halves"])


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_half_message_is_in_no_partition_until_it_is_committed_and_has_lost_the_flag_then(lives):
    first, second = lives.sent(b"one"), lives.sent(b"two")
    lives.wait(30)
    assert lives.payloads() == []
    reply = lives.end_one(second, COMMIT)
    ((payload, _, flag),) = lives.stored()
    assert (payload, flag & DELAYED_FLAG, flag & 3) == (b"two", 0, 3)  # with its properties
    assert (reply.outcome, reply.offset) == (COMMIT, 0)
    assert lives.end_one(first, COMMIT).offset > 0
    assert lives.payloads() == [b"two", b"one"]


def test_rolled_back_message_is_never_seen_nor_asked_for(lives):
    half_id = lives.sent(b"one")
    assert lives.end_one(half_id, ROLL_BACK) == EndHalfReply(ROLL_BACK, 0, -1)
    lives.wait(30)
    assert lives.asked() == []
    lives.restart()
    assert lives.payloads() == []
    assert len(lives.halves) == 0


@pytest.mark.parametrize("end", ["nothing", "restart", "kill"])
def test_outcome_is_answered_as_the_first_one_whatever_the_second_says_and_after(lives, end):
    committed, rolled_back, open_half = lives.sent(b"one"), lives.sent(b"two"), lives.sent(b"three")
    first = lives.end_one(committed, COMMIT)
    lives.end_one(rolled_back, ROLL_BACK)
    getattr(lives, end, lambda: None)()
    assert lives.end_one(committed, COMMIT) == lives.end_one(committed, ROLL_BACK) == first
    assert lives.end_one(rolled_back, COMMIT).outcome == ROLL_BACK
    assert lives.end_one(open_half, COMMIT).outcome == COMMIT
    assert lives.payloads() == [b"one", b"three"]


def test_unknown_half_message_is_said_to_be_unknown(lives):
    one, two = lives.sent(b"one"), lives.sent(b"two")
    assert lives.end_one(two + 1, COMMIT).outcome == UNKNOWN
    assert lives.end_one(one, COMMIT, partition=1).outcome == UNKNOWN
    replies = lives.end_many((one, COMMIT), (two, COMMIT), partition=1)
    assert [each.outcome for each in replies] == [UNKNOWN, UNKNOWN]
    assert lives.payloads("t", 1) == lives.payloads() == []
    assert len(lives.halves) == 2


def test_two_answers_at_the_same_time_are_given_the_same_decision(lives):
    half_id = lives.sent(b"one", topic="safe")
    peers = [lives.harness.connect() for _ in range(2)]
    for peer, outcome in zip(peers, (COMMIT, ROLL_BACK), strict=True):
        peer.send(end_half(half_id, outcome, "safe"))
    lives.work()
    outcomes = [EndHalfReply.from_ext(frame.ext).outcome for peer in peers for frame in peer.frames()]
    assert outcomes == [COMMIT, COMMIT]
    assert lives.payloads("safe") == [b"one"]


def test_commits_that_the_partition_refuses_leave_their_half_messages_waiting(lives):
    outcomes = [(lives.sent(payload), COMMIT) for payload in (b"one", b"two", b"three")]
    lives.broker.partitions.close("t", 0, 0)
    for frame in (end_half(*outcomes[0]), end_halves(outcomes)):
        assert lives.ask(frame).code == ResponseCode.NO_PERMISSION
    assert len(lives.halves) == 3
    lives.broker.partitions.open("t")
    assert lives.end_one(*outcomes[0]).outcome == COMMIT
    assert [each.outcome for each in lives.end_many(*outcomes[1:])] == [COMMIT, COMMIT]
    assert lives.payloads() == [b"one", b"two", b"three"]


def test_commit_that_cannot_be_written_leaves_the_half_message_waiting(lives):
    half_id = lives.sent(b"one")
    lives.files.fail("pwritev")
    assert lives.ask(end_half(half_id, COMMIT)).code != OK
    assert lives.halves.count(("t", 0)) == 1
    lives.kill()
    assert lives.end_one(half_id, ROLL_BACK).outcome == ROLL_BACK
    assert lives.payloads() == []


# --- outcomes of several half messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(*ENDS)
def test_several_outcomes_are_decided_at_once_and_known_after_a_restart(lives, end):
    one, two, three, four = (lives.sent(payload) for payload in (b"one", b"two", b"three", b"four"))
    replies = lives.end_many((four, COMMIT), (two, ROLL_BACK), (one, COMMIT))
    assert [each.outcome for each in replies] == [COMMIT, ROLL_BACK, COMMIT]
    assert lives.payloads() == [b"one", b"four"]
    assert replies[0].offset > 0 == replies[2].offset > replies[1].offset == -1
    assert replies[0].message_id == replies[2].message_id + 1
    getattr(lives, end)()
    assert [lives.end_one(each, ROLL_BACK) for each in (four, two, one)] == replies
    assert lives.end_one(three, COMMIT).outcome == COMMIT
    assert lives.halves.committed == 1
    assert lives.payloads() == [b"one", b"four", b"three"]


def test_of_several_outcomes_one_may_be_unknown_decided_before_or_said_twice(lives):
    one, two = lives.sent(b"one"), lives.sent(b"two")
    first = lives.end_one(one, ROLL_BACK)
    unknown, again, committed, repeated = lives.end_many((two + 1, COMMIT), (one, COMMIT), (two, COMMIT), (two, COMMIT))
    assert unknown == EndHalfReply(UNKNOWN)
    assert again == first
    assert committed == repeated
    assert lives.payloads() == [b"two"]


@pytest.mark.parametrize(("turn_bytes", "marks"), [(1 << 20, 2), (100, 40), (1, 40)])
def test_many_outcomes_are_decided_in_as_few_writes_as_one_turn_may_read(lives, monkeypatch, turn_bytes, marks):
    monkeypatch.setattr(tuning, "HALVES_TURN_BYTES", turn_bytes)
    payloads = [b"%d" % number for number in range(40)]
    lives.ask(batch([half(payload, tag=payload.decode()) for payload in payloads[:20]]))
    for payload in payloads[20:]:
        lives.sent(payload)
    ids = [each["id"] for each in lives.listed()["halves"]]
    (log,) = lives.harness.store.internal_logs(HALVES_TOPIC)
    before = len(headers(log))
    outcomes = [(each, ROLL_BACK if number % 4 == 3 else COMMIT) for number, each in enumerate(ids)]
    replies = lives.end_many(*outcomes)
    assert [each.outcome for each in replies] == [outcome for _, outcome in outcomes]
    committed = [(reply.offset, reply.message_id) for reply in replies if reply.outcome == COMMIT]
    assert committed == [(each.start, each.id) for each in headers(lives.harness.store.find("t", 0))]
    assert lives.payloads() == [payload for number, payload in enumerate(payloads) if number % 4 != 3]
    assert len(headers(log)) - before == marks
    assert len(lives.halves) == 0
    assert lives.end_many(*outcomes) == replies
    lives.kill()
    assert lives.end_many(*outcomes) == replies


def headers(log):
    return list(iter_headers(log.segments.snapshot().read(log.first_offset, log.visible_end - log.first_offset)))


def test_several_outcomes_wait_until_they_are_safe_and_another_answer_with_them(lives):
    ids = [lives.sent(payload, topic="safe") for payload in (b"one", b"two")]
    peers = [lives.harness.connect() for _ in range(2)]
    peers[0].send(end_halves([(each, COMMIT) for each in ids], "safe"))
    peers[1].send(end_half(ids[1], ROLL_BACK, "safe"))
    assert [peer.frames() for peer in peers] == [[], []]
    lives.work()
    (both,), (one,) = (peer.frames() for peer in peers)
    assert decode_ended(both.body)[1] == EndHalfReply.from_ext(one.ext)
    assert lives.payloads("safe") == [b"one", b"two"]


@pytest.mark.parametrize("body", [b"", bytes(9), b"\0" * 7 + b"\1\3", b"\0" * 7 + b"\1\1" + b"\0"])
def test_wrong_outcomes_are_refused(lives, body):
    frame = lives.ask(encode_frame(RequestCode.END_HALVES, 1, EndHalvesRequest("t", 0).to_ext(), len(body)) + body)
    assert frame.code == ILLEGAL


# --- sends ------------------------------------------------------------------------------------------------------------


def test_repeated_numbered_half_message_is_kept_once(lives):
    first = lives.sent(b"one", numbered=NUMBERED)
    assert lives.sent(b"one", numbered=NUMBERED) == first
    lives.kill()
    assert lives.sent(b"one", numbered=NUMBERED) == first
    lose_partition(lives, "t")
    assert lives.sent(b"one", numbered=NUMBERED) == first
    lives.end_one(first, COMMIT)
    assert lives.sent(b"one", numbered=NUMBERED) == first
    assert lives.payloads() == [b"one"]


def test_half_messages_of_a_batch_are_decided_each_by_itself(lives):
    first, _ = place(lives.ask(batch([half(b"one"), half(b"two"), half(b"three")])))
    lives.end_one(first + 2, COMMIT)
    lives.end_one(first, ROLL_BACK)
    lives.end_one(first + 1, COMMIT)
    assert lives.payloads() == [b"three", b"two"]


def test_batch_of_half_messages_and_others_is_refused(lives):
    delayed = reserved(b"late", {"metaq.delay": "1"})
    for items in ([half(b"one"), (0, b"plain")], [half(b"one"), delayed], [delayed, half(b"one")]):
        frame = lives.ask(batch(items))
        assert (frame.code, "one batch" in frame.remark) == (ILLEGAL, True)
    assert len(lives.halves) == len(lives.broker.delays) == 0


WRONG = {
    "no group": ({"group": ""}, ""),
    "a blank in its group": ({"group": "a b"}, ""),
    "a time of its first check below 0": ({"metaq.check-after": "-1"}, ""),
    "a time of its first check far away": ({"metaq.check-after": "9" * 14}, ""),
    "a delay, too": ({"metaq.delay": "5"}, "half message"),
    "no name of its producer": ({"metaq.half-producer": ""}, ""),
    "a blank in the name of its producer": ({"metaq.half-producer": "a b"}, ""),
    "too long a name of its producer": ({"metaq.half-producer": "x" * 65}, ""),
}


@pytest.mark.parametrize(("wrong", "said"), WRONG.values(), ids=WRONG)
def test_half_message_is_refused_that_has(lives, wrong, said):
    frame = lives.ask(send(b"one", **wrong))
    assert (frame.code, said in frame.remark) == (ILLEGAL, True)


def test_too_many_half_messages_are_refused_for_now_with_a_remedy(lives):
    limit(lives, 32)
    first = lives.sent(b"one")
    assert lives.ask(batch([half(b"more")] * 28)).code == OK
    lives.sent(b"last")
    frame = lives.ask(send(b"too many"))
    assert frame.code == BUSY
    for part in ("30 of at most 32, 30 of them from", "halfMessages=32", "metaq halves list"):
        assert part in frame.remark
    lives.end_one(first, ROLL_BACK)
    assert lives.ask(batch([half(b"more")] * 2)).code == BUSY
    refused = lives.ask(many([("t", 0, records_of([half(b"more")] * 2))]))
    assert decode_rows(refused.body, 1).codes == [BUSY]
    lives.sent(b"four")
    assert lives.places.used == len(lives.halves) == 30


def limit(lives, most):
    """Before any is counted."""
    lives.broker.account.half_messages = Shares("half messages", "halfMessages", most, 50)


def test_one_address_does_not_have_all_places_of_half_messages(lives):
    limit(lives, 32)
    crowd, other = lives.harness.connect("10.0.0.1"), lives.harness.connect("10.0.0.2")
    assert lives.ask(batch([half(b"crowd")] * 30), crowd).code == OK
    assert lives.ask(send(b"mine"), other).code == OK
    assert lives.ask(send(b"crowd"), crowd).code == BUSY
    assert lives.ask(send(b"mine"), other).code == OK
    assert (lives.places.used, lives.places.largest) == (32, 30)


@pytest.mark.parametrize("outcome", [COMMIT, ROLL_BACK])
def test_places_of_half_messages_are_given_back_with_their_outcomes(lives, outcome):
    ids: list[int] = []
    for host, count in (("10.0.0.1", 3), ("10.0.0.2", 2)):
        first, _ = place(lives.ask(batch([half(b"one")] * count), lives.harness.connect(host)))
        ids += range(first, first + count)
    assert (lives.places.used, lives.places.largest) == (5, 3)
    lives.end_many(*((each, outcome) for each in ids[:2]))
    assert (lives.places.used, lives.places.largest) == (3, 2)
    lives.wait(7)
    lives.end_many(*((each, outcome) for each in ids[2:]))
    assert (lives.places.used, lives.places.largest) == (0, 0)


@pytest.mark.parametrize(*ENDS)
def test_half_messages_of_before_a_start_have_places_that_no_address_pays(lives, end):
    first = lives.sent(b"one")
    lives.sent(b"two")
    getattr(lives, end)()
    places = lives.places
    assert (places.used, places.room("127.0.0.1")) == (2, places.limit // 2)
    lives.sent(b"three")
    assert places.used == 3
    lives.end_one(first, COMMIT)
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


SENT_BY = {"metaq.half-producer": "p1"}


def sender_goes(lives):
    sender = lives.harness.connect()
    lives.poll(wait_ms=60_000, peer=sender, producer="p1")
    lives.wait(5.5)
    sender.lose()


def broker_starts(lives):
    lives.wait(7)
    lives.restart()


@pytest.mark.parametrize(
    ("sent", "first", "producer", "silent", "more"),
    [
        pytest.param({}, None, "", 5.9, 0.3, id="as soon as the check is due"),
        pytest.param(SENT_BY, None, "p2", 8.5, 1, id="a moment later if its sender has never asked"),
        pytest.param(SENT_BY, sender_goes, "p2", 2.5, 1.5, id="soon after its sender's connection is lost"),
        pytest.param(SENT_BY, broker_starts, "p2", 9, 2, id="when its sender had time to come back after a start"),
    ],
)
def test_producer_that_waits_is_asked(lives, sent, first, producer, silent, more):
    lives.sent(b"one", **sent)
    if first:
        first(lives)
    lives.poll(wait_ms=60_000, producer=producer)
    lives.wait(silent)
    assert lives.questions() is None
    lives.wait(more)
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
    peers = [lives.harness.connect() for _ in range(2)]
    lives.sent(b"one")
    for peer in peers:
        lives.poll(wait_ms=10_000, peer=peer)
    lives.wait(7)
    assert [lives.questions(peer) for peer in peers] == [[(b"one", 1)], None]


def test_pauses_between_questions_double_until_it_is_parked_and_waits_for_an_operator(lives):
    half_id, start, at = lives.sent(b"one"), lives.time, []
    for _ in range(1200):
        lives.wait(0.1)
        if lives.asked():
            at.append(round(lives.time - start))
    assert at == [6, 12, 24, 48]
    assert lives.listed()["states"] == {"asked": 0, "parked": 1, "waiting": 0}
    assert [each["state"] for each in lives.listed()["halves"]] == ["parked"]
    lives.restart()
    lives.wait(100, step=1)
    assert lives.asked() == []
    assert [each["state"] for each in lives.listed(state="parked")["halves"]] == ["parked"]
    lives.end_one(half_id, COMMIT)
    assert lives.payloads() == [b"one"]
    assert lives.listed()["count"] == 0


@pytest.mark.parametrize(*ENDS)
def test_questions_are_counted_on_after_a_restart(lives, end):
    lives.sent(b"one")
    for count in (1, 2):
        lives.wait(7)
        assert lives.asked() == [(b"one", count)]
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


@pytest.mark.parametrize("given", [True, False])
def test_producer_that_goes_is_replaced_by_another_one_soon_if_it_was_given_something(lives, given):
    gone = lives.harness.connect()
    lives.poll(wait_ms=10_000, peer=gone)
    lives.sent(b"one")
    if given:
        lives.wait(7)
        assert lives.questions(gone) == [(b"one", 1)]
    gone.lose()
    assert lives.asked() == []
    lives.wait(1.5 if given else 7)
    assert lives.asked() == [(b"one", 1 + given)]


@pytest.mark.parametrize(("most", "turn_bytes"), [(2, tuning.HALVES_TURN_BYTES), (32, 1000)], ids=["count", "bytes"])
def test_answers_are_bounded_by(lives, monkeypatch, most, turn_bytes):
    monkeypatch.setattr(tuning, "HALVES_TURN_BYTES", turn_bytes)
    for number in range(5):
        lives.sent(b"%d" % number * 400)
    lives.wait(7)
    assert [len(lives.asked(limit=most)) for _ in range(4)] == [2, 2, 1, 0]


def test_both_modes_of_flushing_are_asked_for(lives):
    lives.sent(b"loose")
    lives.sent(b"safe", topic="safe")
    lives.wait(7)
    assert sorted(lives.asked() + lives.asked()) == [(b"loose", 1), (b"safe", 1)]


def test_half_message_that_is_decided_is_not_asked_for_again(lives):
    half_id = lives.sent(b"one")
    lives.wait(7)
    assert lives.asked() == [(b"one", 1)]
    lives.end_one(half_id, COMMIT)
    lives.wait(20)
    assert lives.asked() == []
    assert lives.halves.figures(10) == {}


def test_follower_is_no_more_asked_and_says_who_leads(lives):
    lives.sent(b"one")
    lives.poll(wait_ms=10_000)
    lives.halves.follow()
    lives.work()
    assert [frame.code for frame in lives.peer.frames()] == [ResponseCode.NOT_LEADER]
    lives.halves.lead()
    lives.wait(7)
    assert lives.asked() == [(b"one", 1)]


# --- who is asked -----------------------------------------------------------------------------------------------------


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


def test_pause_of_the_broker_makes_nobody_silent(lives):
    sender, other = lives.harness.connect(), lives.harness.connect()
    lives.sent(b"one", **{"metaq.check-after": "1000"}, **SENT_BY)
    assert lives.asked(peer=sender, producer="p1") == []
    lives.poll(wait_ms=60_000, peer=other, producer="p2")
    lives.wait(30, step=30)  # it stands still; then the sender's next question is read
    assert lives.asked(peer=sender, producer="p1") == [(b"one", 1)]
    assert lives.questions(other) is None


def test_what_is_remembered_of_askers_is_bounded(lives):
    groups = lives.halves._groups
    for number in range(300):
        lives.asked(f"group-{number}", producer=f"p{number}")
        lives.asked("bank", producer=f"p{number}")
        lives.asked("bank")
    assert (len(groups._groups) <= 300, len(groups._alarms) < 1000) == (True, True)
    lives.wait(12)
    assert (len(groups._groups), len(groups._callers)) == (0, 0)


# --- cleaning ---------------------------------------------------------------------------------------------------------


def test_counts_of_questions_survive_that_a_record_is_written_anew(lives, monkeypatch):
    monkeypatch.setattr(tuning, "DELAYED_LOG_BYTES", 1)
    monkeypatch.setitem(KINDS, HALVES_TOPIC, replace(KINDS[HALVES_TOPIC], max_segment_size=100_000))
    lives.sent(b"kept")
    lives.wait(7)
    assert lives.asked() == [(b"kept", 1)]
    log = lives.harness.store.internal_log(HALVES_TOPIC, False)
    for _ in range(10):
        lives.end_one(lives.sent(b"x" * 30_000), ROLL_BACK)
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


@pytest.mark.parametrize("ends", ["one", "many"])
def test_a_half_message_is_ended_only_in_its_own_topic(lives, ends):
    """So the grant `send` of the topic that the request names is one for the message, too."""
    half_id = lives.sent(b"paid")
    for outcome in (COMMIT, ROLL_BACK):
        if ends == "one":
            assert lives.end_one(half_id, outcome, topic="safe").outcome == UNKNOWN
        else:
            assert [each.outcome for each in lives.end_many((half_id, outcome), topic="safe")] == [UNKNOWN]
    assert lives.listed()["count"] == 1
    assert lives.payloads() == lives.payloads("safe") == []
    assert lives.end_one(half_id, COMMIT).outcome == COMMIT
    assert lives.payloads() == [b"paid"]
