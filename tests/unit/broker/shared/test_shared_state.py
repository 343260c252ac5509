"""What a group has of a partition, against a model that is too simple to be wrong: thousands of steps by chance."""

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from metaq.broker.shared.lines import NO_KEY
from metaq.broker.shared.rows import (
    SharedKey,
    apply,
    changed_section,
    done_section,
    encode_body,
    leased_section,
    read_state,
    sections,
    state_section,
)
from metaq.broker.shared.state import Grant, HeldState, Limits, SharedState
from metaq.protocol.shared import SettleOutcome

LIMITS = Limits(1000, 100_000, 100_000, 1 << 30, 1000, 8)
KEY = SharedKey("g", "t", 0)
SIZE = 50


def looked_at(
    state: SharedState, count: int, priorities: list[int] | None = None, keys: list[int] | None = None
) -> None:
    """`count` more records of SIZE bytes."""
    start = state.scanned
    offsets = np.arange(start, start + count * SIZE, SIZE, dtype=np.int64)
    state.look(
        start + count * SIZE,
        offsets,
        np.full(count, SIZE, np.int32),
        None if priorities is None else np.array(priorities, np.uint8),
        keys,
    )


def offsets_of(grants: list[Grant]) -> list[int]:
    return [grant.offset // SIZE for grant in grants]


def fresh(limits: Limits = LIMITS) -> SharedState:
    return SharedState(0, limits)


def test_messages_are_leased_in_order_once_and_the_low_mark_follows_what_is_acknowledged() -> None:
    state = fresh()
    looked_at(state, 5)
    assert offsets_of(state.acquire(3, 1 << 20, 10.0, 1, "a")) == [0, 1, 2]
    assert offsets_of(state.acquire(3, 1 << 20, 10.0, 2, "b")) == [3, 4]
    assert state.acquire(3, 1 << 20, 10.0, 3, "c") == []
    assert state.ack(SIZE, 1) is SettleOutcome.DONE
    assert (state.low, state.done_above) == (0, 1)
    assert state.ack(0, 1) is SettleOutcome.DONE
    assert (state.low, state.done_above) == (2 * SIZE, 0)
    assert state.members() == {"a": 1, "b": 2}


def test_an_expired_lease_comes_back_first_and_counts_its_attempts() -> None:
    state = fresh()
    looked_at(state, 3)
    state.acquire(1, 1 << 20, 10.0, 1, "a")
    assert state.expire(9.9) == 0
    assert state.expire(10.0) == 1
    assert state.acquire(2, 1 << 20, 20.0, 2, "b") == [Grant(0, SIZE, 0, 2), Grant(SIZE, SIZE, 0, 1)]


def test_an_expired_lease_is_its_holders_until_another_one_gets_the_message() -> None:
    state = fresh()
    looked_at(state, 2)
    state.acquire(2, 1 << 20, 10.0, 1, "a")
    state.expire(11.0)
    assert state.ack(0, 1) is SettleOutcome.DONE
    assert state.available == 1
    state.acquire(1, 1 << 20, 20.0, 2, "b")
    assert state.ack(SIZE, 1) is SettleOutcome.LOST
    assert state.ack(SIZE, 2) is SettleOutcome.DONE
    assert state.ack(SIZE, 2) is SettleOutcome.GONE


def test_an_extended_lease_ends_when_it_says_earlier_or_later() -> None:
    state = fresh()
    looked_at(state, 2)
    state.acquire(2, 1 << 20, 10.0, 1, "a")
    state.extend(0, 1, 30.0)
    state.extend(SIZE, 1, 5.0)
    assert state.next_time == 5.0
    assert state.expire(5.0) == 1
    assert offsets_of(state.acquire(2, 1 << 20, 40.0, 2, "b")) == [1]
    assert state.expire(29.0) == 0
    assert state.expire(30.0) == 1


def test_a_released_message_waits_for_its_time_and_a_returned_one_has_no_attempt_more() -> None:
    state = fresh()
    looked_at(state, 2)
    state.acquire(2, 1 << 20, 10.0, 1, "a")
    assert state.release(0, 1, 1.0, 5.0) is SettleOutcome.DONE
    assert state.release(SIZE, 1, 1.0, 0.0, counts=False) is SettleOutcome.DONE
    assert state.acquire(2, 1 << 20, 20.0, 2, "b") == [Grant(SIZE, SIZE, 0, 1)]
    assert state.expire(5.9) == 0
    assert state.expire(6.0) == 1
    assert state.acquire(2, 1 << 20, 20.0, 3, "b") == [Grant(0, SIZE, 0, 2)]


def test_the_most_urgent_goes_first_and_every_eighth_is_the_one_that_waited_longest() -> None:
    state = fresh()
    looked_at(state, 40, [0] * 20 + [9] * 20)
    taken = offsets_of(state.acquire(16, 1 << 20, 10.0, 1, "a"))
    assert taken == [*range(20, 27), 0, *range(27, 34), 1]


def test_no_more_are_held_than_the_limit_and_those_that_come_back_still_may_be() -> None:
    state = fresh(LIMITS._replace(held=2))
    looked_at(state, 5)
    assert offsets_of(state.acquire(5, 1 << 20, 10.0, 1, "a")) == [0, 1]
    assert state.acquire(5, 1 << 20, 10.0, 2, "a") == []
    state.expire(10.0)
    assert offsets_of(state.acquire(5, 1 << 20, 20.0, 3, "a")) == [0, 1]
    state.ack(0, 3)
    assert offsets_of(state.acquire(5, 1 << 20, 20.0, 4, "a")) == [2]


def test_with_very_many_ranges_the_first_messages_go_first_whatever_their_priority() -> None:
    state = fresh(LIMITS._replace(ranges=3, share=1000))
    looked_at(state, 20, [0, 9] * 10)
    for token in range(3):
        (urgent,) = state.acquire(1, 1 << 20, 10.0, token, "a")
        state.ack(urgent.offset, token)
    assert offsets_of(state.acquire(2, 1 << 20, 10.0, 9, "a")) == [0, 2]


def test_one_message_of_a_key_is_leased_at_a_time_in_order() -> None:
    state = fresh()
    state.look_again(ordered=True)
    looked_at(state, 6, [0, 9, 0, 0, 0, 0], [7, 7, 8, NO_KEY, 7, NO_KEY])
    assert offsets_of(state.acquire(9, 1 << 20, 10.0, 1, "a")) == [0, 2, 3, 5]
    assert state.acquire(9, 1 << 20, 10.0, 2, "a") == []
    state.release(0, 1, 1.0, 5.0)
    assert state.acquire(9, 1 << 20, 10.0, 2, "a") == []  # the key waits for its first message
    state.expire(6.0)
    assert offsets_of(state.acquire(9, 1 << 20, 20.0, 3, "a")) == [0]
    state.ack(0, 3)
    assert offsets_of(state.acquire(9, 1 << 20, 20.0, 4, "a")) == [1]
    state.ack(SIZE, 4)
    assert offsets_of(state.acquire(9, 1 << 20, 20.0, 5, "a")) == [4]


def test_what_retention_takes_is_done_and_frees_what_waits_for_its_key() -> None:
    state = fresh()
    state.look_again(ordered=True)
    looked_at(state, 4, None, [7, 7, 7, 8])
    state.acquire(1, 1 << 20, 10.0, 1, "a")
    assert state.cut(2 * SIZE) == 1
    assert state.low == 2 * SIZE
    assert state.ack(0, 1) is SettleOutcome.GONE
    assert offsets_of(state.acquire(9, 1 << 20, 10.0, 2, "a")) == [2, 3]
    assert state.available == 0


def test_a_state_that_goes_over_the_partitions_end_is_clipped() -> None:
    state = fresh()
    looked_at(state, 4)
    state.acquire(4, 1 << 20, 10.0, 1, "a")
    state.ack(SIZE, 1)
    state.ack(3 * SIZE, 1)
    assert state.clip(2 * SIZE)
    assert not state.clip(2 * SIZE)
    assert list(state.ranges()) == [(SIZE, 2 * SIZE, 1)]
    assert [offset for offset, _ in state.items()] == [0]


class Model:
    """A group by itself: what became of each record, and who may have it until when."""

    def __init__(self, seed: int, *, ordered: bool) -> None:
        self.rng = random.Random(seed)
        self.ordered = ordered
        self.now = 0.0
        self.now_ms = 1_700_000_000_000
        self.token = 0
        self.keys: list[int] = []
        self.priorities: list[int] = []
        self.done: set[int] = set()
        self.attempts: dict[int, int] = defaultdict(int)
        self.leases: dict[int, tuple[int, float]] = {}  # record -> token, until
        self.last: dict[int, int] = {}  # record -> the token that may settle it
        self.not_before: dict[int, float] = {}
        self.looked = 0
        self.state = fresh()
        self.log: list[bytes] = []
        self.serial = 0
        if ordered:
            self.state.look_again(ordered=True)
        self.write(state_section(KEY, self.state, self.now, self.now_ms))

    def write(self, section: bytes) -> None:
        self.serial += 1
        self.log.append(encode_body(self.serial, [section]))

    def step(self) -> None:
        kinds = [self.arrive, self.acquire, self.acquire, self.ack, self.ack, self.release, self.extend, self.wait]
        self.rng.choice([*kinds * 4, self.restart, self.compact])()
        self.check()

    def arrive(self) -> None:
        for _ in range(self.rng.randrange(5)):
            self.keys.append(self.rng.choice([NO_KEY, 1, 2, 3]))
            self.priorities.append(self.rng.choice([0, 0, 0, 5, 9]))
        self.look()

    def look(self) -> None:
        first = self.state.scanned // SIZE
        count = len(self.keys) - first
        if count:
            keys = self.keys[first:] if self.ordered else None
            looked_at(self.state, count, self.priorities[first:], keys)

    def acquire(self) -> None:
        self.token += 1
        self.state.expire(self.now)
        until = self.now + self.rng.uniform(0.5, 5)
        grants = self.state.acquire(self.rng.randrange(1, 6), self.rng.choice([SIZE, 1000]), until, self.token, "m")
        for number, grant in enumerate(grants):
            record = grant.offset // SIZE
            assert record not in self.done
            held = self.leases.get(record)
            assert held is None or held[1] <= self.now, "leased to two members"
            assert self.not_before.get(record, 0.0) <= self.now, "too early"
            if grant.priority != self.priorities[record]:
                pytest.fail("a record has the priority of another one")
            if self.ordered and self.keys[record] != NO_KEY:
                same = [each for each in range(record) if self.keys[each] == self.keys[record]]
                assert set(same) <= self.done, f"record {record} came before another one of its key"
            self.attempts[record] += 1
            assert grant.attempts == self.attempts[record]
            self.leases[record] = self.token, until
            self.last[record] = self.token
            assert number < 5
        if grants:
            until_ms = self.now_ms + round((until - self.now) * 1000)
            self.write(leased_section(KEY, grants, self.token, until_ms, "m"))

    def some(self) -> tuple[int, int] | None:
        """A record that was leased once, and the token of one of its leases."""
        if not self.last:
            return None
        record = self.rng.choice(list(self.last))
        return record, self.last[record] if self.rng.random() < 0.9 else self.rng.randrange(self.token + 1)

    def expected(self, record: int, token: int) -> SettleOutcome:
        if record in self.done:
            return SettleOutcome.GONE
        return SettleOutcome.DONE if self.last[record] == token else SettleOutcome.LOST

    def ack(self) -> None:
        if (chosen := self.some()) is None:
            return
        record, token = chosen
        expected = self.expected(record, token)
        assert self.state.ack(record * SIZE, token) is expected
        if expected is SettleOutcome.DONE:
            self.done.add(record)
            self.leases.pop(record, None)
            self.write(done_section(KEY, [(record * SIZE, record * SIZE + SIZE)]))

    def release(self) -> None:
        if (chosen := self.some()) is None:
            return
        record, token = chosen
        delay = self.rng.choice([0.0, 0.0, 2.0])
        counts = self.rng.random() < 0.7
        expected = self.expected(record, token)
        self.state.expire(self.now)
        was_leased = (held := self.leases.get(record)) is not None and held[1] > self.now
        assert self.state.release(record * SIZE, token, self.now, delay, counts=counts) is expected
        if expected is SettleOutcome.DONE:
            if was_leased and not counts:
                self.attempts[record] -= 1
            self.leases.pop(record, None)
            self.not_before[record] = self.now + delay
            until = self.now_ms + round(delay * 1000) if delay else 0
            attempts = self.state.attempts_of(record * SIZE)
            self.write(changed_section(KEY, [(record * SIZE, until, attempts, HeldState.DELAYED)]))

    def extend(self) -> None:
        if (chosen := self.some()) is None:
            return
        record, token = chosen
        until = self.now + self.rng.choice([0.5, 3.0, 10.0])
        expected = self.expected(record, token)
        self.state.expire(self.now)
        assert self.state.extend(record * SIZE, token, until) is expected
        if expected is SettleOutcome.DONE:
            self.leases[record] = token, until
            self.not_before.pop(record, None)
            until_ms = self.now_ms + round((until - self.now) * 1000)
            attempts = self.state.attempts_of(record * SIZE)
            self.write(changed_section(KEY, [(record * SIZE, until_ms, attempts, HeldState.LEASED)]))

    def wait(self) -> None:
        seconds = self.rng.choice([0.125, 0.5, 2.0])
        self.now += seconds
        self.now_ms += int(seconds * 1000)

    def compact(self) -> None:
        self.log.clear()
        self.write(state_section(KEY, self.state, self.now, self.now_ms))

    def restart(self) -> None:
        """Another broker, or another life of this one, knows what the log says."""
        state: SharedState | None = None
        for body in self.log:
            for section in sections(body)[1]:
                if section.kind.name == "STATE":
                    state = fresh()
                    read_state(section.payload, state)
                else:
                    assert state is not None
                    apply(section, state)
        assert state is not None
        state.begin(self.now, self.now_ms)
        if self.ordered:
            state.look_again(ordered=True)
        self.state = state
        self.look()

    def check(self) -> None:
        """Nothing is lost: each record is done, leased, waits for its time, or may be leased."""
        state = self.state
        low = state.low // SIZE
        assert set(range(low)) <= self.done
        above = {each for each in self.done if each >= low}
        ranges = [each for start, end, _ in state.ranges() for each in range(start // SIZE, end // SIZE)]
        assert sorted(above) == sorted(ranges)
        assert state.done_above == len(above)
        held = {offset // SIZE for offset, _ in state.items()}
        assert not held & self.done
        assert held == set(self.last) - self.done

    def drain(self) -> None:
        """In the end everything can be had and acknowledged."""
        self.now += 100
        for _ in range(10_000):
            if len(self.done) == len(self.keys):
                break
            self.token += 1
            self.state.expire(self.now)
            grants = self.state.acquire(7, 1 << 20, self.now + 1, self.token, "m")
            assert grants, f"{len(self.keys) - len(self.done)} records never come"
            for grant in grants:
                assert self.state.ack(grant.offset, self.token) is SettleOutcome.DONE
                self.done.add(grant.offset // SIZE)
        assert self.state.low == len(self.keys) * SIZE
        assert (self.state.available, self.state.leased, self.state.held) == (0, 0, 0)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_by_chance_nothing_is_lost_leased_twice_or_counted_wrong_over_restarts(seed: int, ordered: Any) -> None:
    model = Model(seed, ordered=ordered)
    for _ in range(600):
        model.step()
    model.drain()
