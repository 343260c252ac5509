"""The order of a key, and no message stored twice, whatever brokers and the cluster's view do: the core with brokers
of a model, whose every step a seed chooses.

Brokers die with requests that they have stored, or not, and come back with what they have and the numbers that they
remember. The cluster's view changes at any moment, also between two looks of one call. Where the core leaves its lock
other threads accept messages and take answers.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest

from metaq.client.producer.core import Actions, ProducerCore
from metaq.client.producer.futures import SendFuture
from metaq.client.producer.outgoing import Outgoing
from metaq.client.producer.queues import FailedTurn, Flight, Turn
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ProducerConfig
from metaq.protocol.errors import BrokerUnavailable, LeaderMoved, MetaqError, NoPartition, NotLeader, PartitionClosed

KEYS = [b"key-%d" % number for number in range(6)]
BROKERS = (0, 1)
PARTITIONS = 2
LOST = BrokerUnavailable("the connection was lost")
DOWN = BrokerUnavailable("connection refused")
MOVED = LeaderMoved("it leads its broker set no longer")
NOT_LEADER = NotLeader(0)
CLOSED = PartitionClosed(0, 0)


class Stored(NamedTuple):
    """One message on a broker's disk, in the order in which all brokers stored theirs."""

    partition: TopicPartition
    message: Outgoing


class Cluster:
    """Brokers that store what reaches them, and what the client knows of them."""

    def __init__(self) -> None:
        self.alive = set(BROKERS)
        self.registered = set(BROKERS)
        self.stored: list[Stored] = []
        self._last: dict[TopicPartition, int] = {}

    @property
    def listed(self) -> tuple[TopicPartition, ...]:
        return tuple(TopicPartition("t", each, n) for each in sorted(self.registered) for n in range(PARTITIONS))

    def store(self, queue_partition: TopicPartition, sequence: int, batch: Sequence[Outgoing]) -> None:
        """A number is stored once."""
        known = self._last.get(queue_partition, 0)
        assert sequence >= known, "a number that the broker has left behind"
        if sequence > known:
            self._last[queue_partition] = sequence
            self.stored += [Stored(queue_partition, each) for each in batch]

    def is_repeated(self, partition: TopicPartition, sequence: int) -> bool:
        return self._last.get(partition) == sequence


class Run:
    """A driver of the core, as Routes asks for one, that does what a seed says."""

    avoids_any = False

    def __init__(self, seed: int, deadline: float) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster()
        self.now = 0.0
        self.view = self.cluster.listed
        self.under_way: list[Flight] = []
        self.unreleased: list[tuple[Flight, Sequence[Turn]]] = []
        self.sent: dict[bytes, list[Outgoing]] = defaultdict(list)
        self.blocked: list[Outgoing] = []
        self.acknowledged: set[Outgoing] = set()
        self._deadline = deadline
        self._depth = 0
        config = ProducerConfig(max_requests_in_flight=self.chance.choice((1, 2, 8)), retry_min_seconds=0.1)
        self.core = ProducerCore(
            config, self, self.clock, self.chance.random, follow=lambda e: 0.0 if e in (MOVED, NOT_LEADER) else None
        )

    # --- Routes -----------------------------------------------------------------------------------------------------

    def partitions_for_keys(self, topic: str) -> Sequence[TopicPartition]:
        if self.chance.random() < 0.05:
            self.view = self.cluster.listed
        return self.view

    def route(self, outgoing: Outgoing) -> TopicPartition:
        if not self.view:
            raise NoPartition("nobody publishes it")
        return outgoing.fixed or self.chance.choice(self.view)

    def is_away(self, outgoing: Outgoing) -> bool:
        return False

    def avoid(self, partition: TopicPartition, error: MetaqError, seconds: float) -> bool:
        return self.chance.random() < 0.5

    def works(self, partition: TopicPartition) -> None: ...

    def clock(self) -> float:
        """Asked for outside of the lock, it is where another thread's turn comes."""
        if not self.core._lock.locked() and self._depth < 2 and self.chance.random() < 0.1:
            self.chance.choice((self.add, self.answer, self.look))()
        return self.now

    # --- the driver -------------------------------------------------------------------------------------------------

    def do(self, actions: Actions) -> None:
        self._depth += 1
        self.transmit(actions.flights)
        for outgoing, error in (*actions.late, *actions.ended):
            outgoing.fail(error)
        if actions.ended:
            self.transmit(self.core.forget(actions.ended))
        self._depth -= 1

    def transmit(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            broker = flight.turns[0].queue.partition.broker
            if broker not in {each.broker for each in self.view}:
                self.fail(flight, NoPartition("not registered any more"), answered=False)
            elif broker not in self.cluster.alive:
                self.fail(flight, DOWN, answered=False)
            else:
                flight.counted = True
                self.under_way.append(flight)

    def fail(self, flight: Flight, error: MetaqError, answered: bool) -> None:
        self.do(self.core.landed(flight, (), [(turn, error) for turn in flight.turns], answered))

    # --- what may happen --------------------------------------------------------------------------------------------

    def add(self) -> None:
        key = self.chance.choice(KEYS)
        kind = self.chance.random()
        outgoing = Outgoing("t", 0, 0, b"%s %d" % (key, len(self.sent[key])), self.now + self._deadline)
        if self.chance.random() < 0.7:
            outgoing.report = SendFuture().outcome.settle
        else:
            self.blocked.append(outgoing)
        partition = None
        if kind < 0.8:
            outgoing.key = key
            self.sent[key].append(outgoing)
        elif kind < 0.9:
            partition = self.route(outgoing) if self.view else TopicPartition("t", 0, 0)
        else:
            partition = outgoing.fixed = TopicPartition("t", self.chance.choice(BROKERS), 0)
            outgoing.key = key  # which only finds it
        accepted = self.core.add(outgoing, partition)
        assert accepted is not None
        self.transmit(accepted[1])

    def answer(self) -> None:
        """A broker answers a request: each of its parts is stored, or refused."""
        if not self.under_way:
            return
        flight = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        if len(flight.turns) == 1 and len(flight.turns[0].batch) == 1 and self.chance.random() < 0.5:
            self.answer_alone(flight)
            return
        stored: list[Turn] = []
        failed: list[FailedTurn] = []
        for turn in flight.turns:
            queue, batch = turn
            repeated = self.cluster.is_repeated(queue.partition, queue.sequence)
            luck = self.chance.random()
            if luck < 0.03:
                failed.append((turn, NOT_LEADER))  # which knows nothing of numbers
            elif luck < 0.06 and not repeated:
                failed.append((turn, CLOSED))
            else:
                self.cluster.store(queue.partition, queue.sequence, batch)
                stored.append(turn)
        self.acknowledged.update(each for _, batch in stored for each in batch)
        actions = self.core.landed(flight, stored, failed)
        for _, batch in stored:
            for each in batch:
                each.succeed(None)
        self.unreleased.append((flight, stored))
        self.do(actions)
        if self.chance.random() < 0.8:
            self.release()

    def answer_alone(self, flight: Flight) -> None:
        ((queue, (outgoing,)),) = flight.turns
        self.cluster.store(queue.partition, queue.sequence, [outgoing])
        self.acknowledged.add(outgoing)
        following = self.core.landed_alone(flight)
        if following is None:
            self.do(self.core.landed(flight, flight.turns))
        else:
            self.transmit(following)
        outgoing.succeed(None)
        if following is None or outgoing.report is not None:
            self.transmit(self.core.release(flight, flight.turns))

    def release(self) -> None:
        unreleased, self.unreleased = self.unreleased, []
        for flight, stored in unreleased:
            self.transmit(self.core.release(flight, stored))

    def lose(self, error: MetaqError = LOST, broker: int | None = None) -> None:
        """Connections end; what was under way is stored, or not."""
        lost = [each for each in self.under_way if broker in (None, each.turns[0].queue.partition.broker)]
        if broker is None:
            lost = lost[:1]
        for flight in lost:
            self.under_way.remove(flight)
            for queue, batch in flight.turns:
                if self.chance.random() < 0.5:
                    self.cluster.store(queue.partition, queue.sequence, batch)
        for flight in lost:
            self.fail(flight, error, answered=False)

    def kill(self) -> None:
        broker = self.chance.choice(BROKERS)
        if len(self.cluster.alive) == len(BROKERS) or self.chance.random() < 0.1:
            self.cluster.alive.discard(broker)
            self.lose(broker=broker)

    def end_session(self) -> None:
        self.cluster.registered &= self.cluster.alive

    def start(self) -> None:
        self.cluster.alive = set(BROKERS)

    def register(self) -> None:
        self.cluster.registered |= self.cluster.alive

    def look(self) -> None:
        """The client sees the cluster; the core is told of it sooner or later."""
        self.view = self.cluster.listed
        if self.chance.random() < 0.5:
            self.tell()

    def tell(self) -> None:
        if not self._depth:  # one thread tells of it
            self._depth += 1
            actions = self.core.view_changed(["t"])
            self._depth -= 1
            self.do(actions)

    def wait(self) -> None:
        self.now += self.chance.choice((0.0, 0.01, 1.0))
        if not self._depth:
            self._depth += 1
            actions = self.core.wake(self.now)
            self._depth -= 1
            self.do(actions)
            self.do(self.core.expire(self.now))
        for each in self.blocked:  # as their threads do
            if each.deadline <= self.now and not each.done:
                each.error = self.core.overdue(each)
                each.done = True

    def moved(self) -> None:
        self.lose(MOVED)

    def go(self, steps: int) -> None:
        likely = {self.add: 40, self.answer: 20, self.wait: 10, self.release: 5, self.look: 4, self.tell: 4}
        rare = dict.fromkeys((self.lose, self.moved, self.kill, self.end_session, self.start, self.register), 1)
        often = {**likely, **rare}
        for step in self.chance.choices(list(often), list(often.values()), k=steps):
            step()

    def finish(self) -> None:
        """Everything comes back and every message gets its outcome."""
        self.start()
        self.register()
        for _ in range(10_000):
            if self.core.is_empty():
                return
            self.view = self.cluster.listed
            for step in (self.answer, self.release, self.wait):
                step()
        raise AssertionError("messages without an outcome are left")


def stored_twice(stored: Sequence[Stored]) -> list[Outgoing]:
    times = Counter(each.message for each in stored)
    return [message for message, count in times.items() if count > 1]


def disordered(stored: Sequence[Stored], sent: Sequence[Outgoing], counts: set[Outgoing]) -> list[tuple[bytes, bytes]]:
    """Neighbours of one key that were stored in another order than they were sent, of those that `counts` has."""
    numbers = {each: number for number, each in enumerate(sent)}
    order = [each.message for each in stored if each.message in numbers and each.message in counts]
    return [(bytes(a.body), bytes(b.body)) for a, b in itertools.pairwise(order) if numbers[a] > numbers[b]]


@pytest.mark.parametrize("deadline", [1e9, 5.0], ids=["patient", "with deadlines"])
@pytest.mark.parametrize("seed", range(150))
def test_a_keys_messages_are_stored_once_and_in_order_whatever_brokers_and_views_do(seed, deadline):
    run = Run(seed, deadline)
    run.go(400)
    run.finish()
    stored = run.cluster.stored
    assert len(stored) > 20
    assert stored_twice(stored) == []
    for sent in run.sent.values():
        assert disordered(stored, sent, run.acknowledged) == []
        for partition in {each.partition for each in stored}:
            here = [each for each in stored if each.partition == partition]
            assert disordered(here, sent, set(sent)) == []


def test_the_checkers_reject_what_is_out_of_order_or_there_twice():
    first, second = (Outgoing("t", 0, 0, body, 1.0) for body in (b"1", b"2"))
    here, there = TopicPartition("t", 0, 0), TopicPartition("t", 1, 0)
    sent = [first, second]
    assert disordered([Stored(here, second), Stored(there, first)], sent, set(sent)) == [(b"2", b"1")]
    assert disordered([Stored(here, second), Stored(there, first)], sent, {second}) == []
    assert disordered([Stored(here, first), Stored(there, second)], sent, set(sent)) == []
    assert stored_twice([Stored(here, first), Stored(there, second), Stored(there, first)]) == [first]
