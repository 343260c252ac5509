"""Numbers of the producer's requests: what may be stored goes again as it was, and nowhere else."""

from types import SimpleNamespace

import pytest

from metaq import ProducerConfig, TopicPartition
from metaq.client.producer.codec import FlightCodec
from metaq.client.producer.queues import Turn
from metaq.protocol import errors
from metaq.protocol.sends import SendBatchRequest, SendManyRequest, SendRequest, split_many
from tests.frames import FrameReader
from tests.unit.client.test_client_producer_core import HERE, THERE, Sent, handed_back, message

LOST = errors.BrokerUnavailable("the connection was lost")
NOW = 500.0


class Numbered(Sent):
    """Its requests carry their numbers; the place where they go away is `elsewhere`."""

    elsewhere = True

    def lose(self, error=LOST, counted=True):
        """The last flight left and got no answer; or, not counted, it did not leave."""
        flight = self.flights[-1]
        flight.counted = counted
        self.do(self.core.landed(flight, (), [(turn, error) for turn in flight.turns], answered=False))

    def again(self):
        self.wake(self.now + 1.0)

    def lose_the_first_of(self, *messages):
        """They are added when HERE is all there is; the first request is lost, and THERE is all there is."""
        self.partitions = (HERE,)
        for each in messages:
            self.add(each, None)
        self.lose()
        self.partitions = (THERE,)

    @property
    def numbers(self):
        return [(queue.partition, queue.sequence, batch) for queue, batch in self.batches]


def started(*messages):
    """A first request is under way, and these wait behind it."""
    sent, first = Numbered(), message(b"first")
    sent.routes = dict.fromkeys(messages, HERE)
    for each in (first, *messages):
        sent.add(each)
    return sent, first


def test_what_may_be_stored_goes_again_alone_with_its_number_to_its_partition():
    second, third = message(), message()
    sent, first = started(second, third)
    sent.routes = dict.fromkeys((first, second, third), THERE)  # where they would go now
    sent.lose()
    assert len(sent.flights) == 1
    sent.again()
    assert sent.batches[1][0].sequence == 1
    assert sent.went[1:] == [
        (HERE, [first]),
        (THERE, [second, third]),
    ]  # these were never sent, so they may go elsewhere


@pytest.mark.parametrize(
    "error", [LOST, errors.RequestTimedOut("no answer"), errors.NotSafe("here", "the sync failed")]
)
def test_it_stays_unknown_until_the_broker_says_something(error):
    sent, first = started()
    sent.routes = {first: THERE}
    if isinstance(error, errors.NotSafe):
        sent.fail(error)
    else:
        sent.lose(error)
    for unsent in (
        errors.NoPartition("nobody publishes it"),
        errors.BrokerUnavailable("refused"),
        errors.RequestTimedOut("connecting"),
    ):
        sent.again()
        sent.lose(unsent, counted=False)  # this try did not leave, which says nothing of the first
    sent.again()
    assert sent.numbers == [(HERE, 1, [first])] * 5
    sent.fail(errors.PartitionClosed(0, 0))  # the broker has looked: it is not stored
    sent.again()
    assert sent.numbers[-1] == (THERE, 1, [first])


def test_a_key_waits_for_all_that_stay_behind_one_that_is_repeated_whoever_notices_the_change_first():
    """The change is noticed when the partition's messages are routed anew: some of them are in no queue just then."""
    sent = Numbered()
    first, other, second, later = (message(key=key) for key in (b"k", b"o", b"k", b"k"))
    sent.lose_the_first_of(first, other, second)
    sent.again()
    sent.add(later, None)
    sent.finish(1)
    sent.finish(2)
    assert sent.went[1:] == [(HERE, [first]), (THERE, [other]), (HERE, [second])], "second is under way"
    sent.finish()
    assert sent.went[4:] == [(THERE, [later])]


class Changing(Numbered):
    """Its `views` come one after the other, each at the next look."""

    views: tuple[tuple[TopicPartition, ...], ...] = ((HERE,),)

    def partitions_for_keys(self, topic):
        now, *later = self.views
        self.views = tuple(later) or self.views
        return now


def test_a_change_while_messages_are_routed_anew_does_not_divide_a_key():
    sent = Changing()
    messages = sent.send(b"1", b"2", b"3", key=b"k", partition=None)
    sent.fail()
    sent.views = (THERE,), (HERE,)
    sent.again()
    assert sent.went[1:] == [(THERE, messages)]


def test_what_never_left_may_go_elsewhere_at_once():
    sent, first = started()
    sent.routes = {first: THERE}
    sent.lose(counted=False)
    sent.again()
    assert sent.went[1:] == [(THERE, [first])]


def test_a_message_whose_time_is_over_stays_in_its_batch_while_others_have_time():
    short, long = message(b"s", 5.0, future=True), message(b"l", future=True)
    sent, _ = started(short, long)
    sent.finish()
    sent.lose()
    sent.now = 6.0
    actions = sent.core.expire(sent.now)
    assert [each for each, _ in actions.late] == [short]  # told, and in its place
    sent.do(actions)
    short.fail(actions.late[0][1])
    sent.again()
    assert sent.went[-1] == (HERE, [short, long])
    sent.finish()
    assert sent.core.is_empty()


def test_it_ends_when_all_its_messages_have_no_time_left():
    behind = message(b"b", 50.0)
    sent, first = started(behind)
    first.deadline = 5.0
    sent.lose()
    sent.again()
    sent.lose()
    sent.wake(6.0)
    assert (sent.ended, sent.numbers[-1]) == ([first], (HERE, 2, [behind]))


def test_it_ends_before_brokers_forget_its_number():
    sent, first = started()
    first.deadline = 1e9
    sent.lose()
    sent.again()
    sent.now += 13 * 3600
    sent.lose()
    assert sent.ended == [first]


def test_a_close_ends_what_waits_to_be_repeated_and_leaves_what_is_being_repeated_to_its_request():
    (waiting, first), (repeating, second) = started(), started()
    waiting.lose()
    repeating.lose()
    repeating.again()
    actions = waiting.core.close()
    assert (handed_back(actions), handed_back(repeating.core.close())) == (([], [first]), ([second], []))
    waiting.do(actions)
    repeating.lose()
    assert (waiting.core.is_empty(), repeating.ended) == (True, [second])


def test_a_flight_that_is_told_of_twice_counts_once():
    sent, _ = started()
    flight = sent.flights[0]
    sent.lose()
    assert not sent.core.landed(flight, (), [(turn, LOST) for turn in flight.turns], answered=False).ended
    sent.again()
    assert (len(sent.flights), sent.core.buffered_messages) == (2, 1)


def test_the_age_of_what_goes_again_counts_from_the_first_time():
    sent, _ = started()
    sent.flights[-1].sent_at = begun = sent.now
    for _ in range(2):
        sent.lose()
        sent.again()
        sent.flights[-1].sent_at = sent.now
    assert [queue.sent_at for queue, _ in sent.flights[-1].turns] == [begun]


def test_what_is_in_doubt_ends_and_the_next_message_has_the_next_number():
    following = message()
    sent, first = started(following)
    sent.lose()
    sent.again()
    sent.fail(errors.SendInDoubt("it is not known"))
    assert sent.ended == [first]
    sent.again()
    assert sent.numbers[-1] == (HERE, 2, [following])


# --- what a request says ----------------------------------------------------------------------------------------------


def requests(turns, producer=99, takes_sequences=True):
    broker = SimpleNamespace(endpoint=("h", 1), speaks_frames=True, takes_many=True, takes_sequences=takes_sequences)
    return FlightCodec(producer).requests(turns, broker, NOW)


def frame_of(request):
    (frame,) = FrameReader().receive(b"".join(map(bytes, request.encode([5]))))
    return frame


def encoded(*turns, **how):
    (request,) = requests(turns, **how)
    return request, frame_of(request)


def turn(partition, sequence):
    queue = Numbered().add(message(b"x"), partition)
    queue.sequence = sequence
    return Turn(queue, [message(b"x")])


def repeated(partition, sequence, seconds, *messages):
    """A turn that was sent first so long ago."""
    queue, batch = turn(partition, sequence)
    batch += messages
    queue.repeat, queue.sent_at = batch, NOW - seconds
    return Turn(queue, batch)


def test_a_request_says_its_number_to_a_broker_that_takes_it():
    request, frame = encoded(turn(HERE, 7))
    read = SendRequest.from_ext(frame.ext)
    assert (request.counted, read.producer, read.sequence) == (True, 99, 7)
    request, frame = encoded(turn(HERE, 7), turn(THERE, 3))
    several = SendManyRequest.from_ext(frame.ext)
    assert (request.counted, several.producer, split_many(frame.body, several).sequences) == (True, 99, [7, 3])


def test_what_goes_again_says_how_long_ago_it_was_sent_first():
    _, single = encoded(repeated(HERE, 7, 1.5))
    read = SendRequest.from_ext(single.ext)
    assert (read.producer, read.sequence, read.repeat_ms) == (99, 7, 1500)
    _, batch = encoded(repeated(HERE, 7, 0.0001, message(b"y")))
    assert SendBatchRequest.from_ext(batch.ext).repeat_ms == 1  # an age is never too low
    _, several = encoded(turn(THERE, 3), repeated(HERE, 7, 4.0))
    many = SendManyRequest.from_ext(several.ext)
    assert (many.repeat_ms, many.repeats) == (4000, frozenset({1}))
    for turns in ([turn(HERE, 7)], [turn(HERE, 7), turn(THERE, 3)]):
        _, first = encoded(*turns)
        assert not {"repeatMs", "repeats"} & set(first.ext)


@pytest.mark.parametrize(
    ("partition", "how"),
    [(HERE, {"takes_sequences": False}), (HERE, {"producer": 0}), (TopicPartition("t", 0, -1), {})],
    ids=["an older broker", "not idempotent", "the broker chooses"],
)
def test_a_request_has_no_number_otherwise(partition, how):
    request, frame = encoded(turn(partition, 7), **how)
    assert not request.counted
    assert not {"producerId", "sequence"} & set(frame.ext)


def test_a_partition_without_numbers_takes_none_from_the_others_of_its_flight():
    without, counted = requests([turn(HERE, 7), turn(TopicPartition("u", 0, -1), 1), turn(THERE, 3)])
    assert (without.counted, [each.queue.partition.topic for each in without.turns]) == (False, ["u"])
    frame = frame_of(counted)
    assert split_many(frame.body, SendManyRequest.from_ext(frame.ext)).sequences == [7, 3]
    assert counted.counted


def test_the_option_is_on_and_takes_only_a_truth_value():
    assert ProducerConfig().idempotent
    with pytest.raises(errors.ConfigError, match="idempotent='no'"):
        ProducerConfig(idempotent="no")  # type: ignore[arg-type]
