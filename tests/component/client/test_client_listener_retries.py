"""run(retry=…): what a handler fails on goes back to the broker or to the dead letters, and its partition goes on."""

import threading
from concurrent.futures import Future

import pytest

from metaq import Message, Retry, RetryLater, TopicPartition
from metaq.client.consumer.retrying import FailedMessages, giving_back
from metaq.protocol.errors import BrokerUnavailable, RequestTimedOut
from metaq.protocol.retries import Failure, encode_failed, failure_of
from tests.component.client.test_client_listener import Handler, Running, is_consumed
from tests.waiting import eventually

TOPICS = {"t": 1, "%RETRY%g": 1}


def failed(message):
    failure = failure_of(message.flag, message.body)
    assert failure is not None
    return failure


class Sender:
    """Notes what is sent. answers: what each send ends with, in order; None: it stays under way. Then: stored."""

    def __init__(self, *answers):
        self.answers, self.sent, self.futures = list(answers), [], []

    def partitions(self, topic):
        return (TopicPartition(topic, 0, 0),)

    def send_batch_async(self, topic, payloads, *, partition):
        (message,) = payloads
        self.sent.append((topic, message))
        answer = self.answers.pop(0) if self.answers else "stored"
        if isinstance(answer, Exception) and not isinstance(answer, RequestTimedOut):
            raise answer
        future: Future[list[str]] = Future()
        if isinstance(answer, RequestTimedOut):
            future.set_exception(answer)
        elif answer is not None:
            future.set_result([answer])
        self.futures.append(future)
        return future

    def close(self, timeout=10.0):
        pass

    @property
    def failures(self):
        return [(topic, failed(each).attempts) for topic, each in self.sent]


def failed_messages(sender, retry=None):
    return FailedMessages(retry or Retry(attempts=3, jitter=0), "g", lambda: sender, lambda _: True)


def running(broker, handler, sender, retry=None, **arguments):
    return Running(broker, handler, failed=failed_messages(sender, retry), **arguments)


def test_a_failed_message_is_sent_back_and_those_behind_it_are_processed_at_once(broker):
    broker.append("t", 0, b"1", b"bad", b"2")
    handler, sender = Handler({b"bad": 9}), Sender()
    with running(broker, handler, sender) as listening:
        eventually(lambda: handler.processed == [b"1", b"2"])
        eventually(lambda: is_consumed(listening))
    assert handler.seen == [b"1", b"bad", b"2"]
    assert sender.failures == [("%RETRY%g", 1)]
    ((_, sent),) = sender.sent
    failure = failed(sent)
    assert (failure.origin.topic, failure.origin.offset) == ("t", broker.log("t", 0).starts[1])
    assert failure.cause.startswith("ValueError: cannot take b'bad'\n")


def test_what_has_waited_comes_as_the_original_and_is_dead_after_its_last_attempt(broker):
    seen: list[object] = []
    sender = Sender()
    first = Message(TopicPartition("t", 0, 0), 5, 1 << 60, 0, b"twice")
    flag, body = encode_failed(first.flag, first.body, Failure(first.origin, 2, "ValueError", 5))

    def handler(messages):
        seen.extend((each.topic, each.offset, each.payload, each.attempts) for each in messages)
        raise RetryLater

    broker.append("%RETRY%g", 0, body, flag=flag)
    with running(broker, handler, sender) as listening:
        (cursor,) = (each for each in listening.cursors if each.partition.topic == "%RETRY%g")
        eventually(lambda: cursor.consumed and cursor.consumed[0] == broker.log("%RETRY%g", 0).end)
    assert (seen, sender.failures) == ([("t", 5, b"twice", 3)], [("%DEAD%g", 3)])


@pytest.mark.parametrize("refusal", [BrokerUnavailable("it is away"), RequestTimedOut("no answer")])
def test_while_it_cannot_be_sent_back_its_partition_waits_and_the_log_says_so_once(broker, refusal, caplog):
    broker.append("t", 0, b"bad", b"2")
    handler, sender = Handler({b"bad": 9}), Sender(*[refusal] * 4)
    sent_before_2: list[int] = []

    def handle(messages):
        if messages[0].payload == b"2":
            sent_before_2.append(len(sender.sent))
        handler(messages)

    with running(broker, handle, sender):
        eventually(lambda: handler.processed == [b"2"])
    assert sent_before_2 == [5]
    assert handler.seen == [b"bad", b"2"]  # it is sent anew, not handled anew
    assert sender.failures == [("%RETRY%g", 1)] * 5
    assert caplog.text.count("waits with its partition") == 1
    assert f"{refusal}; its handler failed with ValueError: cannot take b'bad'" in caplog.text
    assert {failed(each).cause.splitlines()[0] for _, each in sender.sent} == {"ValueError: cannot take b'bad'"}


def test_a_message_whose_sending_takes_long_holds_up_its_own_partition_only(broker):
    broker.append("t", 0, b"bad", b"behind")
    handler, sender = Handler({b"bad": 1}), Sender(None)
    with running(broker, handler, sender) as listening:
        eventually(lambda: sender.futures)
        broker.append("%RETRY%g", 0, b"other partition")  # one thread handles both
        eventually(lambda: handler.processed == [b"other partition"])
        assert listening.cursors[0].consumed is None or listening.cursors[0].consumed[0] == 0
        sender.futures[0].set_result(["stored"])
        eventually(lambda: handler.processed == [b"other partition", b"behind"])


def test_of_a_failed_batch_only_what_fails_by_itself_is_sent_back(broker):
    broker.append("t", 0, b"1", b"bad", b"2", b"3")
    handler, sender = Handler({b"bad": 2}), Sender()
    with running(broker, handler, sender, batch=10):
        eventually(lambda: handler.processed[-1:] == [b"3"])
    assert handler.processed == [b"1", b"2", b"3"]
    assert sender.failures == [("%RETRY%g", 1)]


def test_in_order_the_partition_waits_and_goes_on_behind_the_dead_letter(broker):
    broker.append("t", 0, b"bad", b"2", b"late", b"3")
    handler, sender = Handler({b"bad": 9, b"late": 2}), Sender()
    attempts: list[int] = []
    retry = Retry(attempts=3, first=0.001, most=0.001, ordered=True)

    def handle(messages):
        attempts.extend(each.attempts for each in messages)
        handler(messages)

    with running(broker, handle, sender, retry):
        eventually(lambda: handler.processed == [b"2", b"late", b"3"])
    assert attempts == [1, 2, 3, 1, 1, 2, 3, 1]
    assert handler.seen == [b"bad"] * 3 + [b"2"] + [b"late"] * 3 + [b"3"]
    assert sender.failures == [("%DEAD%g", 3)]


def test_a_filter_that_raises_counts_as_a_failure_and_is_asked_again_at_the_next_attempt(broker):
    broker.append("t", 0, b"1")
    handler, sender = Handler(), Sender()

    def accept(message):
        if message.attempts == 1:
            raise LookupError("no such row")
        return True

    with running(broker, handler, sender, accept=accept):
        eventually(lambda: sender.sent)
        ((_, sent),) = sender.sent
        broker.append("%RETRY%g", 0, sent.body, flag=sent.flag)
        eventually(lambda: handler.processed == [b"1"])


def test_until_it_is_known_where_failed_messages_go_they_are_tried_in_place_and_then_they_go_there(broker):
    """Tries until then are no attempts: brokers may be away for long."""
    broker.append("t", 0, b"bad", b"behind")
    sender, handler, known = Sender(), Handler({b"bad": 1_000_000}), threading.Event()

    def choose(handling):
        return handling._replace(failed=failed_messages(sender)) if known.is_set() else None

    with Running(broker, handler, max_retries=0, choose=choose) as begun:
        eventually(lambda: handler.seen.count(b"bad") >= 9, what="tries in place")
        assert (sender.sent, begun.rejected) == ([], [])
        known.set()
        eventually(lambda: b"behind" in handler.seen, what="the one behind")
    assert sender.failures == [("%RETRY%g", 1)]


def test_a_message_of_a_local_store_on_which_the_handler_fails_goes_to_the_broker():
    sender, kept = Sender("stored", BrokerUnavailable("away")), Message(TopicPartition("t", 0, 3), 7, 8, 0, b"kept")
    delivered = []

    def deliver(messages):
        delivered.extend(messages)
        if len(delivered) > 1:
            raise ValueError("cannot take it")

    handle = giving_back(deliver, failed_messages(sender))
    handle([kept])
    assert not sender.sent
    handle([kept])
    ((topic, message),) = sender.sent
    assert (topic, failed(message).attempts, failed(message).origin.offset) == ("%RETRY%g", 1, 7)
    with pytest.raises(BrokerUnavailable):
        handle([kept])  # so it stays in its store
