"""What is synced, journaled, shown and told: the decisions alone, without a disk, a clock or a thread."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metaq.broker.store.durability import (
    DATA,
    INDEX,
    JOURNAL,
    MARK_DIRTY,
    SHOW,
    SYNC,
    SYNC_SOON,
    TABLE,
    TELL,
    Durability,
    DurabilityEvent,
    Mode,
    SafeCallback,
)
from metaq.broker.store.topic_config import GROUP_COMMIT, FlushPolicy
from metaq.protocol.errors import LogReadOnly, MetaqError

ASYNCHRONOUS = FlushPolicy(3, 10_000)
BROKEN = LogReadOnly("t-0", "the disk is gone")


def fresh(policy: FlushPolicy = GROUP_COMMIT) -> Durability:
    return Durability(policy, end=0, count=0, synced_end=0)


class Told:
    """Waiters, and what each was told."""

    def __init__(self, durability: Durability) -> None:
        self.durability = durability
        self.got: list[tuple[object, MetaqError | None]] = []

    def wait(self, end: int, name: object) -> None:
        callback: SafeCallback = lambda error: self.got.append((name, error))  # noqa: E731
        if not self.durability.wait(end, callback):
            callback(self.durability.answer_for(end))

    def take(self, actions: int) -> list[tuple[object, MetaqError | None]]:
        """What is told now; actions: the event's."""
        before = len(self.got)
        if actions & TELL:
            for callback, error in self.durability.take_answers():
                callback(error)
        assert self.durability.take_answers() == []
        return self.got[before:]


@pytest.fixture
def durability():
    return fresh()


@pytest.fixture
def told(durability):
    return Told(durability)


# --- sequences of events ----------------------------------------------------------------------------------------------


def test_asynchronous_flush_shows_what_is_appended_and_syncs_past_the_threshold():
    durability = fresh(ASYNCHRONOUS)
    assert durability.appended(100, 1) == SHOW | MARK_DIRTY
    assert (durability.safe_end, durability.safe_count) == (100, 1)
    assert durability.appended(300, 2) == SHOW
    assert durability.appended(400, 1) == SHOW | SYNC_SOON
    assert durability.begin(DATA) == DATA
    assert durability.appended(500, 1) == SHOW, "it counts anew from the sync that covers the others"


def test_group_commit_hands_appends_to_the_journal_and_shows_them_when_they_are_safe(durability, told):
    assert durability.appended(100, 2) == JOURNAL | MARK_DIRTY
    told.wait(100, "first")
    assert durability.appended(200, 1) == JOURNAL
    told.wait(200, "second")
    assert durability.safe_end == 0
    assert told.take(durability.safe(100, 2)) == [("first", None)]
    assert (durability.safe_end, durability.safe_count) == (100, 2)
    assert told.take(durability.safe(200, 3)) == [("second", None)]
    assert durability.safe(200, 3) == 0
    assert durability.safe(100, 2) == 0, "late news: a checkpoint was faster than the journal"
    assert durability.safe_end == 200


def test_what_is_safe_by_the_journal_or_by_a_sync_of_its_own_files_is_shown_where_nobody_waits(durability):
    durability.appended(100, 1)
    assert durability.safe(100, 1) == SHOW
    assert durability.appended(200, 1) == JOURNAL
    assert durability.synced(200, 2, all_covered=False) == SHOW
    assert (durability.safe_end, durability.synced_end, durability.dirty) == (200, 200, True)


def test_what_the_journal_could_not_replay_is_synced_instead():
    durability = fresh(ASYNCHRONOUS)
    durability.appended(100, 1)
    assert durability.use(GROUP_COMMIT) == SYNC
    assert durability.appended(200, 1) == SYNC, "what lies before it is neither synced nor in the journal"
    assert durability.synced(200, 2, all_covered=False) == SHOW
    assert durability.appended(300, 1) == JOURNAL
    assert durability.appended(400, 1) == JOURNAL


def test_group_commit_that_ends_keeps_what_it_promised_and_shows_the_rest_then(durability, told):
    durability.appended(100, 1)
    told.wait(100, "promised")
    durability.appended(200, 1)
    assert durability.use(ASYNCHRONOUS) == 0
    assert durability.mode is Mode.LEAVING
    durability.appended(300, 1)
    told.wait(300, "later")
    assert told.take(durability.safe(100, 1)) == [("promised", None)]
    assert told.take(durability.safe(200, 2)) == [("later", None)], "all that was promised is safe"
    assert (durability.mode, durability.safe_end) == (Mode.SHOWING, 300)


def test_group_commit_ends_at_once_without_anything_unsafe_and_may_else_return_before_it_has_ended(durability):
    durability.appended(100, 1)
    durability.use(ASYNCHRONOUS)
    assert durability.use(GROUP_COMMIT) == SYNC
    assert durability.appended(200, 1) == JOURNAL, "the journal has had everything all along"
    durability.safe(100, 1)
    assert (durability.mode, durability.safe_end) == (Mode.WAITING, 100)
    durability.safe(200, 2)
    assert (durability.use(ASYNCHRONOUS), durability.mode) == (SHOW, Mode.SHOWING)


def test_a_failure_is_told_once_to_all_and_to_those_who_come_later(durability, told):
    durability.appended(100, 1)
    told.wait(100, "a")
    durability.appended(200, 1)
    told.wait(200, "b")
    assert told.take(durability.failed(BROKEN)) == [("a", BROKEN), ("b", BROKEN)]
    assert durability.failed(LogReadOnly("t-0", "again")) == 0
    assert durability.read_only == "the disk is gone"
    told.wait(200, "late")
    assert told.got[-1] == ("late", BROKEN)
    assert durability.safe(200, 2) == durability.synced(200, 2, all_covered=True) == 0
    assert durability.safe_end == 0, "whoever asked was told that it is not safe"
    assert not durability.lacks(200)


def test_a_failed_write_ends_appending_and_not_what_is_being_made_safe(durability):
    durability.appended(100, 1)
    durability.write_failed("no new segment")
    durability.write_failed("the store is closed")
    assert durability.read_only == "no new segment"
    assert durability.safe(100, 1) == SHOW
    assert durability.begin(DATA) == DATA


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_that_are_wanted_while_one_syncs_share_the_next(durability):
    assert durability.begin(DATA) == DATA
    assert durability.begin(DATA) == durability.begin(DATA | INDEX) == 0
    durability.ended(DATA)
    assert durability.begin(0) == DATA | INDEX
    durability.ended(DATA | INDEX)
    assert durability.begin(0) == 0


def test_units_are_written_beside_a_sync_but_a_checkpoint_waits_for_them(durability):
    assert durability.begin(DATA) == DATA
    assert durability.begin(INDEX) == INDEX
    assert durability.begin(INDEX) == 0
    durability.ended(DATA)
    assert durability.begin(DATA | INDEX) == 0, "it would write the same units"
    assert not durability.may_sync
    durability.ended(INDEX)
    assert durability.begin(0) == DATA | INDEX


def test_no_job_begins_after_a_failure(durability):
    durability.begin(DATA)
    durability.begin(DATA | INDEX)
    durability.failed(BROKEN)
    durability.ended(DATA)
    assert [durability.begin(kind) for kind in (0, DATA, INDEX, DATA | INDEX)] == [0] * 4
    assert durability.begin_last() == 0


def test_the_last_job_covers_everything_whatever_was_under_way(durability):
    durability.begin(DATA)
    durability.begin(INDEX)
    durability.begin(DATA)
    assert durability.begin_last() == DATA | INDEX
    assert durability.begin(0) == 0


# --- by the clock -----------------------------------------------------------------------------------------------------


def test_a_dirty_partition_is_synced_by_its_interval_and_gets_checkpoints_until_it_is_clean():
    durability = Durability(FlushPolicy(1000, 2_000), 0, 0, 0)
    durability.appended(100, 1)
    assert durability.due(50.0) == 0
    assert durability.next_due(50.0) == 52.0
    assert durability.due(52.0) == DATA
    durability.begin(DATA)
    assert durability.next_due(52.0) == 54.0
    assert durability.due(54.0) == 0, "nothing is unsynced"
    assert durability.next_due(54.0) == 55.0, "it is not looked at again and again meanwhile"
    assert durability.due(55.0) == DATA | INDEX
    durability.synced(100, 1, all_covered=True)
    assert not durability.dirty
    assert durability.appended(200, 1) == SHOW | MARK_DIRTY
    assert durability.due(90.0) == 0, "the interval begins when it is dirty again"


def test_what_the_journal_has_waits_longer_for_its_checkpoint(durability):
    durability.appended(100, 1)
    assert durability.due(0.0) == 0
    assert durability.next_due(0.0) == 30.0
    assert [durability.due(29.0), durability.due(30.0)] == [0, DATA | INDEX]


# --- the table --------------------------------------------------------------------------------------------------------


def waits(mode: Mode) -> bool:
    """Whether puts wait in it."""
    durability = fresh()
    durability.mode = mode
    return durability.has_group_commit


def test_every_mode_says_what_each_event_means_or_that_it_cannot_happen():
    impossible = {mode: {event for event in DurabilityEvent if event not in TABLE[mode]} for mode in Mode}
    assert impossible == {
        Mode.SHOWING: {DurabilityEvent.BEHIND_GAP, DurabilityEvent.SAFE, DurabilityEvent.ALL_SAFE},
        Mode.WAITING: {DurabilityEvent.PAST_THRESHOLD, DurabilityEvent.ALL_SAFE, DurabilityEvent.GROUP_COMMIT},
        Mode.LEAVING: {DurabilityEvent.PAST_THRESHOLD},
        Mode.FAILED: set(DurabilityEvent)
        - {DurabilityEvent.GROUP_COMMIT, DurabilityEvent.ASYNCHRONOUS, DurabilityEvent.FAILURE},
    }
    assert set(TABLE[Mode.FAILED].values()) == {(Mode.FAILED, 0)}
    assert [mode for mode in Mode if waits(mode)] == [Mode.WAITING, Mode.LEAVING]
    for mode in (Mode.SHOWING, Mode.WAITING, Mode.LEAVING):
        assert TABLE[mode][DurabilityEvent.FAILURE] == (Mode.FAILED, TELL)


# --- any sequence -----------------------------------------------------------------------------------------------------


LONG_ENOUGH = 6
"""Records after which something may fail: most sequences would be over too soon."""


class AnySequence(RuleBasedStateMachine):
    """Events in any order that the log can give them in; what was promised to whom is kept beside."""

    def __init__(self) -> None:
        super().__init__()
        self.durability = fresh()
        self.safe_end = 0  # what a sync or the journal has covered
        self.journal: list[tuple[int, int, int]] = []  # (base, end, count) of appends that it has not made safe yet
        self.job: tuple[int, int, int] | None = None  # (kind, end, count) under way
        self.told: dict[int, int] = {}  # number of the waiter -> how often
        self.order: list[int] = []
        self.promised: list[int] = []  # ends of appends made under group commit
        self.wanted = 0
        self.readers_saw = 0
        self.unwarranted: list[object] = []

    def carry_out(self, actions: int, base: int) -> None:
        durability = self.durability
        if actions & JOURNAL:
            covered = max([self.safe_end, *(end for _, end, _ in self.journal)])  # a sync needs no replay
            if covered < base:
                self.unwarranted.append(("the journal could not replay", base, covered))
            self.journal.append((base, durability.end, durability.count))
        if actions & (SYNC | SYNC_SOON):
            self.begin(DATA)
        if actions & SHOW:
            if durability.safe_end < self.readers_saw:
                self.unwarranted.append(("readers' end went back", durability.safe_end))
            self.readers_saw = durability.safe_end
        if actions & TELL:
            for callback, error in durability.take_answers():
                callback(error)

    def begin(self, kind: int) -> None:
        self.wanted |= kind
        begun = self.durability.begin(kind)
        if begun:
            assert self.job is None
            assert begun == self.wanted
            self.wanted = 0
            self.job = begun, self.durability.end, self.durability.count

    @precondition(lambda self: self.durability.read_only is None)
    @rule(size=st.integers(1, 50), records=st.integers(1, 4), waiting=st.booleans())
    def append(self, size: int, records: int, waiting: bool) -> None:
        base = self.durability.end
        if self.durability.mode is Mode.WAITING:
            self.promised.append(base + size)
        self.carry_out(self.durability.appended(base + size, records), base)
        if waiting:
            self.wait(base + size)

    @rule(data=st.data())
    def somebody_asks(self, data: st.DataObject) -> None:
        self.wait(data.draw(st.integers(0, self.durability.end)))

    def wait(self, end: int) -> None:
        number = len(self.told)
        self.told[number] = 0
        callback: Callable[[MetaqError | None], None] = partial(self.answer, number, end)
        if self.durability.wait(end, callback):
            self.order.append(number)
        else:
            callback(self.durability.answer_for(end))

    def answer(self, number: int, end: int, error: MetaqError | None) -> None:
        self.told[number] += 1
        if number in self.order and number != self.order.pop(0):
            self.unwarranted.append(("told out of turn", number))
        if error is None and self.readers_saw < end:
            self.unwarranted.append(("told before it was shown", end))
        if (error is not None) != (self.durability.failure is not None and self.durability.safe_end < end):
            self.unwarranted.append(("told the wrong thing", end, error))

    @precondition(lambda self: self.job is not None)
    @rule(covered=st.booleans())
    def job_succeeds(self, covered: bool) -> None:
        assert self.job is not None
        (kind, end, count), self.job = self.job, None
        self.durability.ended(kind)
        self.safe_end = max(self.safe_end, end)
        self.journal = [each for each in self.journal if each[1] > end] if covered else self.journal
        clean = bool(kind & INDEX) and end == self.durability.end
        self.carry_out(self.durability.synced(end, count, all_covered=clean), end)
        self.begin(0)

    @precondition(lambda self: self.job is not None and self.durability.count > LONG_ENOUGH)
    @rule()
    def job_fails(self) -> None:
        assert self.job is not None
        (kind, _, _), self.job = self.job, None
        self.durability.ended(kind)
        self.carry_out(self.durability.failed(BROKEN), 0)
        self.begin(0)
        assert self.job is None

    @precondition(lambda self: self.journal)
    @rule(data=st.data())
    def journal_group_succeeds(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, len(self.journal)))
        _, end, count = self.journal[number - 1]
        del self.journal[:number]
        self.safe_end = max(self.safe_end, end)
        self.carry_out(self.durability.safe(end, count), end)

    @precondition(lambda self: self.journal and self.durability.count > LONG_ENOUGH)
    @rule()
    def journal_fails(self) -> None:
        self.journal.clear()
        self.carry_out(self.durability.failed(BROKEN), 0)

    @rule(kind=st.sampled_from([DATA, DATA | INDEX]))
    def something_is_wanted(self, kind: int) -> None:
        self.begin(kind)

    @rule(policy=st.sampled_from([GROUP_COMMIT, ASYNCHRONOUS, FlushPolicy(1, 5)]))
    def settings_change(self, policy: FlushPolicy) -> None:
        self.carry_out(self.durability.use(policy), self.durability.end)

    @precondition(lambda self: self.durability.count > LONG_ENOUGH)
    @rule()
    def write_fails(self) -> None:
        self.durability.write_failed("no room for a segment")

    @invariant()
    def nothing_unwarranted_has_happened(self) -> None:
        assert self.unwarranted == []

    @invariant()
    def readers_see_what_is_safe_and_no_more_than_is_there(self) -> None:
        assert self.readers_saw == self.durability.safe_end <= self.durability.end

    @invariant()
    def what_group_commit_promised_is_shown_only_when_it_is_safe(self) -> None:
        assert [end for end in self.promised if self.safe_end < end <= self.durability.safe_end] == []

    @invariant()
    def nothing_is_shown_after_a_failure(self) -> None:
        if self.durability.failure is not None:
            self.safe_at_failure = min(self.durability.safe_end, self.safe_at_failure)
            assert self.durability.safe_end == self.safe_at_failure

    safe_at_failure = 1 << 62

    @invariant()
    def waiters_are_told_once_in_the_order_they_came(self) -> None:
        assert set(self.told.values()) <= {0, 1}
        if self.durability.failure is not None:
            assert all(self.told.values())

    def teardown(self) -> None:
        """A store that closes tells everybody."""
        if self.durability.begin_last():
            self.safe_end = self.durability.end
            self.carry_out(self.durability.synced(self.durability.end, self.durability.count, all_covered=True), 0)
        assert all(count == 1 for count in self.told.values())
        self.nothing_unwarranted_has_happened()


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
