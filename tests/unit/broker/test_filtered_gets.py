"""`get` of a group with a filter, as 1.x clients use it: they count the bytes that they got, and commit that."""

import random
from typing import Any

import pytest

from metaq.broker.filters import judge as judge_module
from metaq.broker.filters import remembered_places as places_module
from metaq.broker.requests import get as get_module
from metaq.broker.requests.gate import HttpPeer
from metaq.protocol.pulls import PullReply
from metaq.protocol.record import HEADER_BYTES, iter_headers
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import AnswerReader, Get, Value, encode_get, encode_offset
from tests.unit.broker.harness import Harness, batch, filter_module, overwrite, pull, put

TOPICS = """
[topic=orders]
numPartitions=1
group.large=my_filters:large
"""
RECORD = 25  # bytes of a record with a body of 5


@pytest.fixture(autouse=True)
def my_filters(monkeypatch):
    return filter_module(
        monkeypatch,
        large=lambda group, message: message.payload.startswith(b"L"),
        any=lambda group, message: True,
        small=lambda group, message: message.payload.startswith(b"s"),
    )


class JavaClient:
    """A 1.x consumer of one partition on a connection of its own (SimpleFetchManager, FetchRequest of 1.4.6.2)."""

    def __init__(self, harness: Harness, offset: int = 0, max_size: int = 1000) -> None:
        self.harness = harness
        self.peer = harness.connect()
        self.offset = offset
        self.max_size = max_size
        self.seen: list[bytes] = []
        self.moves: list[int] = []

    def ask(self) -> Any:
        self.peer.send(encode_get("orders", "large", 0, self.offset, self.max_size, 1))
        self.harness.threads.run()
        (answer,) = self.peer.answers()
        return answer

    def fetch(self, processed: int | None = None) -> Any:
        """One round; the listener fails at the message behind the first `processed`."""
        return self.take(self.ask(), processed)

    def take(self, answer: Any, processed: int | None = None) -> Any:
        """What the client does with an answer."""
        if isinstance(answer, Value):
            data = bytes(answer.data)
            for header in list(iter_headers(data))[:processed]:
                self.seen.append(data[header.start + HEADER_BYTES : header.end])
                self.offset += header.end - header.start
        elif answer.code == 301:
            self.offset = int(answer.text)
            self.moves.append(self.offset)
        return answer

    def run(self) -> "JavaClient":
        """Rounds until there is nothing now."""
        while getattr(answer := self.fetch(), "code", 200) != 404:
            assert isinstance(answer, Value) or answer.code == 301, answer
        return self

    def reconnect(self) -> None:
        self.peer.lose()
        self.peer = self.harness.connect()


def bodies(letters: str) -> list[bytes]:
    """One body of five bytes for each letter: the letter and its number."""
    return [f"{letter}{number:04}".encode() for number, letter in enumerate(letters)]


def accepted(made: list[bytes]) -> list[bytes]:
    return [body for body in made if body.startswith(b"L")]


def fill(harness: Harness, letters: str) -> list[bytes]:
    """Stores the bodies; those that the filter accepts."""
    made = bodies(letters)
    harness.connect().ask_frame(batch("orders", 0, made))
    return accepted(made)


def filled(harness: Harness, letters: str, **options: Any) -> tuple[JavaClient, list[bytes]]:
    """A client beside what `fill` gives."""
    wanted = fill(harness, letters)
    return JavaClient(harness, **options), wanted


def log_of(harness: Harness) -> Any:
    return harness.store.get("orders", 0)


@pytest.fixture
def segmented(request, tmp_path):
    """Many small segments with "Ls" * 100, or with other letters."""
    harness = Harness(tmp_path, system="maxSegmentSize=500", topics=TOPICS)
    peer = harness.connect()
    for body in bodies(getattr(request, "param", "Ls" * 100)):
        peer.ask(put("orders", 0, body))
    yield harness
    harness.store.close()


# --- a stretch at once ------------------------------------------------------------------------------------------------


def test_accepted_records_of_a_stretch_come_together_without_a_move_between(harness):
    client, wanted = filled(harness, "Ls" * 100)
    assert [len(client.fetch().data) // RECORD for _ in range(3)] == [40, 40, 20]  # maxTransferSize is 1000
    assert (client.seen, client.moves) == (wanted, [])


STRETCHES = {
    "once at the end, and then it waits": ("sLsLss", {}, 1000, [6]),
    "never if nothing is rejected": ("L" * 100, {}, 1000, []),
    "past a long rejected stretch": ("s" * 25 + "L", {(judge_module, "SCAN_BYTES"): 10}, 60, [10, 20, 26]),
    "to a record behind more rejected ones than the bound": (
        "s" * 25 + "LsL",
        {(get_module, "MAX_GAP_BYTES"): 10},
        1000,
        [25, 28],
    ),
}


@pytest.mark.parametrize(("letters", "bounds", "max_size", "moves"), STRETCHES.values(), ids=STRETCHES)
def test_a_client_is_put_right(harness, monkeypatch, letters, bounds, max_size, moves):
    """bounds and moves: in records."""
    for (module, name), records in bounds.items():
        monkeypatch.setattr(module, name, records * RECORD)
    client, wanted = filled(harness, letters, max_size=max_size)
    client.run()
    assert (client.seen, client.moves) == (wanted, [each * RECORD for each in moves])
    assert (client.offset, client.ask().code) == (len(letters) * RECORD, 404)
    harness.connect().ask(put("orders", 0, b"L9999"))
    assert client.run().seen == [*wanted, b"L9999"]


def test_an_offset_is_put_right_before_it_is_farther_behind_than_the_bound(harness, monkeypatch):
    monkeypatch.setattr(get_module, "MAX_GAP_BYTES", 50 * RECORD)
    client, wanted = filled(harness, "Lss" * 100)
    behind = []
    while getattr(client.fetch(), "code", 200) != 404:
        read = 3 * len(client.seen) * RECORD
        behind.append(read - client.offset)
    assert client.seen == wanted
    assert 40 * RECORD < max(behind) <= 51 * RECORD
    assert 3 <= len(client.moves) <= 5


@pytest.mark.parametrize("letters", ["L" + "s" * 30 + "L" * 9, "Lss" * 13])
def test_an_answer_passes_no_more_rejected_records_than_the_bound(harness, monkeypatch, letters):
    monkeypatch.setattr(get_module, "MAX_GAP_BYTES", 10 * RECORD)
    client, _ = filled(harness, letters)
    client.fetch()
    client.fetch()
    assert [move // RECORD - len(client.seen) for move in client.moves] == [10]


def test_an_offset_that_is_behind_for_long_is_put_right(harness):
    client, wanted = filled(harness, "Ls" * 200)
    client.fetch()
    harness.reactor.advance(places_module.PUT_RIGHT_SECONDS / 2)
    assert isinstance(client.fetch(), Value)
    harness.reactor.advance(places_module.PUT_RIGHT_SECONDS / 2)
    assert client.fetch().code == 301
    assert client.offset == 160 * RECORD
    assert client.run().seen == wanted


def test_records_of_all_sizes_arrive_across_segments(tmp_path):
    harness = Harness(tmp_path, system="maxSegmentSize=4096", topics=TOPICS)
    peer = harness.connect()
    chance = random.Random(5)
    sent = [chance.choice((b"L", b"s")) * chance.randint(1, 900) for _ in range(200)]
    for body in sent:
        peer.ask(put("orders", 0, body))
    assert len(log_of(harness).segments) > 10
    client = JavaClient(harness).run()
    assert client.seen == accepted(sent)
    assert client.offset == log_of(harness).visible_end
    harness.store.close()


# --- what the client has not processed --------------------------------------------------------------------------------


@pytest.mark.parametrize("processed", [0, 1, 7, 39])
def test_a_message_that_failed_comes_again_first(harness, processed):
    client, wanted = filled(harness, "sLs" * 100)
    client.fetch()
    client.fetch(processed)
    for _ in range(3):
        assert bytes(client.fetch(0).data)[HEADER_BYTES:RECORD] == wanted[40 + processed]
    assert client.run().seen == wanted


def test_of_two_answers_to_one_offset_the_smaller_place_counts(harness):
    """A Java client sends the second when the first has timed out, and the filter may be another one by then."""
    client, _ = filled(harness, "LsLsLsssLLLLLLLLLLLLLL")
    client.peer.send(encode_get("orders", "large", 0, 0, 1000, 1))
    reload(harness, "group.large=my_filters:any\n")
    client.peer.send(encode_get("orders", "large", 0, 0, 1000, 2))
    harness.threads.run()
    client.take(client.peer.answers()[1], 3)
    assert client.seen == [b"L0000", b"s0001", b"L0002"]
    client.run()
    assert client.seen[3:] == bodies("LsLsLsssLLLLLLLLLLLLLL")[3:]


# --- nothing is known of the offset -----------------------------------------------------------------------------------


def test_after_a_reconnect_an_offset_inside_a_record_is_led_to_the_records_start(harness):
    harness.connect().ask_frame(batch("orders", 0, [b"L1", b"s23456", b"s2", b"L4", b"s55", b"L6"]))
    client = JavaClient(harness)
    client.fetch()
    assert client.offset == 3 * 22  # between the starts of "s2" and "L4"
    client.reconnect()
    client.fetch()
    assert client.moves == [22 + 26]
    client.run()
    assert client.seen == [b"L1", b"L4", b"L6", b"L4", b"L6"]


@pytest.mark.parametrize("is_filtered", [True, False])
def test_in_a_segment_without_an_index_the_record_is_walked_to(segmented, is_filtered):
    if not is_filtered:
        JavaClient(segmented).fetch()
        reload(segmented, "")
    log_of(segmented).segments[1].index = None
    client = JavaClient(segmented, offset=20 * RECORD + 7 * RECORD + 3)
    client.fetch()
    assert client.moves == [27 * RECORD]
    left = bodies("Ls" * 100)[27:]
    assert client.run().seen == (accepted(left) if is_filtered else left)


def test_a_reconnect_repeats_no_more_than_the_bound(harness, monkeypatch):
    monkeypatch.setattr(get_module, "MAX_GAP_BYTES", 50 * RECORD)
    wanted = fill(harness, "Lss" * 200)
    for rounds in range(1, 8):
        client = JavaClient(harness)
        for _ in range(rounds):
            client.fetch()
        before = len(client.seen)
        client.reconnect()
        client.run()
        repeated = client.seen[before:]
        assert len(repeated) - (200 - before) <= 51 // 3 + 1
        assert repeated == wanted[-len(repeated) :]


def test_a_member_that_pulls_frames_takes_the_place_over(harness):
    client, _ = filled(harness, "Ls" * 100)
    client.fetch()
    harness.connect().send(pull("orders", 0, client.offset, group="large"))
    harness.threads.run()
    assert bytes(client.fetch().data)[HEADER_BYTES:RECORD] == b"L0040"


def test_a_pull_inside_a_record_is_led_to_the_records_start(harness):
    fill(harness, "Ls" * 100)
    peer = harness.connect()
    frame = peer.ask_frame(pull("orders", 0, 40 * RECORD + 3, group="large"), work=True)
    assert frame.code == ResponseCode.PULL_OFFSET_MOVED
    assert PullReply.from_ext(frame.ext).next_offset == 40 * RECORD


def test_a_connection_that_is_lost_while_its_filter_runs_leaves_nothing(harness):
    client, _ = filled(harness, "Ls" * 100)
    client.peer.send(encode_get("orders", "large", 0, 0, 1000, 1))
    client.peer.lose()
    harness.threads.run()
    assert len(harness.broker.reading.places) == 0


def test_of_a_consumer_that_goes_on_only_the_last_answer_is_remembered(harness):
    client, _ = filled(harness, "Ls" * 200)
    for _ in range(4):
        client.fetch()
        client.fetch(0)
    found = harness.broker.reading.places.find(client.peer.session, ("orders", 0, "large"), client.offset)
    assert len(found.answers) == 1


def test_what_is_remembered_of_the_midst_of_answers_is_bounded(harness, monkeypatch):
    monkeypatch.setattr(places_module, "_MAX_DETAIL_BYTES", 100)
    client, wanted = filled(harness, "Ls" * 100)
    client.run()
    assert client.seen == wanted  # ends of answers are still known
    failing = JavaClient(harness)
    failing.fetch(3)
    failing.run()
    assert list(dict.fromkeys(failing.seen)) == wanted


def test_places_are_bounded(harness, monkeypatch):
    monkeypatch.setattr(places_module, "_MAX_PLACES", 3)
    clients = []
    fill(harness, "Ls" * 100)
    for number in range(5):
        client = JavaClient(harness)
        client.peer.send(encode_get("orders", f"large{number}", 0, 0, 1000, 1))
        harness.broker.reading.places.claim(client.peer.session, ("orders", 0, f"large{number}"))
        clients.append(client)
    assert len(harness.broker.reading.places) == 3
    for client in clients:
        client.peer.lose()
    assert len(harness.broker.reading.places) == 0


# --- other ways of the client -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("segmented", ["sssss" + "Ls" * 100], indirect=True)
def test_an_offset_command_sends_the_client_to_where_it_says(segmented):
    """Also where that is an offset that an answer has led to; a Java client asks when it has met a damaged record."""
    client = JavaClient(segmented)
    client.fetch(30)
    assert client.offset == 30 * RECORD
    client.offset = int(client.peer.ask(encode_offset("orders", "large", 0, client.offset, 9)).text)
    assert client.offset == 20 * RECORD  # stands for the 20th accepted message, if it is not taken as it is
    assert bytes(client.fetch().data)[HEADER_BYTES:RECORD] == b"L0021"


def test_a_record_behind_rejected_ones_that_is_larger_than_the_client_asks_for(harness):
    peer = harness.connect()
    for body in (b"s1", b"L2", b"s3", b"L" * 3000, b"s5", b"L6"):  # maxTransferSize is 1000
        peer.ask(put("orders", 0, body))
    client = JavaClient(harness, max_size=200)
    client.fetch()
    assert client.seen == [b"L2"]
    for _ in range(2):  # nothing whole: the client asks for twice as much after some tries
        assert isinstance(client.fetch(), Value) or client.moves
    client.max_size = 4096
    client.run()
    assert client.seen == [b"L2", b"L" * 3000, b"L6"]


def test_damage_in_the_midst_ends_an_answer_and_is_then_the_clients_to_find(harness):
    fill(harness, "LsLLsL")
    overwrite(f"{log_of(harness).directory}/{0:020}.meta", 3 * RECORD + 22, b"X")
    client = JavaClient(harness)
    client.fetch()
    assert client.seen == [b"L0000", b"L0002"]
    answer = client.ask()
    assert bytes(answer.data[: 2 * RECORD]) == log_of(harness).segments.snapshot().read(3 * RECORD, 2 * RECORD)


def test_messages_that_retention_took_are_passed(segmented):
    client = JavaClient(segmented, max_size=200)
    client.fetch()
    log = log_of(segmented)
    log.segments.remove_first(5)
    assert client.fetch().code == 301
    assert client.offset == log.first_offset
    assert client.run().seen[8:] == accepted(bodies("Ls" * 100)[log.first_offset // RECORD :])


def test_retention_that_took_less_than_was_processed_changes_nothing(segmented):
    client = JavaClient(segmented)
    client.fetch()
    log = log_of(segmented)
    log.segments.remove_first(3)
    assert client.offset < 3 * 500 or log.first_offset <= client.offset
    assert client.run().seen == accepted(bodies("Ls" * 100))


# --- the filter changes -----------------------------------------------------------------------------------------------


def reload(harness, text):
    harness.ini = harness.ini.replace("group.large=my_filters:large\n", text)
    waiting, harness.threads.waiting = harness.threads.waiting, []
    deferred = harness.broker.reload_config()
    harness.threads.run()
    assert deferred.called
    harness.threads.waiting = waiting


@pytest.mark.parametrize(
    ("text", "letters", "moves"), [("", "Ls", [80]), ("group.large=my_filters:small\n", "s", None)]
)
def test_without_a_filter_or_with_another_one_it_goes_on_where_the_first_one_was(harness, text, letters, moves):
    client, _ = filled(harness, "Ls" * 100)
    client.fetch()
    reload(harness, text)
    if moves:
        client.fetch()
        assert client.moves == [80 * RECORD]
    client.run()
    assert client.seen[40:] == [body for body in bodies("Ls" * 100)[80:] if chr(body[0]) in letters]


def test_a_filter_that_is_taken_away_leaves_no_client_inside_a_record(harness):
    harness.connect().ask_frame(batch("orders", 0, [b"L1", b"saaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", b"L3", b"L4"]))
    client = JavaClient(harness)
    client.fetch()
    reload(harness, "")
    client.reconnect()
    client.fetch()
    assert client.moves == [22]
    client.run()
    assert client.seen[-2:] == [b"L3", b"L4"]


# --- without a connection ---------------------------------------------------------------------------------------------


def test_a_client_of_single_requests_gets_no_gap(harness):
    fill(harness, "LLsLss")

    def get(offset: int) -> tuple[int, bytes]:
        answers: list[Any] = []
        command = Get("orders", "large", 0, offset, 1000, 1)
        deferred: Any = harness.gate.serve(harness.gate.admit(command, HttpPeer("127.0.0.1")), command, None)
        deferred.addCallback(answers.append)
        harness.threads.run()
        data = b"".join(answers[0]) if isinstance(answers[0], list) else answers[0]
        (answer,) = AnswerReader().receive(data)
        return (200, bytes(answer.data)) if isinstance(answer, Value) else (answer.code, answer.text.encode())

    assert len(get(0)[1]) == 2 * RECORD
    assert get(2 * RECORD) == (301, b"75")
    assert len(get(3 * RECORD)[1]) == RECORD
    assert get(4 * RECORD) == (301, b"150")


# --- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_accepted_message_is_processed_in_order(harness, monkeypatch, seed):
    """Failures, crashes, reconnects, partitions that change hands, late twins, direct gets and time, by chance."""
    monkeypatch.setattr(get_module, "MAX_GAP_BYTES", 40 * RECORD)
    chance = random.Random(seed)
    likely = chance.choice((0.02, 0.3, 0.5, 0.9))
    sent = [("L" if chance.random() < likely else "s").encode() * chance.randint(1, 60) for _ in range(600)]
    sent = [body + b"%d" % number for number, body in enumerate(sent)]
    wanted = accepted(sent)
    numbers = {body: number for number, body in enumerate(wanted)}
    clients = [JavaClient(harness, max_size=chance.choice((100, 300, 1000))) for _ in range(2)]
    committed, processed, stored, owner = 0, 0, 0, clients[0]
    last_seen = -1
    ends = {}
    end = 0
    for body in sent:
        end += HEADER_BYTES + len(body)
        ends[body] = end
    for step in range(3000):
        if stored < len(sent) and chance.random() < 0.5:
            count = chance.randint(1, 60)
            harness.connect().ask_frame(batch("orders", 0, sent[stored : stored + count]))
            stored = min(len(sent), stored + count)
        action = chance.random()
        if action < 0.7 or step > 2000:
            before = len(owner.seen)
            owner.fetch(None if action < 0.5 else chance.randint(0, 5))
            for body in owner.seen[before:]:
                number = numbers[body]
                assert number <= last_seen + 1, "a message was passed over"
                last_seen = number
                processed = max(processed, number + 1)
        elif action < 0.8:
            committed = owner.offset
        elif action < 0.84:  # the client crashes: the next one goes on from the last commit
            owner.reconnect()
            owner.offset = committed
            last_seen = _last_before(wanted, ends, owner.offset)
        elif action < 0.88:
            owner.reconnect()
        elif action < 0.92:  # the partition changes hands
            committed = owner.offset
            owner = clients[0] if owner is clients[1] else clients[1]
            owner.offset = committed
        elif action < 0.96:
            owner.peer.send(encode_get("orders", "large", 0, owner.offset, chance.randint(50, 500), 9))
            harness.threads.run()
            owner.peer.answers()  # timed out: dropped
        else:
            harness.reactor.advance(chance.uniform(0, 6))
        if processed == len(wanted) and owner.offset == end and stored == len(sent):
            break
    assert stored == len(sent)
    assert set(wanted) == {body for client in clients for body in client.seen}
    assert owner.offset == end


def _last_before(wanted, ends, offset):
    """The number of the last accepted message that ends at or before the offset; those have been processed."""
    return max((number for number, body in enumerate(wanted) if ends[body] <= offset), default=-1)
