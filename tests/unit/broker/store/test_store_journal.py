"""The journal: one sync for many partitions, what a power cut leaves, truncation, and a foreign broker in between."""

import errno
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store import tuning
from metaq.broker.store.journal_format import JOURNAL_DIRECTORY, read_journal
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.replay import replay_journal
from metaq.broker.store.store import Append
from metaq.protocol.errors import LogReadOnly, MetaqError, StoreError
from metaq.protocol.record import HEADER_BYTES, encode_record
from tests.doubles.store import FaultyFiles, check_invariants
from tests.doubles.store_harness import StoreHarness, flip
from tests.raising import raising

PARTITIONS = 6
ALL = range(PARTITIONS)
FIRST_FILE, SECOND_FILE = (f"{number:020d}.journal" for number in (0, 1))


class Puts(StoreHarness):
    """Puts to many partitions: what was appended, and what was acknowledged."""

    def __init__(self, data_path: Path) -> None:
        super().__init__(data_path)
        self.group_commit = True
        self._acknowledged: dict[int, dict[int, bytes]] = {number: {} for number in ALL}  # by offset
        self.refused: list[MetaqError] = []

    @property
    def acknowledged(self) -> dict[int, list[bytes]]:
        """By partition, in the order of the log."""
        return {number: [body for _, body in sorted(found.items())] for number, found in self._acknowledged.items()}

    def _answered(self, partition: int, base: int, body: bytes, error: MetaqError | None) -> None:
        if error is None:
            self._acknowledged[partition][base] = body
        else:
            self.refused.append(error)

    def put_one(self, partition: int, body: bytes) -> None:
        log = self.store.get_or_create("t", partition)
        base = self.put(log, body)
        log.when_safe(log.end_offset, lambda error: self._answered(partition, base, body, error))

    def put_together(self, partitions: Sequence[int], text: bytes) -> None:
        """Append to several partitions as one turn of the broker does."""
        bodies = {self.store.get_or_create("t", number): text + b"-%d" % number for number in partitions}
        appends = [Append(log, *self.encoded(log.end_offset, body)) for log, body in bodies.items()]
        places = [(log, log.end_offset, body) for log, body in bodies.items()]
        errors = [each.error for each in self.store.append_many(appends)]
        self.refused += filter(None, errors)
        made = [place for place, error in zip(places, errors, strict=True) if error is None]

        def answered(errors: Sequence[MetaqError | None]) -> None:
            for (log, base, body), error in zip(made, errors, strict=True):
                self._answered(log.partition, base, body, error)

        self.store.when_all_safe([(log, log.end_offset) for log, _, _ in made], answered)

    def round(self, text: str) -> None:
        for partition in ALL:
            self.put_one(partition, f"{text}-{partition}".encode())

    def round_safe(self, *texts: str) -> None:
        """Rounds one after the other, each made safe."""
        for text in texts:
            self.round(text)
            self.threads.run_all()

    def together_safe(self, partitions: Sequence[int], *texts: bytes) -> None:
        """Turns one after the other, each made safe."""
        for text in texts:
            self.put_together(partitions, text)
            self.threads.run_all()

    def run_until_each_has(self, count: int) -> None:
        """Work until so many messages of each partition are acknowledged."""
        while any(len(each) < count for each in self.acknowledged.values()):
            self.threads.run_one()

    def come_to_rest(self, turns: int = 2) -> None:
        """Let the checkpoints of full files be made, and the files go."""
        for _ in range(turns):
            self.store.tick()
            self.threads.run_all()

    def records(self, partition: int = 0) -> dict[int, bytes]:
        if log := self.store.find("t", partition):
            check_invariants(log)
        return super().records(partition)

    def kept(self) -> dict[int, list[bytes]]:
        return {number: self.bodies(number) for number in ALL}

    def kill(self) -> PartitionLog:
        """What was acknowledged is still there, as behind a power cut."""
        log = super().kill()
        self.check()
        return log

    def lose_power(self, kept: Collection[str] = ()) -> PartitionLog:
        log = super().lose_power(kept)
        self.check()
        return log

    def check(self) -> None:
        """Everything acknowledged is where it was put."""
        for number, acknowledged in self._acknowledged.items():
            found = self.records(number)
            assert {base: found.get(base) for base in acknowledged} == acknowledged

    def journal(self, name: str = FIRST_FILE) -> Path:
        return Path(self.path, JOURNAL_DIRECTORY, name)

    def journal_files(self) -> list[str]:
        directory = self.journal().parent
        return sorted(os.listdir(directory)) if directory.exists() else []

    def entries(self) -> dict[str, int]:
        """How many entries of each partition the journal has."""
        return {name: len(each) for name, each in read_journal(self.files, self.path).entries.items()}


def each_has(*texts: str) -> dict[int, list[bytes]]:
    """All partitions with the messages of these rounds."""
    return {number: [f"{text}-{number}".encode() for text in texts] for number in ALL}


@pytest.fixture
def puts(tmp_path):
    puts = Puts(tmp_path / "data")
    yield puts
    puts.files.kill()


def test_one_sync_of_the_journal_answers_all_partitions_that_waited(puts):
    puts.round("a")
    puts.round("b")
    before = puts.files.calls["fdatasync"]
    puts.threads.run_one()  # the first put alone: its own file
    assert [len(each) for each in puts.acknowledged.values()] == [1, 0, 0, 0, 0, 0]
    assert puts.store.get("t", 3).visible_end == 0, "nothing is shown before the journal is synced"
    puts.threads.run_one()  # all the others: the journal
    assert puts.files.calls["fdatasync"] == before + 2
    assert puts.acknowledged == each_has("a", "b")
    assert len(puts.threads) == 0


def test_a_power_cut_during_the_replay_loses_nothing(puts):
    puts.together_safe(ALL, b"a")
    puts.files.lose_power()
    puts.files = FaultyFiles()
    puts.files.fail("fdatasync")
    with pytest.raises(StoreError, match="synced"):
        puts.open()
    assert puts.journal_files() != []
    puts.lose_power()
    assert puts.journal_files() == []


def test_a_kill_leaves_everything_and_the_next_life_numbers_its_files_behind(puts):
    puts.round_safe("a")
    assert puts.journal_files() == [FIRST_FILE]
    puts.kill()
    puts.round_safe("b")
    assert puts.journal_files() == [SECOND_FILE]
    puts.lose_power()
    assert puts.kept() == each_has("a", "b")


def test_one_or_two_busy_partitions_are_synced_themselves(puts):
    for _ in range(5):
        puts.put_one(0, b"x")
        puts.put_one(1, b"y")
        puts.threads.run_all()
    assert puts.journal_files() == []
    assert [len(puts.acknowledged[number]) for number in (0, 1)] == [5, 5]
    puts.lose_power()


def test_a_full_file_is_followed_by_the_next_and_goes_when_its_partitions_are_synced(puts, monkeypatch):
    monkeypatch.setattr(puts.store._journal, "_max_file_bytes", 400)
    monkeypatch.setattr(puts.store._journal, "_full_files", 1)
    puts.round("a" * 40)
    puts.threads.run_one()
    puts.threads.run_one()
    assert puts.journal_files() == [FIRST_FILE]
    puts.come_to_rest()
    assert puts.journal_files() == []
    puts.round_safe("b")
    assert puts.journal_files() == [SECOND_FILE]
    puts.lose_power()
    assert puts.kept() == each_has("a" * 40, "b")


def test_appends_of_one_turn_share_one_sync_and_are_answered_together(puts):
    puts.put_together(ALL, b"a")
    assert puts.acknowledged[0] == []
    before = puts.files.calls["fdatasync"]
    puts.threads.run_one()
    assert puts.files.calls["fdatasync"] == before + 1
    assert puts.acknowledged == each_has("a")
    assert len(puts.threads) == 0
    puts.lose_power()


def test_one_partition_that_is_read_only_does_not_refuse_the_others_of_its_turn(puts):
    puts.together_safe(ALL, b"a")
    puts.store.get("t", 2).sync_failed("broken")
    puts.together_safe(ALL, b"b")
    assert [str(error) for error in puts.refused] == [str(LogReadOnly(f"{puts.path}/t-2", "broken"))]
    assert [len(each) for each in puts.acknowledged.values()] == [2, 2, 1, 2, 2, 2]


def test_a_turn_that_fails_in_the_journal_is_answered_once_with_the_failure(puts):
    puts.put_together(ALL, b"a")
    puts.put_together(ALL, b"b")
    puts.files.fail("fdatasync")
    puts.threads.run_all()
    assert ["journal" in str(error) for error in puts.refused] == [True] * 2 * PARTITIONS
    assert puts.kept() == each_has()


def test_a_group_larger_than_the_limit_is_made_safe_in_pieces(puts, monkeypatch):
    monkeypatch.setattr(tuning, "JOURNAL_GROUP_BYTES", 3 * 23)
    puts.put_together(ALL, b"a")
    puts.threads.run_one()
    assert [puts.store.get("t", number).visible_end for number in (2, 3)] == [23, 0]
    assert puts.acknowledged[0] == []
    puts.threads.run_one()
    assert puts.acknowledged == each_has("a")


@pytest.mark.parametrize("put", [Puts.put_together, Puts.together_safe], ids=["of a turn that waits", "of all"])
def test_a_clean_stop_answers_and_leaves_no_journal(puts, put):
    put(puts, ALL, b"a")
    puts.put_together(ALL, b"b")
    puts.store.close()
    assert puts.journal_files() == []
    assert puts.acknowledged == each_has("a", "b")
    puts.open()
    puts.check()


def test_what_the_journal_has_is_left_to_a_rare_checkpoint(puts):
    puts.together_safe(ALL, b"a")
    before = puts.files.calls["fdatasync"]
    for puts.now in range(30):
        puts.come_to_rest(1)
    assert puts.files.calls["fdatasync"] == before
    puts.now = 30
    puts.come_to_rest(1)
    assert puts.files.calls["fdatasync"] == before + 2 * PARTITIONS  # data and index of each
    assert not any(log.durability.dirty for log in puts.store.logs())


def test_full_files_are_kept_until_they_are_worth_a_checkpoint(puts, monkeypatch):
    monkeypatch.setattr(puts.store._journal, "_max_file_bytes", 1)
    for number in range(3):
        puts.together_safe(ALL, b"%d" % number)
        puts.store.tick()
        assert (len(puts.threads), len(puts.journal_files())) == (0, number + 1)
    puts.together_safe(ALL, b"the fourth")
    puts.come_to_rest()
    assert puts.journal_files() == []


def test_a_put_does_not_wait_for_a_checkpoint_of_its_partition(puts):
    puts.put_one(0, b"a")
    puts.threads.run_all()
    puts.log.checkpoint()
    puts.put_one(0, b"b")
    puts.threads._calls.rotate(1)  # the journal's thread is faster than the checkpoint's
    puts.threads.run_one()
    assert puts.acknowledged[0] == [b"a", b"b"]
    assert len(puts.threads) == 1
    puts.lose_power()


@pytest.mark.parametrize("method", ["pwritev", "fdatasync"])
def test_a_failed_journal_refuses_every_put_that_waits_and_every_later_one(puts, method):
    puts.round_safe("a")
    puts.round("b")
    puts.threads.run_one()  # the first one's own file
    with puts.files.failing(method):
        puts.threads.run_all()
    assert ["journal" in str(error) for error in puts.refused] == [True] * (PARTITIONS - 1)
    for partition in (5, 0):  # which has nothing to do with it
        with pytest.raises(LogReadOnly, match="journal"):
            puts.put_one(partition, b"later")
    assert puts.bodies(5) == [b"a-5"]
    puts.lose_power()


def test_a_block_that_a_cut_has_torn_ends_the_journal(puts):
    puts.together_safe(ALL, b"a")
    first, before = puts.journal().stat().st_size, read_journal(puts.files, puts.path).entries
    puts.together_safe(ALL, b"b")
    assert puts.entries() == {f"t-{number}": 2 for number in ALL}
    data = puts.journal().read_bytes()
    for cut in (len(data) - 1, (first + len(data)) // 2, first + 3, first):
        puts.journal().write_bytes(data[:cut])
        assert read_journal(puts.files, puts.path).entries == before
    for position in (len(data) - 1, first + 40, first + 9, first):
        puts.journal().write_bytes(data)
        flip(puts.journal(), position)
        assert read_journal(puts.files, puts.path).entries == before
    puts.journal().write_bytes(data[:first] * 2)
    assert puts.entries() == {f"t-{number}": 2 for number in ALL}
    puts.journal().rename(puts.journal(SECOND_FILE))  # blocks of another file are none of this one's
    assert puts.entries() == {}


def test_many_recovered_partitions_are_synced_in_one_call(puts, monkeypatch):
    monkeypatch.setattr(tuning, "SYNCED_ONE_BY_ONE", PARTITIONS - 1)
    puts.round_safe("a")
    puts.kill()
    assert (puts.files.calls["sync_filesystem"], puts.files.calls["fdatasync"]) == (1, 0)
    puts.lose_power()


def test_a_rolled_segment_that_only_the_journal_made_safe_is_synced_before_the_journal_goes(puts):
    puts.max_segment_size = 20
    puts.round("a" * 20)
    puts.threads.run_one()
    while not puts.journal_files():  # the journal before the checkpoints of the rolled segments
        puts.threads._calls.rotate(1)
        puts.threads.run_one()
    assert sum(map(len, puts.acknowledged.values())) > 3
    puts.kill()
    puts.lose_power()


# --- what a broker that knows no journal has made of a partition ------------------------------------------------------

A, B, J = (letter * 30 + b"-3" for letter in (b"a", b"b", b"j"))  # of records of 52 bytes


@pytest.mark.parametrize(
    ("left", "foreign", "kept", "lost"),
    [
        (0, [b"java", b"more"], [b"java", b"more"], (0, 104)),
        (0, [b""], [b""], (0, 104)),
        (52, [b"java"], [A, b"java"], (52, 104)),
        (0, [J], [J, B], (0, 52)),
        (0, [J, J], [J, J], (0, 104)),
        (52, [J], [A, J], (52, 104)),
        (0, [J * 3], [J * 3], (0, 104)),
        (52, [J * 3], [A, J * 3], (52, 104)),
        (104, [J], [A, B, J], None),
        (52, [], [A, B], None),
    ],
)
def test_what_another_broker_has_put_in_the_place_of_acknowledged_messages_stays_and_is_told(
    puts, errors, left, foreign, kept, lost
):
    """left: what a power cut left of the partition's file; a broker that knows no journal went on from there."""
    puts.round_safe("a" * 30, "b" * 30)
    with puts.stopped(partition=3) as path:
        path.write_bytes(path.read_bytes()[:left] + b"".join(encode_record(body, -5, 0) for body in foreign))
    assert puts.kept() == each_has("a" * 30, "b" * 30) | {3: kept}
    told = [] if lost is None else [f"t-3: acknowledged bytes [{lost[0]}, {lost[1]}) are lost"]
    assert [line in error for line, error in zip(told, errors(), strict=True)] == [True] * len(told)


@pytest.mark.parametrize("left", [52 + HEADER_BYTES, 104], ids=["its header", "all"])
@pytest.mark.parametrize("at", [0, 52], ids=["first", "second"])
def test_a_record_whose_first_bytes_the_disk_lost_comes_back_from_the_journal(puts, errors, at, left):
    """At the edge of a sector a cut leaves of it what looks like an empty message, with its id."""
    puts.round_safe("a" * 30, "b" * 30)
    with puts.stopped(partition=3) as path:
        data = path.read_bytes()[:left]
        path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
    puts.check()
    assert puts.bodies(3) == [A, B]
    assert errors() == []


def test_the_journal_writes_nothing_behind_the_start_of_another_brokers_next_segment(puts, errors):
    puts.together_safe([3], b"x")  # alone, it is synced without the journal
    log, *others = [puts.store.get_or_create("t", number) for number in (3, 1, 2)]
    base = log.end_offset
    puts.store.append_many(
        [Append(log, *puts.encoded(base, A, B)), *(Append(each, *puts.encoded(0, b"other")) for each in others)]
    )
    puts.threads.run_all()
    with puts.stopped(partition=3) as path:
        os.truncate(path, base + 52)
        puts.data_file(base + 52, partition=3).write_bytes(encode_record(b"java", -5, 0))
    assert puts.bodies(3) == [b"x-3", A, b"java"]
    assert f"t-3: acknowledged bytes [{base + 52}, {base + 104}) are lost" in errors()[0]


# --- segments and their names -----------------------------------------------------------------------------------------


def test_a_rolled_segment_whose_end_was_lost_is_filled_up_again(puts):
    puts.max_segment_size = 40
    for number in range(4):
        puts.round(f"{number}" * 10)
        puts.threads.run_one()
        puts.threads.run_one()
    assert sum(map(len, puts.acknowledged.values())) > PARTITIONS
    puts.lose_power()


def test_a_first_segment_whose_name_was_lost_comes_back_from_the_journal(puts):
    """POSIX lets a power cut take an older name and leave a newer one, as long as the directory was not synced."""
    puts.max_segment_size = 40
    for letter in (b"a", b"b", b"c"):
        puts.put_together(ALL, letter * 10)
    puts.run_until_each_has(3)
    with puts.stopped(partition=3) as first:
        assert len(list(first.parent.glob("*.meta"))) > 1
        for path in [first, *first.parent.glob("*.index")]:
            path.unlink()
    puts.check()


def test_a_power_cut_that_keeps_only_the_newest_name_of_a_new_partition_loses_nothing(puts):
    """POSIX promises no order of names. The journal does not reach the newer one: its group was not written yet."""
    puts.max_segment_size = 60
    puts.round("a")
    puts.run_until_each_has(1)
    puts.put_one(3, b"b" * 60)
    puts.lose_power([str(max(Path(puts.path, "t-3").glob("*.meta")))])
    assert puts.acknowledged[3] == [b"a-3"]


def test_a_second_power_cut_while_a_lost_file_comes_back_loses_nothing(puts):
    """The first one has taken a segment's file and left its index, the second one the first sector of the new file."""
    puts.round_safe("a")
    puts.store.get("t", 3).checkpoint()
    puts.threads.run_all()
    puts.round_safe("b")
    with puts.stopped(partition=3) as path:
        path.unlink()
        assert path.with_suffix(".index").stat().st_size
        files = FaultyFiles()
        replay_journal(files, puts.path, lambda name: os.path.join(puts.path, name))
        came_back = path.read_bytes()
        files.lose_power([str(path)])
        first = HEADER_BYTES + len(b"a-3")
        path.write_bytes(bytes(first) + came_back[first:])
    puts.check()
    assert puts.acknowledged[3] == [b"a-3", b"b-3"]


def test_a_new_segment_waits_for_the_names_in_front_of_it_and_begins_when_they_are_on_the_disk(puts):
    puts.max_segment_size = 60
    for letter in (b"a", b"b", b"c"):
        puts.put_together(ALL, letter * 60)
    log = puts.store.get("t", 3)
    assert len(log.segments) == 1
    puts.threads.run_all()
    assert [segment.size > 0 for segment in log.segments] == [True, False]
    puts.lose_power()


def test_a_segment_that_waits_for_names_asks_for_them_once_though_a_checkpoint_waits_for_its_turn(puts):
    puts.max_segment_size = 60
    puts.round("a")
    puts.run_until_each_has(1)
    log = puts.store.get("t", 3)
    for each in puts.store.logs():  # as the journal asks when its files are full
        log._shared.syncs.checkpoint_soon(each)
    puts.put_together(ALL, b"b" * 60)
    for _ in range(50):
        if len(puts.threads):
            puts.threads.run_one()
    assert (len(puts.threads), len(log.segments)) == (0, 1)
    puts.come_to_rest(1)
    assert len(log.segments) == 2


def test_who_must_begin_a_segment_at_once_waits_for_the_names_in_front_of_it(puts):
    puts.round("a")
    puts.run_until_each_has(1)
    log = puts.store.get("t", 3)
    end = log.end_offset
    log.append(*puts.encoded(end, b"of another node"), segment=end)
    assert len(log.segments) == 2
    puts.lose_power([log.segments[-1].path])
    assert puts.acknowledged[3] == [b"a-3"]


@pytest.mark.parametrize("cause", [errno.EIO, errno.ENOSPC], ids=["bad disk", "no room"])
def test_names_that_cannot_be_synced_for_a_new_segment_make_the_partition_read_only(puts, cause):
    """A sync that has failed is never repeated: the kernel has forgotten what it could not write."""
    puts.round("a")
    puts.run_until_each_has(1)
    log = puts.store.get("t", 3)
    with puts.files.failing("fsync_directory", cause=cause), pytest.raises(LogReadOnly, match="the names of its seg"):
        log.roll()
    assert log.read_only is not None
    assert len(log.segments) == 1


def test_a_first_segment_that_retention_took_stays_away(puts):
    puts.max_segment_size = 40
    puts.together_safe(ALL, *(letter * 10 for letter in (b"a", b"b", b"c", b"d")))
    assert all(len(each) == 4 for each in puts.acknowledged.values())
    puts.store.get("t", 3).checkpoint()
    puts.threads.run_all()
    assert puts.journal_files()
    with puts.stopped(partition=3) as first:
        first.unlink()
    assert puts.bodies(3)[0] != b"a" * 10 + b"-3"
    assert puts.store.get("t", 3).first_offset > 0


def test_puts_just_after_asynchronous_flush_wait_for_what_lies_before_them(puts):
    puts.group_commit = False
    puts.round("asynchronous")
    puts.group_commit = True
    puts.store.reconfigure()
    puts.round_safe("safe")
    assert puts.journal_files() == []
    assert puts.acknowledged == each_has("asynchronous", "safe")
    puts.round_safe("journaled")
    assert puts.journal_files()
    puts.lose_power()


# --- any sequence -----------------------------------------------------------------------------------------------------


def scenario(data_path: Path, fail_at: int | None, seed: list[int]) -> tuple[Puts, int]:
    """Puts, worker steps and ticks as `seed` says, until the disk fails; then a power cut and a check."""
    puts = Puts(data_path)
    puts.max_segment_size = 120
    puts.files = FaultyFiles(fail_at)
    with suppress(MetaqError, OSError):  # the fault; what was acknowledged before must be kept
        puts.store._journal._max_file_bytes = 500
        puts.store._journal._full_files = 1 + seed[1] % 3
        for number in seed:
            if number < PARTITIONS:
                puts.put_one(number, b"%d-" % number * (number + 1))
            elif number == PARTITIONS + 1:
                puts.put_together(range(seed[0] % 3, PARTITIONS), b"together")
            elif number == PARTITIONS:
                puts.now += 1
                puts.store.tick()
            elif len(puts.threads):
                puts.threads.run_one()
    changes = puts.files.changes
    puts.lose_power()
    return puts, changes


@settings(max_examples=60, deadline=None)
@given(seed=st.lists(st.integers(0, PARTITIONS + 4), min_size=10, max_size=120), data=st.data())
def test_acknowledged_puts_survive_a_fault_and_a_power_cut_at_any_change(tmp_path_factory, seed, data):
    _, changes = scenario(tmp_path_factory.mktemp("whole"), None, seed)
    scenario(tmp_path_factory.mktemp("faulty"), data.draw(st.integers(1, max(1, changes))), seed)


# --- the journal's own files ------------------------------------------------------------------------------------------


def test_a_copy_that_somebody_put_beside_the_journal_is_left_alone(puts):
    puts.round_safe("a")
    puts.journal("backup.journal").write_bytes(puts.journal().read_bytes())
    puts.lose_power()
    assert puts.journal_files() == ["backup.journal"]


def test_good_blocks_behind_a_damaged_one_come_back_and_the_file_is_kept(puts, errors):
    for partitions, text in ((range(4), b"a"), (range(3, PARTITIONS), b"b"), (range(1, 4), b"c")):
        puts.together_safe(partitions, text)
    puts.files.lose_power()
    data = puts.journal().read_bytes()
    starts = [each for each in range(len(data)) if data[each : each + 4] == b"MTQK"]
    damaged = flip(puts.journal(), starts[1] + 60)  # in the middle of the second block
    puts._start_anew()
    assert puts.kept() == {0: [b"a-0"], 1: [b"a-1", b"c-1"], 2: [b"a-2", b"c-2"], 3: [b"a-3"], 4: [], 5: []}
    assert puts.journal_files() == [f"{FIRST_FILE}.damaged"]
    assert puts.journal(f"{FIRST_FILE}.damaged").read_bytes() == damaged
    first, second, _ = errors()
    assert "is damaged in [" in first
    assert "t-3: acknowledged bytes [23, 46) are lost" in second
    puts.restart()
    assert puts.journal_files() == [f"{FIRST_FILE}.damaged"]


def test_a_torn_last_block_is_told_and_its_file_goes(puts, caplog):
    puts.together_safe(range(3), b"a")
    puts.files.lose_power()
    puts.journal().write_bytes(puts.journal().read_bytes() + b"MTQK and some more of it")
    puts._start_anew()
    puts.check()
    assert "the last 24 bytes are no whole block" in caplog.text
    assert puts.journal_files() == []


def test_a_failed_partition_keeps_its_own_journal_files_and_no_later_ones(puts):
    puts.store._journal._max_file_bytes = 1
    puts.store._journal._full_files = 2
    puts.together_safe(range(3), b"a")
    puts.log.sync_failed("its disk is gone")
    for number in range(8):
        puts.together_safe(range(1, 4), b"%d" % number)
        puts.come_to_rest(3)
    files = puts.journal_files()
    assert files[0] == FIRST_FILE
    assert len(files) <= 3
    puts.lose_power()


def test_a_journal_file_that_cannot_be_removed_does_not_stop_the_start(puts, monkeypatch, caplog):
    puts.round_safe("a")
    with monkeypatch.context() as patch:
        patch.setattr(FaultyFiles, "unlink", raising(PermissionError(1, "Operation not permitted")))
        puts.kill()
    assert "could not be removed" in caplog.text
    puts.round_safe("b")
    assert puts.journal_files() == [FIRST_FILE, SECOND_FILE]
    puts.lose_power()
    assert puts.kept() == puts.acknowledged == each_has("a", "b")
    assert puts.journal_files() == []


def test_recovered_partitions_behind_links_are_synced_on_their_own_disk(puts, monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "SYNCED_ONE_BY_ONE", 1)
    puts.round_safe("a")
    (elsewhere := tmp_path / "another disk").mkdir()
    with puts.stopped():
        for number in ALL:
            here = puts.data_file(partition=number).parent
            here.rename(elsewhere / here.name)
            here.symlink_to(elsewhere / here.name)
        monkeypatch.setattr(FaultyFiles, "device", lambda _, path: 2 if os.path.islink(path) else 1)
    assert puts.files.calls["sync_filesystem"] == 2, "the links' disk, and the data path with their names"


def test_the_journal_goes_when_it_is_turned_over_and_nobody_waits_for_it(puts):
    journal = puts.store._journal
    puts.round("a")
    assert journal.turn_over() is None, "a group is under way"
    puts.threads.run_all()
    number = journal.turn_over()
    assert number is not None
    assert journal.has_older(number)
    puts.threads.run_all()
    puts.come_to_rest(3)
    assert not journal.has_older(number)
