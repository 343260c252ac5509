"""Outcomes of transactions that gather while one request is under way."""

import threading
import time

import pytest

from metaq.client.producer import ending_core, ending_halves
from metaq.client.producer.ending_halves import Ender, Telling
from metaq.client.records.results import TopicPartition
from metaq.client.runtime.waiting import Exchange
from metaq.protocol.errors import BrokerUnavailable, ClientError, NotLeader, RequestRefused, RequestTimedOut
from metaq.protocol.half_messages import EndHalfReply, HalfOutcome
from metaq.protocol.statuses import ResponseCode
from tests.waiting import eventually

COMMIT = HalfOutcome.COMMITTED
PLACE = TopicPartition("t", 0, 0)
SECONDS = 10.0


class Broker:
    """A connection, and what it leads to: keeps each request until it is answered."""

    endpoint = "b:1"
    closed = False

    def __init__(self) -> None:
        self.requests: list[tuple[Exchange, list[int]]] = []
        self.refuses: BaseException | None = None
        self.asked: list[list[int]] = []

    def new_opaque(self) -> int:
        return len(self.asked)

    def send(self, exchanges, buffers) -> None:
        if (error := self.refuses) is not None:
            self.refuses = None
            raise error
        (exchange,) = exchanges
        exchange.taken = True
        self.asked.append(list(buffers))
        self.requests.append((exchange, list(buffers)))

    def drive(self, telling, deadline) -> None:
        telling.park_until_done(deadline, time.monotonic)

    def answer(self, error=None) -> None:
        """The oldest request: each id, tenfold, is that of its message."""
        exchange, ids = self.requests.pop(0)
        exchange.on_done(None if error else ids, error)  # type: ignore[arg-type]  # what the patched reader takes


@pytest.fixture
def broker(monkeypatch):
    """Requests are the ids that they tell."""
    for name, double in (
        ("ends_request", lambda opaque, partition, outcomes: [each for each, _ in outcomes]),
        ("read_ended", lambda ids, *_: [EndHalfReply(COMMIT, half_id * 10, 0) for half_id in ids]),
    ):
        monkeypatch.setattr(ending_halves, name, double)
    return Broker()


@pytest.fixture
def ender(broker):
    ender = Ender(lambda *_: broker, lambda _: 0.01, SECONDS, time.monotonic)
    yield ender
    ender.close()


class Told(Telling):
    blocks = False

    def __init__(self):
        super().__init__()
        self.times = 0

    def told(self, together):
        for each in together:
            each.times += 1


def telling(half_id, seconds=SECONDS, place=PLACE, kind=Told):
    made = kind()
    made.partition, made.half_id, made.outcome = place, half_id, COMMIT
    made.deadline = time.monotonic() + seconds
    return made


def begun(ender, *ids, **options):
    """Each of them as its local work ends."""
    found = [telling(half_id, **options) for half_id in ids]
    for each in found:
        elsewhere(lambda each=each: ender.gather(each))
        elsewhere(ender.hurry)
    return found


def elsewhere(action):
    """Where no interrupt comes."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(SECONDS)


def answer(broker, error=None):
    elsewhere(lambda: broker.answer(error))


class Thread:
    """One that waits for what became of a half message."""

    def __init__(self, ender, half_id, **options):
        self.outcome: object = None
        self.telling = telling(half_id, kind=Telling, **options)
        self.thread = threading.Thread(target=self.run, args=(ender,))
        self.thread.start()

    def run(self, ender):
        try:
            self.outcome = ender.tell(self.telling).message_id
        except BaseException as error:
            self.outcome = type(error)

    def join(self):
        self.thread.join(SECONDS)
        return self.outcome


def results(tellings):
    """The message, or the kind of error, of each, told once."""
    assert [each.times for each in tellings] == [1] * len(tellings)
    return [each.reply.message_id if each.reply else type(each.error) for each in tellings]


def test_outcomes_of_work_that_is_done_together_go_after_a_moment(broker, ender):
    told = [telling(half_id) for half_id in (1, 2, 3)]
    elsewhere(lambda: [ender.gather(each) for each in told])
    eventually(lambda: broker.requests)  # nobody has called `hurry`
    while broker.requests:
        answer(broker)
    assert results(told) == [10, 20, 30]


def test_one_at_a_time_is_sent_by_itself(broker, ender):
    for half_id in (1, 2):
        told = begun(ender, half_id)
        answer(broker)
        assert results(told) == [half_id * 10]
    assert broker.asked == [[1], [2]]


def test_what_comes_while_a_request_is_under_way_goes_together_in_the_next_one(broker, ender):
    told = begun(ender, 1, 2, 3, 4)
    answer(broker)
    answer(broker)
    assert results(told) == [10, 20, 30, 40]
    assert broker.asked == [[1], [2, 3, 4]]


def test_threads_that_wait_go_with_the_others(broker, ender):
    told = begun(ender, 1)
    threads = [Thread(ender, half_id) for half_id in (2, 3)]
    eventually(lambda: len(ender._core._place(PLACE).gathered) == 2)
    answer(broker)
    answer(broker)
    assert {each.join() for each in threads} == {20, 30}
    assert results(told) == [10]
    assert len(broker.asked) == 2


def test_a_request_has_no_more_than_its_limit(broker, ender, monkeypatch):
    monkeypatch.setattr(ending_core, "MAX_ENDED_HALVES", 2)
    told = begun(ender, 1, 2, 3, 4)
    for _ in range(3):
        answer(broker)
    assert results(told) == [10, 20, 30, 40]
    assert broker.asked == [[1], [2, 3], [4]]


def test_other_partitions_do_not_wait(broker, ender):
    begun(ender, 1)
    begun(ender, 2, place=TopicPartition("t", 0, 1))
    assert broker.asked == [[1], [2]]


def test_a_refusal_is_told_to_all_of_its_request_and_the_others_go_on(broker, ender, monkeypatch):
    monkeypatch.setattr(ending_core, "MAX_ENDED_HALVES", 2)
    told = begun(ender, 1, 2, 3, 4)
    answer(broker)
    answer(broker, RequestRefused(ResponseCode.NO_PERMISSION, "no"))
    eventually(lambda: broker.requests)
    answer(broker)
    assert results(told) == [10, RequestRefused, RequestRefused, 40]


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), NotLeader(0, "")])
def test_what_has_failed_goes_again_in_front_of_the_others(broker, ender, error):
    told = begun(ender, 1, 2)
    answer(broker, error)
    told += begun(ender, 3)
    eventually(lambda: len(broker.asked) == 2)
    answer(broker)
    assert broker.asked == [[1], [1, 2, 3]]
    assert results(told) == [10, 20, 30]


def test_who_waits_too_long_hears_why_and_is_not_sent_again(broker, ender):
    told = begun(ender, 1, 2, seconds=0.1)
    thread = Thread(ender, 3, seconds=0.1)
    assert thread.join() is RequestTimedOut
    eventually(lambda: all(each.done for each in told))
    assert results(told) == [RequestTimedOut, RequestTimedOut]
    answer(broker)
    assert broker.asked == [[1]]
    assert results(told) == [10, RequestTimedOut]  # too late for whoever was told


def test_one_whose_time_is_over_when_its_request_fails_ends_with_the_reason(broker, ender):
    told = begun(ender, 1, seconds=0.05)
    answer(broker, BrokerUnavailable("gone"))
    assert results(told) == [BrokerUnavailable]


def test_interrupted_sending_is_done_elsewhere(broker, ender):
    broker.refuses = KeyboardInterrupt()
    thread = Thread(ender, 1)
    assert thread.join() is KeyboardInterrupt
    eventually(lambda: broker.asked == [[1]])
    told = begun(ender, 2)
    answer(broker)
    answer(broker)
    assert results(told) == [20]


def test_answer_that_is_told_twice_after_an_interrupt_is_taken_once(broker, ender):
    told = begun(ender, 1, 2)
    exchange, _ = broker.requests[0]
    answer(broker)
    elsewhere(lambda: exchange.on_done(None, BrokerUnavailable("taking an answer was interrupted")))
    answer(broker)
    assert broker.asked == [[1], [2]]
    assert results(told) == [10, 20]


def test_answer_that_concerns_others_is_taken_where_no_interrupt_comes(broker, ender):
    told = begun(ender, 1, 2)
    broker.answer()  # on the main thread
    eventually(lambda: len(broker.asked) == 2)
    answer(broker)
    assert results(told) == [10, 20]


def test_closing_ends_what_is_under_way_and_what_comes_later(broker, ender):
    told = begun(ender, 1, 2)
    thread = Thread(ender, 3)
    eventually(lambda: len(ender._core._place(PLACE).gathered) == 2)
    ender.close()
    assert results(told) == [ClientError, ClientError]
    assert thread.join() is ClientError
    assert results(begun(ender, 4)) == [ClientError]
    assert Thread(ender, 5).join() is ClientError
    answer(broker)
    assert [each.times for each in told] == [1, 1]
