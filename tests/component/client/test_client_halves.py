"""Transactions with check-back of a producer, against a broker in memory."""

import threading
import time
from functools import partial

import pytest

from metaq import ConnectionConfig, HalfOutcome, Producer, ProducerConfig, TopicPartition
from metaq.protocol.errors import (
    BrokerUnavailable,
    ConfigError,
    HalfDecided,
    InvalidName,
    LocalProtocolError,
    MessageNotFound,
    RequestRefused,
)
from metaq.protocol.halves import EndHalfRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.testing import FakeBroker
from tests.waiting import eventually

CONFIG = ProducerConfig(
    producer_group="bank", connection=ConnectionConfig(reconnect_min_seconds=0.01, reconnect_max_seconds=0.05)
)
PLACE = TopicPartition("t", 0, 1)


@pytest.fixture
def broker():
    with FakeBroker({"t": 2}, broker_id=0) as broker:
        yield broker


def new_producer(broker, **options):
    options.setdefault("config", CONFIG)
    return Producer.direct(f"127.0.0.1:{broker.endpoint.port}", broker_id=0, partitions={"t": 2}, **options)


@pytest.fixture
def producer(broker):
    with new_producer(broker) as producer:
        yield producer


def commits(message):
    return True


def payloads(broker):
    return [body[-1:] for number in (0, 1) for body in broker.bodies("t", number)]


# --- local work -------------------------------------------------------------------------------------------------------


def test_message_is_stored_when_the_local_work_is_committed(broker, producer):
    seen = []

    def execute(message):
        seen.append((message.payload, message.tag, message.keys, message.partition, payloads(broker)))
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute, partition=PLACE, tag="x", keys=["k"])
    assert seen == [(b"a", "x", ("k",), PLACE, [])]
    assert result.outcome is HalfOutcome.COMMITTED
    assert (result.half.offset, result.sent.offset, result.sent.partition) == (-1, 0, PLACE)
    assert payloads(broker) == [b"a"]


def test_message_is_dropped_when_the_local_work_is_rolled_back(broker, producer):
    result = producer.send_in_transaction("t", b"a", execute=lambda message: False)
    assert (result.outcome, result.sent, result.cause) == (HalfOutcome.ROLLED_BACK, None, None)
    assert (payloads(broker), broker.halves.waiting) == ([], [])


def test_outcome_that_is_not_known_is_left_open(broker, producer):
    result = producer.send_in_transaction("t", b"a", execute=lambda message: None)
    assert (result.outcome, result.sent, result.cause) == (HalfOutcome.UNKNOWN, None, None)
    assert [each.id for each in broker.halves.waiting] == [result.half.message_id]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_of_the_local_work_reaches_the_caller_and_decides_nothing(broker, producer, error):
    def execute(message):
        raise error

    with pytest.raises(error):
        producer.send_in_transaction("t", b"a", execute=execute)
    assert len(broker.halves.waiting) == 1
    assert payloads(broker) == []


def test_answer_that_is_none_of_three_is_an_error_and_decides_nothing(broker, producer):
    with pytest.raises(TypeError, match="execute returned 'yes': return True"):
        producer.send_in_transaction("t", b"a", execute=lambda message: "yes")
    assert len(broker.halves.waiting) == 1


def test_local_work_is_not_begun_if_the_half_message_is_refused(broker, producer):
    broker.refuse = lambda request: (
        ResponseCode.MESSAGE_ILLEGAL if getattr(request, "code", None) == RequestCode.SEND else None
    )
    called: list[object] = []
    with pytest.raises(RequestRefused):
        producer.send_in_transaction("t", b"a", execute=called.append)
    assert called == []


def was_asked(broker, times):
    return not broker.halves.waiting or broker.halves.waiting[0].asked == times


# --- telling the broker -----------------------------------------------------------------------------------------------


def test_outcome_is_told_again_when_its_answer_is_lost(broker, producer):
    lost: list[object] = []

    def refuse(request):
        if getattr(request, "code", None) == RequestCode.END_HALF and len(lost) < 2:
            lost.append(request)
            return ResponseCode.SYSTEM_BUSY
        return None

    broker.refuse = refuse
    assert producer.send_in_transaction("t", b"a", execute=commits).outcome is HalfOutcome.COMMITTED
    assert len(lost) == 2
    assert payloads(broker) == [b"a"]


def test_broker_that_cannot_be_told_in_time_leaves_the_outcome_open_and_says_why(broker, producer):
    def execute(message):
        broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute, timeout=0.3)
    assert result.outcome is HalfOutcome.UNKNOWN
    assert isinstance(result.cause, BrokerUnavailable)
    assert len(broker.halves.waiting) == 1


def decide(broker, message, outcome):
    broker.halves.end(EndHalfRequest("t", message.partition.partition, message.id, outcome))


def test_outcome_that_a_check_has_contradicted_is_an_error_that_says_so(broker, producer):
    def execute(message):
        decide(broker, message, HalfOutcome.ROLLED_BACK)
        return True

    with pytest.raises(HalfDecided, match="is rolled-back already: it cannot be committed") as caught:
        producer.send_in_transaction("t", b"a", execute=execute)
    assert caught.value.outcome == HalfOutcome.ROLLED_BACK


def test_outcome_that_a_check_has_told_before_is_no_error(broker, producer):
    def execute(message):
        decide(broker, message, HalfOutcome.COMMITTED)
        return True

    assert producer.send_in_transaction("t", b"a", execute=execute).outcome is HalfOutcome.COMMITTED
    assert payloads(broker) == [b"a"]


def test_half_message_that_the_broker_does_not_know_leaves_the_outcome_open(broker, producer):
    def execute(message):
        broker.halves.waiting.clear()
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute)
    assert result.outcome is HalfOutcome.UNKNOWN
    assert isinstance(result.cause, MessageNotFound)


# --- questions --------------------------------------------------------------------------------------------------------


def test_check_is_asked_for_what_was_left_open(broker, producer):
    asked = []

    def check(message):
        asked.append((message.payload, message.partition))
        return True

    producer.send_in_transaction("t", b"a", execute=lambda message: None, check=check, partition=PLACE)
    broker.ask_for_halves()
    eventually(lambda: payloads(broker) == [b"a"])
    assert asked == [(b"a", PLACE)]


def test_another_producer_of_the_group_answers(broker, producer):
    producer.send_in_transaction("t", b"a", execute=lambda message: None)
    producer.close()
    with new_producer(broker) as other:
        other.check_transactions(lambda message: message.payload == b"b", ["t"])
        broker.ask_for_halves()
        eventually(lambda: broker.halves.waiting == [])
    assert payloads(broker) == []


def test_producers_of_other_groups_are_not_asked(broker, producer):
    producer.send_in_transaction("t", b"a", execute=lambda message: None)
    with new_producer(broker) as other:
        other.check_transactions(commits, "t", group="shop")
        eventually(lambda: f"frame {RequestCode.CHECK_HALVES}" in broker.requests)
        broker.ask_for_halves()
        time.sleep(0.1)
        assert len(broker.halves.waiting) == 1
        other.check_transactions(commits, "t", group="bank")
        eventually(lambda: payloads(broker) == [b"a"])


def test_check_that_fails_or_cannot_tell_is_asked_again(broker, producer, caplog):
    answers = iter([None, ValueError(), "yes", True])

    def check(message):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    producer.send_in_transaction("t", b"a", execute=lambda message: None, check=check)
    for asked in range(1, 5):
        broker.ask_for_halves()
        eventually(partial(was_asked, broker, asked))
    eventually(lambda: payloads(broker) == [b"a"])
    assert caplog.text.count("will be asked again") == 2


def test_check_is_not_asked_while_the_local_work_runs_here(broker, producer):
    asked: list[object] = []

    def execute(message):
        broker.ask_for_halves()
        eventually(lambda: broker.halves.waiting[0].asked == 1)
        time.sleep(0.05)
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute, check=asked.append)
    assert result.outcome is HalfOutcome.COMMITTED
    assert asked == []


def test_message_says_when_it_is_checked_first(broker, producer):
    asked = threading.Event()
    producer.send_in_transaction(
        "t", b"a", execute=lambda message: None, check=lambda message: asked.set(), check_after=0.05
    )
    assert asked.wait(5)


def test_questions_go_on_after_the_broker_was_away(broker, producer):
    producer.send_in_transaction("t", b"a", execute=lambda message: None, check=commits)
    eventually(lambda: f"frame {RequestCode.CHECK_HALVES}" in broker.requests)
    broker.drop_connections()
    broker.ask_for_halves()
    eventually(lambda: payloads(broker) == [b"a"])


def test_closed_producer_asks_no_more_and_leaves_no_thread(broker):
    before = set(threading.enumerate())
    producer = new_producer(broker)
    producer.check_transactions(commits, ["t"])
    eventually(lambda: f"frame {RequestCode.CHECK_HALVES}" in broker.requests)
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < 2
    left = [each for each in set(threading.enumerate()) - before if each.name.startswith("metaq-check")]
    assert left == []


# --- arguments --------------------------------------------------------------------------------------------------------


def test_group_has_to_be_named(broker):
    with new_producer(broker, config=ProducerConfig()) as producer:
        with pytest.raises(ConfigError, match="producer_group"):
            producer.send_in_transaction("t", b"a", execute=commits)
        with pytest.raises(ConfigError, match="producer_group"):
            producer.check_transactions(commits, ["t"])
        assert producer.send_in_transaction("t", b"a", execute=commits, group="g").outcome is HalfOutcome.COMMITTED


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"execute": None}, ConfigError, "execute"),
        ({"check": "x"}, ConfigError, "check"),
        ({"group": "a b"}, InvalidName, "group"),
        ({"delay": 5}, LocalProtocolError, r"delay=5 in send_in_transaction\(\)"),
        ({"payload": [b"a"]}, TypeError, r"send_in_transaction\(\) takes one message, not a batch of 1"),
        ({"check_after": -1}, LocalProtocolError, "check_after=-1"),
        ({"check_after": "5"}, TypeError, "check_after='5'"),
    ],
)
def test_wrong_arguments_are_refused_with_nothing_sent(broker, producer, options, error, words):
    with pytest.raises(error, match=words):
        producer.send_in_transaction("t", **{"payload": b"a", "execute": commits, **options})
    assert broker.sends == 0


def test_topics_of_questions_have_to_be_named(producer):
    with pytest.raises(ConfigError, match="topics"):
        producer.check_transactions(commits, [])


@pytest.mark.parametrize("old", ["broker", "text"])
def test_broker_without_half_messages_is_named_with_the_remedy(broker, old):
    broker.takes_halves = old != "broker"
    with (
        new_producer(broker, protocol="text" if old == "text" else "auto") as producer,
        pytest.raises(RequestRefused, match=r"halves/1.*update it"),
    ):
        producer.send_in_transaction("t", b"a", execute=commits)
    assert payloads(broker) == []
