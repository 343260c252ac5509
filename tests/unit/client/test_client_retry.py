"""Attempts, pauses and causes; what a handler gets of a message that has waited; which broker it waits at."""

import pickle
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import Message, Retry, TopicPartition
from metaq.client.consumer.retrying import FailedMessages, cause_of
from metaq.client.message import RetriedMessage, ValueMessage, as_original
from metaq.client.serializers import deserializers
from metaq.protocol.errors import BrokerUnavailable, ClientError, ConfigError
from metaq.protocol.record import encode_attributes, encode_body
from metaq.protocol.retries import MAX_CAUSE_CHARACTERS, Failure, Origin, encode_failed, failure_of
from metaq.serializers import Json

HERE = TopicPartition("orders", 1, 2)


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
    assert sum(Retry(jitter=0).pause(failures, float) for failures in range(1, Retry().attempts)) / 3600 == (
        pytest.approx(6.3, abs=0.05)
    )


# --- causes -----------------------------------------------------------------------------------------------------------


def failing():
    raise ValueError("the provider\nis away")


def test_a_cause_names_type_text_and_place():
    with pytest.raises(ValueError, match="away") as found:
        failing()
    text, place = cause_of(found.value).split("\n")
    assert text == "ValueError: the provider is away"
    assert place.endswith(" in failing")
    assert "test_client_retry.py:" in place


def test_a_long_text_leaves_room_for_the_place_and_an_error_without_a_place_has_none():
    try:
        raise RuntimeError("x" * 5000)
    except RuntimeError as error:
        found = cause_of(error)
    assert len(found) <= MAX_CAUSE_CHARACTERS
    assert "…\n" in found
    assert found.endswith(" in test_a_long_text_leaves_room_for_the_place_and_an_error_without_a_place_has_none")
    assert cause_of(KeyError("k")) == "KeyError: 'k'"


# --- what a handler gets ----------------------------------------------------------------------------------------------


def original(payload=b"hello", offset=4096, **attributes):
    flag, attribute = encode_attributes(**attributes)
    return Message(HERE, offset, 1 << 60, flag, encode_body(payload, flag, attribute))


def waiting(message, attempts=1, topic="%RETRY%g", offset=77):
    failure = Failure(message.origin, attempts, "ValueError: no", 5)
    return Message(
        TopicPartition(topic, 0, 0), offset, 2 << 60, *encode_failed(message.flag, message.body, failure, 10)
    )


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


def test_a_dead_letter_that_is_read_says_where_it_came_from():
    dead = waiting(original(), attempts=16, topic="%DEAD%g")
    assert (dead.attempts, dead.origin.topic, dead.topic) == (16, "orders", "%DEAD%g")


def test_damaged_properties_leave_a_message_as_it_is(caplog):
    copy = waiting(original())
    broken = copy._replace(body=copy.body.replace(b"orders/1-2", b"orders:1-2"))
    assert as_original(broken) is broken
    assert "metaq.origin" in caplog.text


# --- where it goes ----------------------------------------------------------------------------------------------------


class MemorySender:
    """A producer that notes what it is to send. brokers: that publish every topic."""

    def __init__(self, *brokers):
        self.brokers, self.sent, self.closed = brokers, [], False

    def partitions(self, topic):
        return tuple(TopicPartition(topic, broker, 0) for broker in self.brokers)

    def send_batch_async(self, topic, payloads, *, partition):
        (message,) = payloads
        self.sent.append((topic, partition.broker, failure_of(message.flag, message.body), message))
        return Future()

    def close(self, timeout=10.0):
        self.closed = True


def failed_messages(sender, takes=lambda broker: True):
    retry = Retry(attempts=3, jitter=0)
    return FailedMessages(retry, "g", lambda: sender, takes, now=lambda: 1000.0, random=lambda: 0.5)


def test_a_failed_message_waits_and_after_the_last_attempt_it_is_dead():
    sender = MemorySender(1)
    failed = failed_messages(sender)
    for attempts in (1, 2, 3):
        failure = failed.failure(original(), KeyError("k"), attempts)
        assert failed.is_last(failure) == (attempts == 3)
        assert failed.send(original(), failure).partition.broker == 1
    topics = [topic for topic, *_ in sender.sent]
    assert topics == ["%RETRY%g", "%RETRY%g", "%DEAD%g"]
    assert [failure.attempts for _, _, failure, _ in sender.sent] == [1, 2, 3]
    assert sender.sent[0][2] == Failure(Origin(HERE, 4096, 1 << 60), 1, "KeyError: 'k'", 1_000_000)
    delays = [message.body.partition(b"metaq.delay\x01")[2].partition(b"\x02")[0] for *_, message in sender.sent]
    assert delays == [b"1000", b"2000", b""]


def test_it_waits_at_the_broker_that_it_came_from_while_that_can_be_sent_to():
    sender = MemorySender(0, 1, 2)
    failed = failed_messages(sender)
    failure = failed.failure(original(), KeyError(), 1)
    assert {failed.send(original(), failure).partition.broker for _ in range(20)} == {1}
    assert {failed.send(original(), failure, (1,)).partition.broker for _ in range(50)} == {0, 2}
    alone = failed_messages(MemorySender(1))
    assert alone.send(original(), failure, (1,)).partition.broker == 1


def test_a_broker_that_keeps_no_delayed_messages_is_not_sent_any():
    asked = []

    def takes(broker):
        asked.append(broker)
        return broker == 2

    failed = failed_messages(MemorySender(1, 2), takes=takes)
    failure = failed.failure(original(), KeyError(), 1)
    assert [failed.send(original(), failure).partition.broker for _ in range(3)] == [2, 2, 2]
    assert asked == [1, 2, 1, 1]  # one that could not be asked may be back
    with pytest.raises(BrokerUnavailable, match="%RETRY%g"):
        failed_messages(MemorySender(1), takes=takes).send(original(), failure)


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


def test_a_retried_message_of_a_consumer_with_a_deserializer_has_its_value():
    read = ValueMessage.of(
        Message(TopicPartition("t", 0, 0), 5, 1 << 60, 0, b'{"a": 1}'), deserializers("deserializer", Json())
    )
    assert as_original(read, 1).value == {"a": 1}
    flag, body = encode_failed(read.flag, read.body, Failure(read.origin, 2, "ValueError", 5))
    copy = ValueMessage.of(Message(TopicPartition("%RETRY%g", 0, 0), 9, 1 << 60, flag, body), read._reader)
    assert (as_original(copy).value, as_original(copy).attempts) == ({"a": 1}, 3)
    with pytest.raises(ClientError, match="no deserializer"):
        as_original(Message(*read), 1).value  # noqa: B018
