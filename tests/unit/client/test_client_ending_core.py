"""Which outcomes of half messages are sent when: the core without threads, connections or clocks."""

from math import inf

import pytest

from metaq.client.producer import ending_core, tuning
from metaq.client.producer.ending_core import EndingCore, Telling
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import BrokerUnavailable, ClientError, NotLeader, RequestRefused, RequestTimedOut
from metaq.protocol.half_messages import EndHalfReply, HalfOutcome
from metaq.protocol.statuses import ResponseCode

PLACE = TopicPartition("t", 0, 0)
GONE = BrokerUnavailable("gone")


class Unawaited(Telling):
    """An outcome for which no thread waits."""

    blocks = False


class Clock:
    """A clock that stands still, and the pauses that the core asks for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []
        self.core = EndingCore(lambda _: 0.25, lambda: self.now, lambda seconds, _: self.pauses.append(seconds))

    def telling(self, half_id: int, kind: type[Telling] = Telling, seconds: float = 10.0, where=PLACE) -> Telling:
        made = kind()
        made.partition, made.half_id, made.deadline = where, half_id, self.now + seconds
        return made

    def sent(self, *half_ids: int, kind: type[Telling] = Telling, seconds: float = 10.0):
        """The batch of the first id; the others gather behind it."""
        batch, *others = [self.core.add(self.telling(each, kind, seconds)) for each in half_ids]
        assert batch is not None
        assert others == [None] * len(others)
        return batch


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ids(batch) -> list[int]:
    return [each.half_id for each in batch.tellings]


def test_outcomes_gather_while_a_request_is_under_way_and_go_together_behind_it(clock):
    first = clock.sent(1, 2, 3)
    following = clock.core.landed(first)
    assert (ids(first), ids(following)) == ([1], [2, 3])
    assert clock.core.landed(first) is None  # told again after an interrupt
    assert clock.core.landed(following) is None
    assert ids(clock.core.add(clock.telling(4))) == [4]


def test_partitions_do_not_wait_for_each_other(clock):
    clock.sent(1)
    assert ids(clock.core.add(clock.telling(2, where=TopicPartition("t", 0, 1)))) == [2]


def test_a_batch_is_no_larger_than_a_request_may_be(clock, monkeypatch):
    monkeypatch.setattr(ending_core, "MAX_ENDED_HALVES", 2)
    batch, sizes = clock.sent(*range(6)), []
    while batch is not None:
        sizes.append(len(batch.tellings))
        batch = clock.core.landed(batch)
    assert sizes == [1, 2, 2, 1]


def test_an_outcome_whose_thread_gave_up_meanwhile_is_not_sent(clock):
    first, given_up = clock.sent(1), clock.telling(2)
    clock.core.add(given_up)
    given_up.done = True
    assert clock.core.landed(first) is None


def test_outcomes_of_a_failed_request_go_again_before_the_others_after_a_pause(clock):
    first = clock.sent(1, 2)
    assert clock.core.failed(first, GONE) is None
    assert clock.pauses == [ending_core._PAUSE_SECONDS]
    assert clock.core.add(clock.telling(3)) is None
    again = clock.core.resume(first.place)
    assert ids(again) == [1, 2, 3]
    assert again.tellings[0].error is None


def test_a_named_leader_is_asked_after_the_pause_that_the_pool_wants(clock):
    clock.core.failed(clock.sent(1), NotLeader(0, "meta://b:2"))
    assert clock.pauses == [0.25]


@pytest.mark.parametrize(
    "error", [RequestRefused(ResponseCode.NO_PERMISSION, "no"), GONE], ids=["refused", "no time left"]
)
def test_an_outcome_that_cannot_go_again_ends_and_lets_the_others_pass(clock, error):
    first = clock.sent(1, 2, seconds=ending_core._PAUSE_SECONDS / 2)
    following = clock.core.failed(first, error)
    assert first.tellings[0].error is error
    assert ids(following) == [2]
    assert clock.pauses == []


def test_outcomes_that_nobody_waits_for_linger_once_for_each_partition(clock):
    assert clock.core.gather(clock.telling(1, Unawaited))
    assert not clock.core.gather(clock.telling(2, Unawaited))
    assert ids(clock.core.next_lingering()) == [1, 2]
    assert clock.core.next_lingering() is None
    assert not clock.core.gather(clock.telling(3, Unawaited))  # it goes behind that request


def test_what_lingers_goes_with_an_outcome_that_somebody_waits_for(clock):
    clock.core.gather(clock.telling(1, Unawaited))
    assert ids(clock.core.add(clock.telling(2))) == [1, 2]
    assert clock.core.next_lingering() is None


@pytest.mark.parametrize("taken", [False, True], ids=["not sent", "sent"])
def test_a_batch_of_an_interrupted_thread_is_taken_over_once_if_it_was_not_sent(clock, taken):
    batch = clock.sent(1)
    if taken:
        batch.request = type("Request", (), {"taken": True})
    assert clock.core.untaken(PLACE, object()) is None  # another thread sends it
    assert clock.core.untaken(PLACE, batch.tellings[0]) is (None if taken else batch)
    assert clock.core.untaken(PLACE, batch.tellings[0]) is None


def test_the_batch_behind_an_interrupted_end_is_taken_over_by_who_ends_it_again(clock):
    first = clock.sent(1, 2)
    following = clock.core.landed(first)
    assert not clock.core.is_under_way(first)
    assert clock.core.untaken(PLACE, first) is following


def test_outcomes_that_nobody_waits_for_end_at_their_deadlines(clock):
    under_way = clock.sent(1, kind=Unawaited, seconds=1.0)
    clock.core.gather(clock.telling(2, Unawaited, 1.0))
    clock.core.gather(clock.telling(3, Unawaited, 5.0))
    clock.core.add(clock.telling(4, Telling, 1.0))  # its thread watches the time itself
    assert clock.core.expire_at == 101.0
    under_way.tellings[0].cause = GONE
    clock.now = 102.0
    over = clock.core.expire()
    assert [(each.half_id, type(each.error)) for each in over] == [(1, BrokerUnavailable), (2, RequestTimedOut)]
    assert clock.core.expire_at == max(105.0, 102.0 + tuning.LOOK_SECONDS)
    clock.core.ended(over)
    clock.now = 110.0
    assert [each.half_id for each in clock.core.expire()] == [3]
    assert clock.core.expire_at == inf


def test_each_outcome_is_told_once(clock):
    replied = clock.telling(1, Unawaited)
    replied.reply = EndHalfReply(HalfOutcome.COMMITTED, 10, 0)
    assert clock.core.ended([replied, clock.telling(2)]) == [replied]
    assert clock.core.ended([replied]) == []


def test_a_closed_core_ends_all_and_accepts_nothing(clock):
    first = clock.sent(1, 2)
    assert [(each.half_id, type(each.error)) for each in clock.core.close()] == [(1, ClientError), (2, ClientError)]
    for accept in (clock.core.add, clock.core.gather):
        with pytest.raises(ClientError, match="closed"):
            accept(clock.telling(3))
    assert clock.core.failed(first, GONE) is None
    assert clock.pauses == []
