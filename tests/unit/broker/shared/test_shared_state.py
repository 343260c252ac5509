"""What a group has of a partition, against a model that is too simple to be wrong: thousands of steps by chance."""

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from metaq.broker.shared.crew import Crew, Suspicion
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
    suspects_section,
)
from metaq.broker.shared.state import Grant, HeldState, Limits, SharedState, Suspect
from metaq.protocol.errors import StoreError
from metaq.protocol.shared import SettleOutcome
from tests.unit.broker.harness import worked_off

LIMITS = Limits(1000, 100_000, 100_000, 1 << 30, 1000, 8, 10)
KEY = SharedKey("g", "t", 0)
SIZE = 50


def looked_at(state, count: int, priorities: list[int] | None = None, keys: list[int] | None = None) -> None:
    """`count` more records of SIZE bytes."""
    offsets = state.scanned + SIZE * np.arange(count, dtype=np.int64)
    ranks = None if priorities is None else np.array(priorities, np.uint8)
    state.look(state.scanned + count * SIZE, offsets, np.full(count, SIZE, np.int32), ranks, keys)


def offsets_of(grants: list[Grant]) -> list[int]:
    return [grant.offset // SIZE for grant in grants]


def fresh(count: int = 0, limits: Limits = LIMITS, crew: Crew | None = None) -> SharedState:
    """That has looked at so many records."""
    state = SharedState(0, limits, crew)
    looked_at(state, count)
    return state


def acquired(state: SharedState, count: int, until: float, token: int, member: str = "a") -> list[int]:
    """The numbers of the records that are leased."""
    return offsets_of(state.acquire(count, 1 << 20, until, token, member))


def grants(state: SharedState, count: int, until: float, token: int, member: str) -> list[tuple[int, int]]:
    """The numbers of the records that are leased, and how often each was handed out."""
    found = state.acquire(count, 1 << 20, until, token, member)
    assert all((each.size, each.priority) == (SIZE, 0) for each in found)
    return [(each.offset // SIZE, each.attempts) for each in found]


def test_messages_are_leased_in_order_once_and_the_low_mark_follows_what_is_acknowledged() -> None:
    state = fresh(5)
    assert [acquired(state, 3, 10.0, token, name) for token, name in enumerate("abc")] == [[0, 1, 2], [3, 4], []]
    for offset, marks in ((SIZE, (0, 1)), (0, (2 * SIZE, 0))):
        assert state.ack(offset, 0) is SettleOutcome.DONE
        assert (state.low, state.done_above) == marks
    assert worked_off(state.figures()).members == {"a": 1, "b": 2}


class Group:
    """Members that work on all that they get, and die of some; a lease lasts a second."""

    def __init__(self, count: int, *deadly: int, most: int = 3) -> None:
        self.state = fresh(count)
        self.deadly = set(deadly)
        self.most = most
        self.now = 0.0
        self.tokens = iter(range(1, 1_000_000))
        self.worked_on: list[int] = []
        self.dead_letters: list[int] = []
        self.deaths = 0

    def work(self, member: str, count: int = 10, ahead: int = 2) -> bool:
        """One life of a member, which asks `ahead` times before it begins; whether it has ended by itself."""
        for _ in range(1000):
            self.state.expire(self.now)
            mine: list[tuple[Grant, int]] = []
            for _ in range(ahead):
                token = next(self.tokens)
                mine += [(each, token) for each in self.state.acquire(count, 1 << 20, self.now + 1, token, member)]
            if not mine:
                return True
            for grant, token in mine:
                record = grant.offset // SIZE
                if grant.attempts > self.most:
                    self.dead_letters.append(record)
                elif record in self.deadly:
                    self.deaths += 1
                    self.now += 1.1
                    return False
                else:
                    self.worked_on.append(record)
                assert self.state.ack(grant.offset, token) is SettleOutcome.DONE
        raise AssertionError("it never ends")


def test_a_message_that_kills_its_worker_becomes_a_dead_letter_alone() -> None:
    group = Group(151, 20)
    while not group.work("m", 151):
        pass
    assert group.dead_letters == [20]
    assert sorted(group.worked_on) == [each for each in range(151) if each != 20]
    assert group.deaths == 1 + group.most


def test_of_several_deadly_messages_and_members_all_innocent_ones_are_worked_on_once() -> None:
    group = Group(300, 3, 4, 5, 70, 150, 299)
    for number in range(100):
        group.work(f"m{number % 3}", 40)
    assert sorted(group.dead_letters) == [3, 4, 5, 70, 150, 299]
    assert sorted(group.worked_on) == [each for each in range(300) if each not in group.deadly]


def test_a_suspect_is_leased_beside_others_once_and_then_to_a_member_that_has_nothing_else() -> None:
    state = fresh(9)
    acquired(state, 2, 1.0, 1, "dead")
    acquired(state, 1, 100.0, 2, "a")
    acquired(state, 1, 100.0, 3, "b")
    state.expire(1.0)
    assert grants(state, 5, 2.0, 4, "a") == [(0, 1)]
    assert state.suspects([0]) == [Suspect(0, Suspicion.SUSPECT, False)]
    assert acquired(state, 1, 100.0, 5, "a") == [4]  # it has a suspect: another one it does not get
    assert grants(state, 5, 100.0, 6, "c") == [(1, 1)]
    assert state.suspects([SIZE]) == [Suspect(SIZE, Suspicion.ALONE, False)]
    state.expire(2.0)
    assert state.suspects([0]) == [Suspect(0, Suspicion.SUSPECT, True)]
    assert acquired(state, 5, 100.0, 7, "a") == []  # it is to settle what it has
    assert acquired(state, 1, 100.0, 8, "b") == [5]  # one member is enough
    state.ack(2 * SIZE, 2)
    assert acquired(state, 5, 100.0, 9, "a") == []
    state.ack(4 * SIZE, 5)
    assert grants(state, 5, 3.0, 10, "a") == [(0, 1)]
    assert state.suspects([0]) == [Suspect(0, Suspicion.ALONE, False)]
    state.expire(3.0)
    assert grants(state, 5, 100.0, 11, "a") == [(0, 2)]  # that end was an attempt


def test_suspects_of_two_partitions_are_not_leased_to_a_member_at_once() -> None:
    crew = Crew()
    one, two = fresh(3, crew=crew), fresh(3, crew=crew)
    for state in (one, two):
        acquired(state, 1, 1.0, 1, "dead")
        state.expire(1.0)
    assert acquired(one, 5, 2.0, 2) == [0]
    assert acquired(two, 5, 9.0, 3) == []
    one.expire(2.0)  # twice without a word, as it was alone
    assert acquired(two, 5, 9.0, 4) == [0]
    assert acquired(one, 5, 9.0, 5) == []
    two.release(0, 4, 2.0, 0.0)
    assert grants(one, 5, 9.0, 6, "a") == [(0, 2)]
    assert acquired(two, 5, 9.0, 7) == []


def test_who_has_settled_all_for_a_suspect_gets_nothing_of_other_partitions_before_it() -> None:
    crew = Crew()
    one, two = fresh(1, crew=crew), fresh(3, crew=crew)
    acquired(one, 1, 1.0, 1, "dead")
    one.expire(1.0)
    acquired(one, 1, 2.0, 2, "dead too")
    one.expire(2.0)
    assert acquired(two, 1, 9.0, 3) == [0]
    assert acquired(one, 1, 9.0, 4) == []  # it is to settle what it has
    two.ack(0, 3)
    assert acquired(two, 1, 9.0, 5) == []
    assert acquired(one, 1, 9.0, 6) == [0]


@pytest.mark.parametrize(("other", "outcome"), [("a", SettleOutcome.DONE), ("b", SettleOutcome.LOST)])
def test_who_gets_a_message_again_unasked_may_still_settle_its_first_lease_and_others_may_not(other, outcome) -> None:
    state = fresh(1)
    acquired(state, 1, 1.0, 1)
    state.expire(1.0)
    assert grants(state, 1, 9.0, 2, other) == [(0, 1)]  # handed out once
    assert state.release(0, 1, 1.0, 0.0, counts=False) is SettleOutcome.LOST  # it works on this copy
    assert (state.extend(0, 1, 2.0), state.ack(0, 1)) == (outcome, outcome)
    assert state.ack(0, 2) is (SettleOutcome.GONE if other == "a" else SettleOutcome.DONE)


def test_an_expired_lease_is_its_holders_until_another_one_gets_the_message() -> None:
    state = fresh(2)
    acquired(state, 2, 10.0, 1)
    state.expire(11.0)
    assert state.ack(0, 1) is SettleOutcome.DONE
    assert state.available == 1
    acquired(state, 1, 20.0, 2, "b")
    outcomes = [state.ack(SIZE, token) for token in (1, 2, 2)]
    assert outcomes == [SettleOutcome.LOST, SettleOutcome.DONE, SettleOutcome.GONE]


def test_an_extended_lease_ends_when_it_says_earlier_or_later() -> None:
    state = fresh(2)
    acquired(state, 2, 10.0, 1)
    state.extend(0, 1, 30.0)
    state.extend(SIZE, 1, 5.0)
    assert (state.next_time, state.expire(5.0)) == (5.0, 1)
    assert acquired(state, 2, 40.0, 2, "b") == [1]
    assert [state.expire(29.0), state.expire(30.0)] == [0, 1]


def test_the_most_urgent_goes_first_and_every_eighth_is_the_one_that_waited_longest() -> None:
    state = fresh()
    looked_at(state, 40, [0] * 20 + [9] * 20)
    assert acquired(state, 16, 10.0, 1) == [*range(20, 27), 0, *range(27, 34), 1]


def test_no_more_are_held_than_the_limit_and_those_that_come_back_still_may_be() -> None:
    state = fresh(5, LIMITS._replace(held=2))
    assert [acquired(state, 5, 10.0, token) for token in (1, 2)] == [[0, 1], []]
    state.expire(10.0)
    assert acquired(state, 5, 20.0, 3) == [0]
    state.release(0, 3, 10.0, 0.0)
    assert acquired(state, 5, 20.0, 4) == [1]
    state.ack(SIZE, 4)
    assert acquired(state, 5, 20.0, 5) == [0, 2]


def test_with_very_many_ranges_the_first_messages_go_first_whatever_their_priority() -> None:
    state = fresh(limits=LIMITS._replace(ranges=3, share=1000))
    looked_at(state, 20, [0, 9] * 10)
    for token in range(3):
        (urgent,) = state.acquire(1, 1 << 20, 10.0, token, "a")
        state.ack(urgent.offset, token)
    assert acquired(state, 2, 10.0, 9) == [0, 2]


def test_what_retention_takes_is_done_and_frees_what_waits_for_its_key() -> None:
    state = fresh()
    state.look_again(ordered=True)
    looked_at(state, 4, None, [7, 7, 7, 8])
    acquired(state, 1, 10.0, 1)
    assert (state.cut(2 * SIZE), state.low) == (1, 2 * SIZE)
    assert state.ack(0, 1) is SettleOutcome.GONE
    assert (acquired(state, 9, 10.0, 2), state.available) == ([2, 3], 0)


def test_a_state_that_goes_over_the_partitions_end_is_clipped() -> None:
    state = fresh(4)
    acquired(state, 4, 10.0, 1)
    state.ack(SIZE, 1)
    state.ack(3 * SIZE, 1)
    assert [state.clip(2 * SIZE), state.clip(2 * SIZE)] == [True, False]
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
        self.member: dict[int, str] = {}  # who has had it last
        self.earlier: dict[int, list[int]] = defaultdict(list)  # tokens of this member's leases before
        self.stored_member: dict[int, str] = {}  # the same two, as a restart finds them
        self.stored_earlier: dict[int, list[int]] = defaultdict(list)
        self.suspicion: dict[int, Suspicion] = defaultdict(lambda: Suspicion.NONE)  # of the last lease
        self.extended_late: set[int] = set()
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
        member = self.rng.choice("abc")
        grants = self.state.acquire(self.rng.randrange(1, 6), self.rng.choice([SIZE, 1000]), until, self.token, member)
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
            least = self.suspicion[record]
            if held is not None:  # without a word
                self.attempts[record] -= least is not Suspicion.ALONE
                least = Suspicion(min(2, least + 1))
            self.attempts[record] += 1
            assert grant.attempts == self.attempts[record]
            suspects = self.state.suspects([grant.offset])
            self.suspicion[record] = suspects[0].suspicion if suspects else Suspicion.NONE
            assert self.suspicion[record] >= least
            assert len(grants) == 1 or not suspects, "a suspect is not leased alone"
            for members, earlier in ((self.member, self.earlier), (self.stored_member, self.stored_earlier)):
                is_same = members.get(record) == member
                earlier[record] = (earlier[record] + [self.last[record]])[-16:] if is_same else []
                members[record] = member
            self.extended_late.discard(record)
            self.leases[record] = self.token, until
            self.last[record] = self.token
            assert number < 5
        if grants:
            until_ms = self.now_ms + round((until - self.now) * 1000)
            suspects = self.state.suspects([grants[0].offset])
            section = leased_section(KEY, grants, self.token, until_ms, member)
            self.write(section + suspects_section(KEY, suspects))

    def some(self) -> tuple[int, int] | None:
        """A record that was leased once, and the token of one of its leases."""
        if not self.last:
            return None
        record = self.rng.choice(list(self.last))
        if self.earlier[record] and self.rng.random() < 0.3:
            return record, self.rng.choice(self.earlier[record])
        return record, self.last[record] if self.rng.random() < 0.9 else self.rng.randrange(self.token + 1)

    def expected(self, record: int, token: int) -> SettleOutcome:
        if record in self.done:
            return SettleOutcome.GONE
        mine = token == self.last[record] or token in self.earlier[record]
        return SettleOutcome.DONE if mine else SettleOutcome.LOST

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
        if expected is SettleOutcome.DONE and not counts and token != self.last[record]:
            expected = SettleOutcome.LOST
        self.state.expire(self.now)
        assert self.state.release(record * SIZE, token, self.now, delay, counts=counts) is expected
        if expected is SettleOutcome.DONE:
            if self.leases.pop(record, None) is not None and not counts:
                self.attempts[record] -= 1
            if counts:
                self.suspicion[record] = Suspicion.NONE
            self.not_before[record] = self.now + delay
            until = self.now_ms + round(delay * 1000) if delay else 0
            attempts = self.state.attempts_of(record * SIZE)
            self.changed(record, until, attempts, HeldState.DELAYED)

    def extend(self) -> None:
        if (chosen := self.some()) is None:
            return
        record, token = chosen
        until = self.now + self.rng.choice([0.5, 3.0, 10.0])
        expected = self.expected(record, token)
        self.state.expire(self.now)
        assert self.state.extend(record * SIZE, token, until) is expected
        if expected is SettleOutcome.DONE:
            if record not in self.leases or self.leases[record][1] <= self.now:
                self.extended_late.add(record)
            self.leases[record] = token, until
            self.not_before.pop(record, None)
            until_ms = self.now_ms + round((until - self.now) * 1000)
            attempts = self.state.attempts_of(record * SIZE)
            self.changed(record, until_ms, attempts, HeldState.LEASED)

    def changed(self, record: int, until_ms: int, attempts: int, state: HeldState) -> None:
        section = changed_section(KEY, [(record * SIZE, until_ms, attempts, state)])
        self.write(section + suspects_section(KEY, self.state.suspects([record * SIZE])))

    def wait(self) -> None:
        seconds = self.rng.choice([0.125, 0.5, 2.0])
        self.now += seconds
        self.now_ms += int(seconds * 1000)

    def compact(self) -> None:
        self.log.clear()
        self.stored_member.clear()
        self.stored_earlier.clear()
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
        self.member, self.earlier = dict(self.stored_member), defaultdict(list, self.stored_earlier)
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
        self.state.expire(self.now)
        leases: dict[str, list[Suspicion]] = defaultdict(list)
        for offset, each in state.items():
            if each.state is HeldState.LEASED and each.member and offset // SIZE not in self.extended_late:
                leases[each.member].append(each.suspicion)
        for found in leases.values():
            assert sum(each > Suspicion.NONE for each in found) <= 1, "two suspects"
            assert Suspicion.ALONE not in found or len(found) == 1, "something else beside one that is to be alone"
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


def test_a_record_that_ends_within_a_section_is_none() -> None:
    body = encode_body(3, [done_section(KEY, [(0, 10)])])
    assert [section.kind.name for section in sections(body)[1]] == ["DONE"]
    with pytest.raises(StoreError, match="a part of a section"):
        list(sections(body[:-1])[1])
