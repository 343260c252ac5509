"""Attempts, pauses and causes; what a handler gets of a message that has waited; which broker it waits at; and what
run() of a shared consumer does with a message on which its handler fails."""

import pickle
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import Message, Retry, SharedMessage, TopicPartition
from metaq.client.consumer.retrying import FailedMessages, by_preference, cause_of
from metaq.client.records.message import RetriedMessage, ValueMessage, as_original
from metaq.client.serializers import deserializers
from metaq.client.shared import tuning
from metaq.client.shared.consumer import _Run
from metaq.protocol.errors import BrokerUnavailable, ClientError, ConfigError
from metaq.protocol.record import encode_attributes, encode_body
from metaq.protocol.retries import MAX_CAUSE_CHARACTERS, Failure, Origin, encode_failed, failure_of
from metaq.serializers import Json

HERE = TopicPartition("orders", 1, 2)
AWAY = BrokerUnavailable("it is away")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, ["attempts=0", "1 or more"]),
        ({"attempts": 2.5}, ["attempts=2.5", "whole number"]),
        ({"attempts": 1 << 30}, ["attempts", "at most"]),
        ({"first": 0}, ["first=0", "more than 0"]),
        ({"first": "1"}, ["first='1'", "number"]),
        ({"factor": 0.5}, ["factor=0.5", "1 or more"]),
        ({"first": 10, "most": 5}, ["most=5", "first (10)"]),
        ({"most": 40_000_000}, ["most=40000000", "31622400"]),
        ({"jitter": 1.5}, ["jitter=1.5", "0 … 1"]),
        ({"jitter": -1}, ["jitter=-1"]),
        ({"first": float("nan")}, ["first=nan"]),
        ({"ordered": "yes"}, ["ordered='yes'", "True or False"]),
    ],
)
def test_what_is_wrong_with_a_retry_is_named_with_its_remedy(options, words):
    with pytest.raises(ConfigError) as found:
        Retry(**options)
    assert all(word in str(found.value) for word in words), str(found.value)


def test_pauses_grow_by_the_factor_up_to_the_longest():
    retry = Retry(first=2.0, factor=3.0, most=50.0, jitter=0)
    assert [retry.pause(failures, lambda: 0.5) for failures in range(1, 6)] == [2, 6, 18, 50, 50]
    assert Retry(factor=1e9, most=7.0, jitter=0).pause(1000, lambda: 0.5) == 7.0  # beyond all floats


def test_the_default_leaves_the_whole_pause_to_chance_and_half_of_it_may_be_kept():
    retry = Retry(first=8.0)
    assert [retry.pause(1, lambda: 0.0), retry.pause(1, lambda: 0.999)] == pytest.approx([0.0, 7.992])
    half = Retry(first=8.0, jitter=0.5)
    assert (half.pause(1, lambda: 0.0), half.pause(1, lambda: 1.0)) == (4.0, 8.0)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True), st.floats(0, 1), st.floats(1, 100))
def test_no_pause_is_longer_than_the_longest(failures, chance, jitter, factor):
    retry = Retry(jitter=jitter, factor=factor)
    assert 0 <= retry.pause(failures, lambda: chance) <= retry.most


def test_the_defaults_last_as_long_as_their_description_says():
    seconds = sum(Retry(jitter=0).pause(failures, float) for failures in range(1, Retry().attempts))
    assert seconds / 3600 == pytest.approx(6.3, abs=0.05)


# --- causes -----------------------------------------------------------------------------------------------------------


def caught(error):
    try:
        raise error
    except type(error) as raised:
        return raised


def test_a_cause_names_type_text_and_place():
    text, place = cause_of(caught(ValueError("the provider\nis away"))).split("\n")
    assert text == "ValueError: the provider is away"
    assert place.endswith(" in caught")
    assert "test_client_retry.py:" in place


def test_a_long_text_leaves_room_for_the_place_and_an_error_without_a_place_has_none():
    found = cause_of(caught(RuntimeError("x" * 5000)))
    assert len(found) <= MAX_CAUSE_CHARACTERS
    assert "…\n" in found
    assert found.endswith(" in caught")
    assert cause_of(KeyError("k")) == "KeyError: 'k'"


# --- what a handler gets ----------------------------------------------------------------------------------------------


def original(payload=b"hello", offset=4096, **attributes):
    flag, attribute = encode_attributes(**attributes)
    return Message(HERE, offset, 1 << 60, flag, encode_body(payload, flag, attribute))


def waiting(message, attempts=1, topic="%RETRY%g", offset=77):
    failure = Failure(message.origin, attempts, "ValueError: no", 5)
    flag, body = encode_failed(message.flag, message.body, failure, 10)
    return Message(TopicPartition(topic, 0, 0), offset, 2 << 60, flag, body)


def test_a_handler_gets_the_original_with_the_number_of_the_attempt():
    message = original(attribute="a", tag="buy", keys=["order-7"])
    copy = waiting(message, attempts=3)
    found = as_original(copy)
    assert tuple(found) == tuple(message)
    assert (found.topic, found.attributes, found.timestamp) == ("orders", message.attributes, message.timestamp)
    assert (found.attempts, found.origin) == (4, Origin(HERE, 4096, 1 << 60))
    assert isinstance(found, RetriedMessage)
    assert found.copy is copy
    assert pickle.loads(pickle.dumps(found)).attempts == 4


def test_any_other_message_is_its_own_origin_and_handled_for_the_first_time():
    message = original()
    assert as_original(message) is message
    assert (message.attempts, message.origin) == (1, Origin(HERE, 4096, 1 << 60))
    stray = Message(TopicPartition("%RETRY%g", 0, 0), 0, 1, 0, b"sent there by hand")
    assert as_original(stray) is stray
    dead = waiting(original(), attempts=16, topic="%DEAD%g")  # one that is read says where it came from
    assert (dead.attempts, dead.origin.topic, dead.topic) == (16, "orders", "%DEAD%g")


def test_damaged_properties_leave_a_message_as_it_is(caplog):
    copy = waiting(original())
    broken = copy._replace(body=copy.body.replace(b"orders/1-2", b"orders:1-2"))
    assert as_original(broken) is broken
    assert "metaq.origin" in caplog.text


def test_a_retried_message_of_a_consumer_with_a_deserializer_has_its_value():
    read = ValueMessage.of(original(b'{"a": 1}'), deserializers("deserializer", Json()))
    assert as_original(read, 1).value == {"a": 1}
    copy = ValueMessage.of(waiting(read, attempts=2), read._reader)
    assert (as_original(copy).value, as_original(copy).attempts) == ({"a": 1}, 3)
    with pytest.raises(ClientError, match="no deserializer"):
        as_original(Message(*read), 1).value  # noqa: B018


# --- where it goes ----------------------------------------------------------------------------------------------------


class MemorySender:
    """A producer that notes what it is to send. brokers: that publish every topic. errors: of the first sends."""

    def __init__(self, *brokers, errors=()):
        self.brokers, self.errors, self.sent, self.closed = brokers, list(errors), [], False

    def partitions(self, topic):
        return tuple(TopicPartition(topic, broker, 0) for broker in self.brokers)

    def send_batch_async(self, topic, payloads, *, partition):
        future: Future[list[str]] = Future()
        if self.errors:
            future.set_exception(self.errors.pop(0))
            return future
        (message,) = payloads
        self.sent.append((topic, partition.broker, failure_of(message.flag, message.body), message))
        future.set_result(["stored"])
        return future

    def close(self, timeout=10.0):
        self.closed = True


def failed_messages(sender, takes=lambda broker: True, now=lambda: 1000.0):
    return FailedMessages(Retry(attempts=3, jitter=0), "g", lambda: sender, takes, now=now, random=lambda: 0.5)


def test_a_failed_message_waits_and_after_the_last_attempt_it_is_dead():
    sender = MemorySender(1)
    failed = failed_messages(sender)
    for attempts in (1, 2, 3):
        failure = failed.failure(original(), KeyError("k"), attempts)
        assert failed.is_last(failure) == (attempts == 3)
        assert failed.send(original(), failure).partition.broker == 1
    assert [topic for topic, *_ in sender.sent] == ["%RETRY%g", "%RETRY%g", "%DEAD%g"]
    assert [failure.attempts for _, _, failure, _ in sender.sent] == [1, 2, 3]
    assert sender.sent[0][2] == Failure(Origin(HERE, 4096, 1 << 60), 1, "KeyError: 'k'", 1_000_000)
    delays = [message.body.partition(b"metaq.delay\x01")[2].partition(b"\x02")[0] for *_, message in sender.sent]
    assert delays == [b"1000", b"2000", b""]


def test_it_waits_at_the_broker_that_it_came_from_while_that_can_be_sent_to():
    failed = failed_messages(MemorySender(0, 1, 2))
    failure = failed.failure(original(), KeyError(), 1)
    assert {failed.send(original(), failure).partition.broker for _ in range(20)} == {1}
    assert failed.send(original(), failure, (1,)).partition.broker != 1
    alone = failed_messages(MemorySender(1))
    assert alone.send(original(), failure, (1,)).partition.broker == 1


def test_other_brokers_are_tried_by_chance_and_avoided_ones_last():
    partitions = [TopicPartition("%RETRY%g", broker, 0) for broker in (0, 1, 2, 3)]

    def brokers(avoided, *chances):
        return [each.broker for each in by_preference(partitions, 1, avoided, iter(chances).__next__)]

    assert brokers((), 0.3, 0.9, 0.2, 0.1) == [1, 3, 2, 0]
    assert brokers((), 0.1, 0.9, 0.2, 0.3) == [1, 0, 2, 3]
    assert brokers((1, 3), 0.2, 0.9, 0.1, 0.0) == [2, 0, 1, 3]


def test_a_broker_that_keeps_no_delayed_messages_is_not_sent_any():
    asked = []

    def takes(broker):
        asked.append(broker)
        return broker == 2

    failed = failed_messages(MemorySender(1, 2), takes)
    failure = failed.failure(original(), KeyError(), 1)
    assert [failed.send(original(), failure).partition.broker for _ in range(3)] == [2, 2, 2]
    assert asked == [1, 2, 1, 1]  # one that could not be asked may be back
    with pytest.raises(BrokerUnavailable, match="%RETRY%g"):
        failed_messages(MemorySender(1), takes).send(original(), failure)


def test_the_sender_is_made_at_the_first_failure_and_closed_with_the_run():
    made = []

    def make():
        made.append(MemorySender(1))
        return made[-1]

    failed = FailedMessages(Retry(), "g", make, lambda broker: True)
    failed.close(1.0)
    assert made == []
    failed.send(original(), failed.failure(original(), KeyError(), 1))
    failed.close(1.0)
    assert [sender.closed for sender in made] == [True]


# --- run() of a shared consumer ---------------------------------------------------------------------------------------


class Consumer:
    """What a run does to its messages, but for acknowledging them."""

    group = "g"

    def __init__(self):
        self.done: list[tuple[str, int]] = []

    def release(self, message, *, delay=0.0):
        self.done.append(("release", message.offset))


def leased(attempts, offset=0):
    message = SharedMessage(HERE, offset, 1, 0, b"poison")
    message.leased_from, message.leased_at, message.attempts = HERE, offset, attempts
    return message


def fail(message):
    raise ValueError("it cannot be read")


def running(*errors):
    """A run, its consumer, and what it has sent; its first sends end with these errors."""
    now = iter(range(1, 100_000))
    sender, consumer = MemorySender(0, errors=errors), Consumer()
    checked: Any = consumer
    return _Run(checked, fail, True, failed_messages(sender, now=lambda: float(next(now)))), consumer, sender.sent


def test_a_dead_letter_that_no_broker_took_at_first_tells_later_why_the_handler_failed(caplog):
    run, consumer, sent = running(AWAY, AWAY)
    assert [run._handle(leased(attempts)) for attempts in (3, 4, 5)] == [False, False, True]  # each lease counts one
    assert consumer.done == [("release", 0), ("release", 0)]
    ((topic, _, failure, _),) = sent
    assert (topic, failure.attempts, failure.failed_ms) == ("%DEAD%g", 3, 1000)
    assert failure.cause.startswith("ValueError: it cannot be read\n")
    assert "in fail" in failure.cause
    first, second, last = caplog.records
    assert "no broker has taken a dead letter (it is away) with the cause: ValueError: it cannot" in first.getMessage()
    assert first.exc_info[0] is ValueError
    assert "(it is away) with the cause: ValueError: it cannot be read" in second.getMessage()
    assert "is a dead letter after 3 attempts: ValueError: it cannot be read" in last.getMessage()
    assert not run._unburied


def test_one_whose_last_attempt_was_another_members_says_what_is_known():
    run, consumer, sent = running()
    assert run._handle(leased(4))
    ((_, _, failure, _),) = sent
    assert "let their leases run out" in failure.cause
    assert "found no broker for the dead letter" in failure.cause
    assert (failure.attempts, consumer.done) == (3, [])


def test_only_so_many_are_remembered(monkeypatch):
    monkeypatch.setattr(tuning, "UNBURIED", 2)
    run, _, sent = running(AWAY, AWAY, AWAY)
    for attempts in (3, 4):
        for offset in (0, 100, 200):
            run._handle(leased(attempts, offset))
    forgotten, *known = (failure.cause for _, _, failure, _ in sent)
    assert "let their leases run out" in forgotten
    assert [cause.partition("\n")[0] for cause in known] == ["ValueError: it cannot be read"] * 2


@pytest.mark.parametrize("attempts", [1, 2])
def test_before_the_last_attempt_it_comes_again_without_a_letter(attempts, caplog):
    run, consumer, sent = running()
    run._handle(leased(attempts))
    assert (consumer.done, sent) == ([("release", 0)], [])
    assert "the handler failed on orders 1-2 @0" in caplog.text
