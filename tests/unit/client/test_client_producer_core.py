"""The producer's core: one request under way per partition, and what gathers meanwhile goes as the next."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import ProducerConfig, TopicPartition
from metaq.client.producer.building import build_batch
from metaq.client.producer.core import Actions, ProducerCore
from metaq.client.producer.futures import SendFuture
from metaq.client.producer.outgoing import ASKED, GatheredBatch, Outgoing
from metaq.client.producer.queues import BrokerQueue, Flight, PartitionQueue
from metaq.client.producer.routing import partition_for_key
from metaq.protocol import errors

HERE, THERE = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)


def message(body=b"x", deadline=100.0, key=None, future=False):
    outgoing = Outgoing("t", 0, 0, body, deadline)
    outgoing.key = key
    outgoing.report = SendFuture().outcome.settle if future else None
    return outgoing


def many(count):
    return build_batch("t", [b"x"] * count, 100.0, {"partition": HERE})


REFUSED = errors.RequestRefused(500, "no")
UNREACHABLE = errors.BrokerUnavailable("the broker is away")


class Sent:
    """A core whose requests are only noted; the test answers them, and is the place where messages go."""

    avoids_any = False
    elsewhere = False  # whether another partition takes messages

    def __init__(self, **config):
        self.flights: list[Flight] = []
        self.ended: list[Outgoing] = []
        self.partitions: tuple[TopicPartition, ...] = (HERE, THERE)
        self.routes: dict[Outgoing, TopicPartition] = {}
        self.meanwhile: list[Outgoing] = []  # that arrive while messages are routed anew
        self.now = 0.0
        self.interrupts = False
        self.led = 0.0  # the pause after a refusal of a node that does not lead
        self.core = ProducerCore(
            ProducerConfig(**config),
            self,
            lambda: self.now,
            lambda: 0.5,
            interruptible=lambda: self.interrupts,
            follow=lambda error: self.led if isinstance(error, errors.NotLeader) else None,
        )

    def route(self, outgoing):
        meanwhile, self.meanwhile = self.meanwhile, []
        for each in meanwhile:
            self.add(each)
        return self.routes.get(outgoing, HERE)

    def partitions_for_keys(self, topic):
        return self.partitions

    def is_away(self, outgoing):
        return False

    def avoid(self, partition, error, seconds):
        return self.elsewhere

    def works(self, partition):
        pass

    def add(self, outgoing, partition=HERE):
        accepted = self.core.add(outgoing, partition)
        if accepted is None:
            raise self.core.no_room()
        queue, flights = accepted
        self.flights += flights
        return queue

    def send(self, *bodies, partition=HERE, **more):
        """A message of each body is added; the messages."""
        messages = [message(body, **more) for body in bodies]
        for each in messages:
            self.add(each, partition)
        return messages

    def do(self, actions):
        self.flights += actions.flights
        self.ended += [outgoing for outgoing, _ in actions.ended]
        if actions.ended:
            self.flights += self.core.forget(actions.ended)

    @property
    def batches(self):
        """What went to each partition, in the order it left."""
        return [(turn.queue, turn.batch) for flight in self.flights for turn in flight.turns]

    @property
    def went(self):
        return [(queue.partition, batch) for queue, batch in self.batches]

    def finish(self, number=-1):
        """The broker acknowledges a flight."""
        flight = self.flights[number]
        self.do(self.core.landed(flight, flight.turns))
        self.flights += self.core.release(flight, flight.turns)

    def fail(self, error=UNREACHABLE):
        """The last flight failed."""
        flight = self.flights[-1]
        self.do(self.core.landed(flight, (), [(turn, error) for turn in flight.turns]))

    def wake(self, at=None):
        """Whatever is due by now, or then."""
        self.now = self.now if at is None else at
        self.do(self.core.wake(self.now))

    def fail_and_wait(self):
        """It goes again after the pause; how long that was."""
        self.fail()
        pause = self.core.wake_at - self.now
        self.wake(self.core.wake_at)
        return pause


@pytest.fixture
def sent():
    return Sent()


def test_what_arrives_while_a_request_is_under_way_goes_together_as_the_next(sent):
    first, second, third = sent.send(b"1", b"2", b"3")
    assert sent.went == [(HERE, [first])]
    sent.finish()
    assert sent.went[1:] == [(HERE, [second, third])]
    sent.finish()
    assert (len(sent.went), sent.core.buffered_bytes) == (2, 0)


def test_a_message_for_one_partition_joins_none_that_may_go_elsewhere(sent):
    def send(body, fixed):
        where = ("t", HERE) if fixed else "t"
        if sent.core.join(where, 0, body, 100.0, ASKED) is None:
            gathered = GatheredBatch(where, "t", 0, body, 100.0, ASKED)
            gathered.fixed = HERE if fixed else None
            sent.routes[gathered] = HERE if fixed else THERE
            sent.add(gathered, HERE)

    for body, fixed in ((b"1", True), (b"2", True), (b"3", False), (b"4", False), (b"5", True), (b"6", False)):
        send(body, fixed)
    sent.finish()
    assert [each.bodies for each in sent.batches[-1][1]] == [[b"2"], [b"3", b"4"], [b"5"], [b"6"]]
    sent.fail()
    sent.wake()
    went = {partition: [body for each in batch for body in each.bodies] for partition, batch in sent.went[-2:]}
    assert went == {HERE: [b"2", b"5"], THERE: [b"3", b"4", b"6"]}


def test_a_single_answer_is_done_with_in_one_step_and_hands_out_what_has_gathered(sent):
    queue = sent.add(message())
    assert sent.core.landed_alone(sent.flights[0]) == ()
    assert (queue.busy, queue.broker.flights, sent.core.buffered_bytes) == (False, 0, 0)
    sent.add(message())
    second, third = message(future=True), message()
    sent.add(second)
    sent.add(third)
    first = sent.flights[-1]
    sent.interrupts = True
    assert sent.core.landed_alone(first) is None, "an interrupt might come between its steps"
    sent.interrupts = False
    assert queue.under_way == first.turns[0].batch
    (following,) = sent.core.landed_alone(first)
    assert following.turns == [(queue, [second, third])]
    assert (queue.busy, queue.broker.flights, sent.core.buffered_bytes) == (True, 1, second.size + third.size)
    sent.core.landed(following, following.turns)
    sent.core.release(following, following.turns)
    assert (queue.broker.flights, sent.core.buffered_bytes) == (0, 0)


def test_a_batch_ends_at_its_bytes_and_at_its_records():
    sent = Sent(max_batch_bytes=100, max_batch_records=3)
    _, *waiting = sent.send(b"x", b"x" * 30, b"x" * 30, b"", b"", b"", b"")
    for taken in (waiting[:2], waiting[2:5], waiting[5:]):  # the first have 50 + 50 bytes
        sent.finish()
        assert sent.went[-1] == (HERE, taken)


def test_a_window_of_messages_is_divided_so_that_sender_and_broker_work_at_once(sent):
    window = 256
    sent.send(*[b"x"] * window)
    sizes = []
    for _ in range(12):
        sent.finish()
        sent.send(*[b"x"] * len(sent.batches[-2][1]))  # the sender has as many under way as it may
        sizes.append(len(sent.batches[-1][1]))
    assert all(window // 2 - 1 <= size <= window // 2 + 1 for size in sizes[1:]), sizes
    while sent.core.buffered_bytes:
        sent.finish()
    assert sum(len(batch) for _, batch in sent.batches) == window + 1 + sum(sizes[:-1])


def test_batches_that_were_made_as_such_are_not_divided(sent):
    for _ in range(5):
        sent.add(many(100))
    sent.finish(0)
    assert [sum(each.count for each in batch) for _, batch in sent.batches] == [100, 400]


def test_a_batch_counts_as_one_of_the_messages_that_may_wait():
    sent = Sent(max_buffered_messages=3)
    for _ in range(3):
        sent.add(many(100))
    with pytest.raises(errors.RequestTimedOut, match="3 messages of"):
        sent.send(b"x")
    sent.finish(0)
    sent.send(b"x")


def test_few_messages_go_together_whatever_was_answered_last(sent):
    _, *waiting = sent.send(*[b"x"] * 65)
    sent.finish()
    assert sent.went[-1] == (HERE, waiting)


def taken_from(messages, takes, limit, **connection):
    queue = PartitionQueue(HERE, BrokerQueue())
    text_only: Any = SimpleNamespace(**connection)
    queue.broker.connection = text_only if connection else None
    for each in messages:
        queue.put(each)
    return [queue.take(limit, 10) for _ in range(takes)], queue.queued_bytes


def test_a_message_larger_than_a_batch_goes_alone():
    large, small = message(b"x" * 500), message()
    assert taken_from([large, small], 2, 100) == ([[large], [small]], 0)


def test_over_the_text_protocol_messages_with_a_key_go_one_by_one():
    plain, keyed, also_keyed = [message(), message()], message(key="k"), message(key="k")
    taken, _ = taken_from([*plain, keyed, also_keyed], 3, 1000, speaks_frames=False)
    assert taken == [plain, [keyed], [also_keyed]]


def test_a_failed_batch_goes_back_in_front_and_nothing_is_sent_until_the_pause_ends(sent):
    first, second = sent.send(b"1", b"2")
    sent.fail()
    (third,) = sent.send(b"3")
    assert len(sent.went) == 1
    assert sent.core.wake_at == sent.now  # the first time at once
    fourth = message()
    sent.meanwhile = [fourth]  # arrives while the three are routed anew
    sent.wake()
    assert sent.went[1:] == [(HERE, [first, second, third, fourth])]


@pytest.mark.parametrize(
    ("key", "elsewhere", "ends"), [(None, True, False), (None, False, True), ("k", True, True), ("k", False, True)]
)
def test_a_connection_that_settings_forbid_ends_a_message_at_once_unless_it_can_go_elsewhere(
    sent, key, elsewhere, ends
):
    """A message with a key belongs to its partition, so it cannot."""
    sent.elsewhere = elsewhere
    (outgoing,) = sent.send(b"1", key=key)
    sent.routes[outgoing] = THERE
    sent.fail(errors.CannotConnect("tls.ca=wrong.pem: name the file with the CA"))
    assert sent.ended == [outgoing] * ends
    sent.wake()
    assert [partition for partition, _ in sent.went] == [HERE, *[THERE] * (not ends)]


def test_given_up_messages_free_their_room(sent):
    first = sent.send(b"x" * 80)
    assert sent.core.buffered_bytes == 100
    sent.fail(REFUSED)
    assert (sent.ended, sent.core.buffered_bytes) == (first, 0)


def test_pauses_between_tries_grow_and_a_change_of_the_cluster_ends_them():
    sent = Sent(retry_min_seconds=1.0, retry_max_seconds=8.0)
    sent.send(b"x")
    first, *pauses = (sent.fail_and_wait() for _ in range(4))
    assert (first, pauses) == (0.0, sorted(pauses))
    assert pauses[0] < pauses[-1]
    sent.fail()
    before = len(sent.flights)
    sent.do(sent.core.view_changed({"other"}))
    assert len(sent.flights) == before
    sent.do(sent.core.view_changed({"t"}))
    assert len(sent.flights) == before + 1


def test_a_message_that_may_go_elsewhere_does_not_wait_for_a_partition_that_has_failed_often():
    sent = Sent(retry_min_seconds=1.0, retry_max_seconds=8.0)
    stays, moves = message(), message()
    stays.fixed = HERE
    sent.add(stays)
    for _ in range(3):
        sent.fail_and_wait()
    sent.elsewhere = True
    sent.add(moves)
    assert sent.fail_and_wait() > 0, "nothing that could move has failed"
    sent.fail()
    sent.routes[moves] = THERE
    assert sent.core.wake_at == sent.now
    sent.wake()
    assert sorted(sent.went[-2:]) == [(HERE, [stays]), (THERE, [moves])]


def test_what_has_no_time_left_for_another_try_ends_with_the_reason(sent):
    (first,) = sent.send(b"x", deadline=1.0)
    sent.now = 2.0
    flight = sent.flights[-1]
    actions = sent.core.landed(flight, (), [(turn, UNREACHABLE) for turn in flight.turns])
    ((ended, error),) = actions.ended
    assert ended is first
    assert isinstance(error, errors.RequestTimedOut)
    assert sent.core.buffered_bytes == 21, "it counts until it was told"
    sent.do(actions)
    assert sent.core.is_empty()


def test_a_full_buffer_refuses_at_the_deadline_and_says_why():
    sent = Sent(max_buffered_bytes=150)
    sent.send(b"x" * 80)
    sent.now = 100.0
    with pytest.raises(errors.RequestTimedOut, match="max_buffered_bytes=150"):
        sent.send(b"x" * 80, deadline=100.0)
    assert sent.core.buffered_bytes == 100


def test_one_message_larger_than_the_buffer_is_taken_when_it_is_empty():
    sent = Sent(max_buffered_bytes=50)
    sent.send(b"x" * 80)
    assert len(sent.went) == 1


# --- lingering --------------------------------------------------------------------------------------------------------


def test_an_asynchronous_message_lingers_and_takes_company_along():
    sent = Sent(linger_ms=5)
    both = sent.send(b"1", b"2", future=True)
    assert (sent.went, sent.core.wake_at) == ([], 0.005)
    sent.wake(0.005)
    assert sent.went == [(HERE, both)]


@pytest.mark.parametrize(
    ("last_is_future", "options"),
    [(False, {}), (True, {"max_batch_records": 2})],
    ids=["a blocking message", "one that fills the batch"],
)
def test_what_does_not_linger_takes_lingering_ones_along(last_is_future, options):
    sent = Sent(linger_ms=5, **options)
    lingering, last = sent.send(b"1", future=True), sent.send(b"2", future=last_is_future)
    assert sent.went == [(HERE, [*lingering, *last])]


def test_where_interrupts_come_what_has_waited_leaves_by_a_wake():
    sent = Sent(linger_ms=5)
    lingering = sent.send(b"1", future=True)
    sent.interrupts = True
    blocking = sent.send(b"2")
    assert (sent.went, sent.core.wake_at) == ([], -math.inf)
    sent.interrupts = False
    sent.wake()
    assert sent.went == [(HERE, [*lingering, *blocking])]


def test_flush_sends_what_lingers_and_gives_up_at_its_deadline():
    sent = Sent(linger_ms=5)
    first = sent.send(b"x", future=True)
    sent.core.hurry()
    sent.wake()
    assert (sent.core.is_empty(), sent.went) == (False, [(HERE, first)])
    sent.finish()
    assert sent.core.is_empty()


def handed_back(actions):
    """Late ones, and those that have ended."""
    return [outgoing for outgoing, _ in actions.late], [outgoing for outgoing, _ in actions.ended]


def test_after_close_nothing_is_accepted_and_what_has_no_outcome_is_handed_back(sent):
    under_way, waiting = sent.send(b"1", b"2")
    assert handed_back(sent.core.close()) == ([under_way], [waiting])
    with pytest.raises(errors.ClientError, match="closed"):
        sent.send(b"x")


# --- many partitions of one broker ------------------------------------------------------------------------------------

PARTITIONS = [TopicPartition("t", 0, number) for number in range(8)]


def gathering(**config):
    """A core whose broker takes many partitions in one request, and has as many under way as may be."""
    sent = Sent(max_requests_in_flight=2, **config)
    for partition in PARTITIONS[:2]:
        sent.add(message(), partition).broker.gathers = True
    return sent


def parts(flight):
    return [(turn.queue.partition, turn.batch) for turn in flight.turns]


def test_partitions_that_become_ready_while_requests_are_under_way_go_together():
    sent = gathering()
    ready = [*PARTITIONS[2:6], PARTITIONS[0]]
    waiting = [sent.send(b"x", partition=partition) for partition in ready]
    waiting[0] += sent.send(b"y", partition=ready[0])
    assert len(sent.flights) == 2
    sent.finish(0)
    assert parts(sent.flights[2]) == list(zip(ready, waiting, strict=True))
    sent.finish(1)
    assert len(sent.flights) == 3
    sent.finish(2)
    assert sent.core.buffered_bytes == 0


def test_a_request_of_many_partitions_ends_at_its_bytes_and_at_its_records():
    sent = gathering(max_batch_bytes=100, max_batch_records=3)
    for size, partition in zip([30, 30, 30, 0, 0, 0], PARTITIONS[2:], strict=True):
        sent.send(b"x" * size, partition=partition)
    for number, taken in ((0, PARTITIONS[2:4]), (1, PARTITIONS[4:7])):  # the first have 50 + 50 bytes
        sent.finish(number)
        assert [partition for partition, _ in parts(sent.flights[-1])] == taken


def test_other_brokers_do_not_wait():
    sent = gathering()
    sent.send(b"x", partition=THERE)
    assert len(sent.flights) == 3


def test_a_part_that_failed_waits_alone_and_the_others_go_on():
    sent = gathering()
    (first,), _ = sent.send(b"1", partition=PARTITIONS[2]), sent.send(b"2", partition=PARTITIONS[3])
    sent.finish(0)
    flight = sent.flights[2]
    third = sent.send(b"3", partition=PARTITIONS[3])
    sent.do(sent.core.landed(flight, flight.turns[1:], [(flight.turns[0], UNREACHABLE)]))
    assert parts(sent.flights[3]) == [(PARTITIONS[3], third)]
    sent.routes[first] = PARTITIONS[2]
    sent.wake()
    sent.finish(1)
    sent.finish(3)


def test_everything_of_a_broker_lingers_together():
    sent = gathering(linger_ms=5)
    for number in range(2):
        sent.finish(number)
    waiting = [(partition, sent.send(b"x", partition=partition, future=True)) for partition in PARTITIONS[2:5]]
    assert len(sent.core.due) == 1
    sent.wake(0.005)
    assert parts(sent.flights[2]) == waiting


@given(st.lists(st.one_of(st.integers(0, 7), st.sampled_from(["finish", "fail"])), max_size=60), st.integers(1, 3))
def test_every_message_is_sent_once_in_the_order_of_its_partition(steps, in_flight):
    sent = Sent(max_requests_in_flight=in_flight, max_batch_records=4)
    broker = sent.add(message(), PARTITIONS[0]).broker
    broker.gathers = True
    expected: dict[TopicPartition, list[Outgoing]] = {partition: [] for partition in PARTITIONS}
    delivered: dict[TopicPartition, list[Outgoing]] = {partition: [] for partition in PARTITIONS}
    answered = 0

    def answer(failing):
        nonlocal answered
        flight = sent.flights[answered]
        answered += 1
        failed = flight.turns[:1] if failing else []
        done = flight.turns[len(failed) :]
        for queue, batch in done:
            delivered[queue.partition] += batch
        sent.do(sent.core.landed(flight, done, [(turn, UNREACHABLE) for turn in failed]))
        sent.flights += sent.core.release(flight, done)
        sent.wake(sent.now + 10.0)

    answer(failing=False)
    delivered[PARTITIONS[0]].clear()
    for step in steps:
        if isinstance(step, int):
            expected[PARTITIONS[step]].append(outgoing := message(deadline=math.inf))
            sent.routes[outgoing] = PARTITIONS[step]
            sent.add(outgoing, PARTITIONS[step])
        elif answered < len(sent.flights):
            answer(failing=step == "fail")
        assert broker.flights == len(sent.flights) - answered <= in_flight
    while answered < len(sent.flights):
        answer(failing=False)
    assert delivered == expected
    assert sent.core.buffered_bytes == 0


# --- keys while the partitions of their topic change -----------------------------------------------------------------


def key_of(partition, partitions):
    return next(key for key in map(str, range(100)) if partition_for_key(key, partitions) == partition)


MOVING = key_of(THERE, (HERE, THERE))


@pytest.fixture
def moving(sent):
    """A message with the key MOVING is under way to THERE, which leaves the list then."""
    sent.send(b"1", key=MOVING, partition=None)
    assert sent.went[0][0] == THERE
    sent.partitions = (HERE,)
    return sent


def test_a_key_that_moves_waits_for_what_is_under_way_where_it_was(moving):
    second, third = message(key=MOVING), message(key=MOVING)
    assert (moving.add(second, None), moving.add(third, None)) == (None, None)
    (other,) = moving.send(b"x", key=key_of(HERE, (HERE, THERE)), partition=None)
    assert moving.went[1:] == [(HERE, [other])]  # a key that stays is not held back
    moving.finish(0)
    moving.finish(1)
    assert moving.went[2:] == [(HERE, [second, third])]
    moving.finish(2)
    assert moving.core.buffered_bytes == 0


def test_a_key_whose_earlier_message_is_given_up_goes_on(moving):
    second = moving.send(b"2", key=MOVING, partition=None)
    moving.fail(REFUSED)
    assert moving.batches[-1][1] == second


def test_a_key_keeps_its_last_partition_while_nobody_publishes_its_topic(moving):
    moving.partitions = ()
    assert moving.add(message(key=MOVING), None) is moving.batches[0][0]


def test_a_key_of_a_topic_that_was_never_there_is_refused(sent):
    sent.partitions = ()
    with pytest.raises(errors.NoPartition, match="no partition"):
        sent.add(message(key="k"), None)
    assert sent.core.buffered_bytes == 0


def test_what_waits_for_its_key_is_handed_back_at_the_close(moving):
    ((_, first),) = moving.went
    second = moving.send(b"2", key=MOVING, partition=None)
    late, ended = handed_back(moving.core.close())
    assert late + ended == [*first, *second]


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_futures_whose_time_is_over_leave_the_queue_and_those_under_way_keep_their_place(sent):
    under_way, queued, later = (message(deadline=time, future=True) for time in (1.0, 2.0, 9.0))
    for outgoing in (under_way, queued, later):
        sent.add(outgoing)
    assert sent.core.expire_at == 1.0
    sent.now = 3.0
    actions = sent.core.expire(sent.now)
    sent.do(actions)
    assert handed_back(actions) == ([under_way], [queued])
    assert (sent.core.expire_at, sent.core.expire(sent.now)) == (9.0, Actions())
    sent.finish()
    assert sent.went[-1] == (HERE, [later])


def test_messages_are_looked_at_for_their_deadlines_four_times_a_second_at_most(sent):
    sent.send(b"x", deadline=1.0, future=True)
    sent.now = 1.0
    sent.core.expire(sent.now)
    for number in range(10):
        sent.send(b"x", deadline=1.01 + number / 100, future=True)
    assert sent.core.expire_at == 1.25


# --- broker sets ------------------------------------------------------------------------------------------------------


def test_a_message_that_another_node_leads_stays_in_its_partition_and_goes_again_at_once(sent):
    sent.elsewhere = True
    first, second = sent.send(b"1", b"2")
    sent.routes = {first: THERE, second: THERE}
    sent.fail(errors.NotLeader(0, "meta://there:1"))
    assert sent.core.wake_at == sent.now
    sent.wake()
    assert sent.went[1:] == [(HERE, [first, second])]
    assert (first.attempts, sent.batches[0][0].failures) == (0, 0)


def test_a_message_waits_for_a_leader_until_its_deadline_and_no_longer(sent):
    (first,) = sent.send(b"x", deadline=1.0, future=True)
    sent.led = 0.2
    tries = 0
    sent.fail(errors.NotLeader(0))
    while not sent.ended:
        assert sent.core.wake_at == sent.now + 0.2
        sent.wake(sent.now + 0.2)
        tries += 1
        sent.fail(errors.NotLeader(0))
    assert (tries, sent.now) == (5, pytest.approx(1.0))
    assert first.cause is not None
    assert "does not lead" in str(sent.core.overdue(first))


def test_a_failure_behind_a_refusal_is_a_failure_again(sent):
    (first,) = sent.send(b"x")
    sent.routes[first] = THERE
    sent.fail(errors.NotLeader(0, "meta://there:1"))
    sent.wake()
    sent.fail()
    sent.wake(sent.now + 10)
    assert (sent.batches[0][0].failures, sent.went[-1][0]) == (1, THERE)
