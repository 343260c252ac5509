"""The journal: one sync for many partitions, what a power cut leaves, truncation, and a foreign broker in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store import tuning
from metaq.broker.store.batch import encode_puts
from metaq.broker.store.journal_format import JOURNAL_DIRECTORY, read_journal
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.replay import replay_journal
from metaq.broker.store.store import Append
from metaq.protocol.errors import LogReadOnly, MetaqError, StoreError
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import HEADER_BYTES, Buffer, checksum, encode_record, iter_headers
from tests.doubles.store import FaultyFiles, check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness

PARTITIONS = 6


class Puts:
    """Puts to many partitions: what was appended, and what was acknowledged."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self._acknowledged: dict[int, dict[int, bytes]] = {number: {} for number in range(PARTITIONS)}  # by offset
        self.refused: list[MetaqError] = []
        self._next_id = 1 << 40

    @property
    def acknowledged(self) -> dict[int, list[bytes]]:
        """By partition, in the order of the log."""
        return {number: [body for _, body in sorted(found.items())] for number, found in self._acknowledged.items()}

    def put(self, partition: int, body: bytes) -> None:
        log = self.harness.store.get_or_create("t", partition)
        self._next_id += 1
        base = log.append(*encode_puts([(0, checksum(body), body)], log.end_offset, [self._next_id], NOW_MS))

        def answered(error: MetaqError | None) -> None:
            if error is None:
                self._acknowledged[partition][base] = body
            else:
                self.refused.append(error)

        log.when_safe(log.end_offset, answered)

    def put_together(self, partitions: Sequence[int], text: bytes) -> None:
        """Append to several partitions as one turn of the broker does."""
        store = self.harness.store
        appends = []
        for partition in partitions:
            log = store.get_or_create("t", partition)
            self._next_id += 1
            body = text + b"-%d" % partition
            data, units = encode_puts([(0, checksum(body), body)], log.end_offset, [self._next_id], NOW_MS)
            appends.append((log, data, units, (log.end_offset, body)))
        errors = [each.error for each in store.append_many(Append(*each[:3]) for each in appends)]
        self.refused += filter(None, errors)
        made = [each for each, error in zip(appends, errors, strict=True) if error is None]

        def answered(errors: Sequence[MetaqError | None]) -> None:
            for (log, _, _, (base, body)), error in zip(made, errors, strict=True):
                if error is None:
                    self._acknowledged[log.partition][base] = body
                else:
                    self.refused.append(error)

        store.when_all_safe([(log, log.end_offset) for log, _, _, _ in made], answered)

    def round(self, text: str) -> None:
        for partition in range(PARTITIONS):
            self.put(partition, f"{text}-{partition}".encode())

    def kept(self) -> dict[int, list[bytes]]:
        return {number: bodies(self.harness, number) for number in range(PARTITIONS)}

    def check(self) -> None:
        """Everything acknowledged is where it was put."""
        for number, acknowledged in self._acknowledged.items():
            found = records(self.harness, number)
            assert {base: found.get(base) for base in acknowledged} == acknowledged


def others(puts: Puts, partitions: Sequence[int]) -> list[tuple[PartitionLog, Sequence[Buffer], Buffer]]:
    """An append of one message to each."""
    logs = [puts.harness.store.get_or_create("t", partition) for partition in partitions]
    return [
        (log, *encode_puts([(0, checksum(b"other"), b"other")], log.end_offset, [(1 << 42) + number], NOW_MS))
        for number, log in enumerate(logs)
    ]


def bodies(harness: StoreHarness, partition: int) -> list[bytes]:
    return list(records(harness, partition).values())


def records(harness: StoreHarness, partition: int) -> dict[int, bytes]:
    """Bodies by offset."""
    try:
        log = harness.store.get("t", partition)
    except MetaqError:
        return {}
    check_invariants(log)
    found: dict[int, bytes] = {}
    offset = log.first_offset
    while offset < log.visible_end:
        data = log.segments.snapshot().read(offset, 1 << 30)
        found |= {offset + header.start: data[header.end - header.length : header.end] for header in iter_headers(data)}
        offset += len(data)
    return found


def journal_files(harness: StoreHarness) -> list[str]:
    directory = Path(harness.path, JOURNAL_DIRECTORY)
    return sorted(os.listdir(directory)) if directory.exists() else []


@pytest.fixture
def puts(harness: StoreHarness) -> Puts:
    harness.group_commit = True
    return Puts(harness)


def test_one_sync_of_the_journal_answers_all_partitions_that_waited(puts: Puts) -> None:
    puts.round("a")
    puts.round("b")
    before = puts.harness.files.calls["fdatasync"]
    puts.harness.threads.run_one()  # the first put alone: its own file
    puts.harness.threads.run_one()  # all the others: the journal
    assert puts.harness.files.calls["fdatasync"] == before + 2
    assert puts.acknowledged == {number: [b"a-%d" % number, b"b-%d" % number] for number in range(PARTITIONS)}
    assert len(puts.harness.threads) == 0


def test_nothing_is_shown_before_the_journal_is_synced(puts: Puts) -> None:
    puts.round("a")
    puts.harness.threads.run_one()
    assert [len(each) for each in puts.acknowledged.values()] == [1, 0, 0, 0, 0, 0]
    assert puts.harness.store.get("t", 3).visible_end == 0


def test_a_power_cut_during_the_replay_loses_nothing(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    puts.harness.threads.run_all()
    puts.harness.files.lose_power()
    puts.harness.files = FaultyFiles()
    puts.harness.files.fail("fdatasync")
    with pytest.raises(StoreError, match="synced"):
        puts.harness.open()
    assert journal_files(puts.harness) != []
    puts.harness.lose_power()
    puts.check()
    assert journal_files(puts.harness) == []


def test_a_kill_leaves_everything_and_the_next_life_numbers_its_files_behind(puts: Puts) -> None:
    puts.round("a")
    puts.harness.threads.run_all()
    assert journal_files(puts.harness) == ["00000000000000000000.journal"]
    puts.harness.kill()
    puts.check()
    puts.round("b")
    puts.harness.threads.run_all()
    assert journal_files(puts.harness) == ["00000000000000000001.journal"]
    puts.harness.lose_power()
    assert puts.kept() == {number: [b"a-%d" % number, b"b-%d" % number] for number in range(PARTITIONS)}


def test_one_or_two_busy_partitions_are_synced_themselves(puts: Puts) -> None:
    for _ in range(5):
        puts.put(0, b"x")
        puts.put(1, b"y")
        puts.harness.threads.run_all()
    assert journal_files(puts.harness) == []
    assert [len(puts.acknowledged[number]) for number in (0, 1)] == [5, 5]
    puts.harness.lose_power()
    puts.check()


def test_a_full_file_is_followed_by_the_next_and_goes_when_its_partitions_are_synced(
    puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puts.harness.store._journal, "_max_file_bytes", 400)
    monkeypatch.setattr(puts.harness.store._journal, "_full_files", 1)
    puts.round("a" * 40)
    puts.harness.threads.run_one()
    puts.harness.threads.run_one()
    assert journal_files(puts.harness) == ["00000000000000000000.journal"]
    puts.harness.store.tick()
    puts.harness.threads.run_all()  # the checkpoints of its partitions
    puts.harness.store.tick()
    puts.harness.threads.run_all()  # its removal
    assert journal_files(puts.harness) == []
    puts.round("b")
    puts.harness.threads.run_all()
    assert journal_files(puts.harness) == ["00000000000000000001.journal"]
    puts.harness.lose_power()
    puts.check()
    assert all(len(each) == 2 for each in puts.kept().values())


def test_appends_of_one_turn_share_one_sync_and_are_answered_together(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    assert puts.acknowledged[0] == []
    before = puts.harness.files.calls["fdatasync"]
    puts.harness.threads.run_one()
    assert puts.harness.files.calls["fdatasync"] == before + 1
    assert puts.acknowledged == {number: [b"a-%d" % number] for number in range(PARTITIONS)}
    assert len(puts.harness.threads) == 0
    puts.harness.lose_power()
    puts.check()


def test_one_partition_that_is_read_only_does_not_refuse_the_others_of_its_turn(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    puts.harness.threads.run_all()
    puts.harness.store.get("t", 2).sync_failed("broken")
    puts.put_together(range(PARTITIONS), b"b")
    puts.harness.threads.run_all()
    assert [str(error) for error in puts.refused] == [str(LogReadOnly(f"{puts.harness.path}/t-2", "broken"))]
    assert [len(each) for each in puts.acknowledged.values()] == [2, 2, 1, 2, 2, 2]


def test_a_turn_that_fails_in_the_journal_is_answered_once_with_the_failure(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    puts.put_together(range(PARTITIONS), b"b")
    puts.harness.files.fail("fdatasync")
    puts.harness.threads.run_all()
    assert len(puts.refused) == 2 * PARTITIONS
    assert all("journal" in str(error) for error in puts.refused)
    assert puts.kept() == {number: [] for number in range(PARTITIONS)}


def test_a_group_larger_than_the_limit_is_made_safe_in_pieces(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "JOURNAL_GROUP_BYTES", 3 * 23)
    puts.put_together(range(PARTITIONS), b"a")
    puts.harness.threads.run_one()
    assert [puts.harness.store.get("t", number).visible_end for number in (2, 3)] == [23, 0]
    assert puts.acknowledged[0] == []
    puts.harness.threads.run_one()
    assert puts.acknowledged == {number: [b"a-%d" % number] for number in range(PARTITIONS)}


def test_a_stop_answers_a_turn_that_waits(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    puts.put_together(range(PARTITIONS), b"b")
    puts.harness.store.close()
    assert all(len(each) == 2 for each in puts.acknowledged.values())
    assert journal_files(puts.harness) == []


def test_what_the_journal_has_is_left_to_a_rare_checkpoint(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    puts.harness.threads.run_all()
    before = puts.harness.files.calls["fdatasync"]
    for puts.harness.now in range(30):
        puts.harness.store.tick()
        puts.harness.threads.run_all()
    assert puts.harness.files.calls["fdatasync"] == before
    puts.harness.now = 30
    puts.harness.store.tick()
    puts.harness.threads.run_all()
    assert puts.harness.files.calls["fdatasync"] == before + 2 * PARTITIONS  # data and index of each
    assert not any(log.durability.dirty for log in puts.harness.store.logs())


def test_full_files_are_kept_until_they_are_worth_a_checkpoint(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts.harness.store._journal, "_max_file_bytes", 1)
    for number in range(3):
        puts.put_together(range(PARTITIONS), b"%d" % number)
        puts.harness.threads.run_all()
        puts.harness.store.tick()
        assert len(puts.harness.threads) == 0
        assert len(journal_files(puts.harness)) == number + 1
    puts.put_together(range(PARTITIONS), b"the fourth")
    puts.harness.threads.run_all()
    for _ in range(2):
        puts.harness.store.tick()
        puts.harness.threads.run_all()
    assert journal_files(puts.harness) == []


def test_a_put_does_not_wait_for_a_checkpoint_of_its_partition(puts: Puts) -> None:
    puts.put(0, b"a")
    puts.harness.threads.run_all()
    puts.harness.store.get("t", 0).checkpoint()
    puts.put(0, b"b")
    puts.harness.threads._calls.rotate(1)  # the journal's thread is faster than the checkpoint's
    puts.harness.threads.run_one()
    assert puts.acknowledged[0] == [b"a", b"b"]
    assert len(puts.harness.threads) == 1
    puts.harness.lose_power()
    puts.check()


def test_a_clean_stop_leaves_no_journal(puts: Puts) -> None:
    puts.round("a")
    puts.harness.threads.run_all()
    puts.round("b")
    puts.harness.store.close()
    assert journal_files(puts.harness) == []
    assert all(len(each) == 2 for each in puts.acknowledged.values())
    puts.harness.open()
    puts.check()


@pytest.mark.parametrize("method", ["pwritev", "fdatasync"])
def test_a_failed_journal_refuses_every_put_that_waits_and_every_later_one(puts: Puts, method: str) -> None:
    puts.round("a")
    puts.harness.threads.run_all()
    puts.round("b")
    puts.harness.threads.run_one()  # the first one's own file
    puts.harness.files.fail(method)
    puts.harness.threads.run_all()
    assert len(puts.refused) == PARTITIONS - 1
    assert all("journal" in str(error) for error in puts.refused)
    puts.harness.files.heal()
    with pytest.raises(LogReadOnly, match="journal"):
        puts.put(5, b"later")
    with pytest.raises(LogReadOnly, match="journal"):
        puts.put(0, b"of a partition that has nothing to do with it")
    assert bodies(puts.harness, 5) == [b"a-5"]
    puts.harness.lose_power()
    puts.check()


def test_a_block_that_a_cut_has_torn_ends_the_journal(puts: Puts) -> None:
    puts.put_together(range(PARTITIONS), b"a")
    puts.harness.threads.run_all()
    files = puts.harness.files
    path = Path(puts.harness.path, JOURNAL_DIRECTORY, "00000000000000000000.journal")
    first = path.stat().st_size
    before = read_journal(files, puts.harness.path).entries
    puts.put_together(range(PARTITIONS), b"b")
    puts.harness.threads.run_all()
    whole = read_journal(files, puts.harness.path).entries
    assert sorted(before) == sorted(whole) == [f"t-{number}" for number in range(PARTITIONS)]
    assert [len(each) for each in whole.values()] == [2] * PARTITIONS
    data = path.read_bytes()
    for cut in (len(data) - 1, (first + len(data)) // 2, first + 3, first):
        path.write_bytes(data[:cut])
        assert read_journal(files, puts.harness.path).entries == before
    for position in (len(data) - 1, first + 40, first + 9, first):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert read_journal(files, puts.harness.path).entries == before
    path.write_bytes(data[:first] * 2)
    assert [len(each) for each in read_journal(files, puts.harness.path).entries.values()] == [2] * PARTITIONS
    path.rename(path.with_name("00000000000000000001.journal"))  # blocks of another file are none of this one's
    assert read_journal(files, puts.harness.path).entries == {}


def test_many_recovered_partitions_are_synced_in_one_call(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SYNCED_ONE_BY_ONE", PARTITIONS - 1)
    puts.round("a")
    puts.harness.threads.run_all()
    puts.harness.kill()
    puts.check()
    assert puts.harness.files.calls["sync_filesystem"] == 1
    assert puts.harness.files.calls["fdatasync"] == 0
    puts.harness.lose_power()
    puts.check()


def test_a_rolled_segment_that_only_the_journal_made_safe_is_synced_before_the_journal_goes(puts: Puts) -> None:
    puts.harness.max_segment_size = 20
    puts.round("a" * 20)
    puts.harness.threads.run_one()
    calls = puts.harness.threads._calls
    while not journal_files(puts.harness):  # the journal before the checkpoints of the rolled segments
        calls.rotate(1)
        puts.harness.threads.run_one()
    assert sum(map(len, puts.acknowledged.values())) > 3
    puts.harness.kill()
    puts.harness.lose_power()
    puts.check()


def test_what_another_broker_has_written_meanwhile_is_never_overwritten(puts: Puts) -> None:
    puts.round("a" * 30)
    puts.harness.threads.run_all()
    puts.harness.files.kill()
    # a broker that knows no journal cut a torn tail and went on with records of its own
    path = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    foreign = encode_record(b"java", -5, 0) + encode_record(b"more", -4, 0)
    path.write_bytes(foreign)
    puts.harness._start_anew()
    assert bodies(puts.harness, 3) == [b"java", b"more"]
    assert bodies(puts.harness, 4) == [b"a" * 30 + b"-4"]


A, B, J = (letter * 30 + b"-3" for letter in (b"a", b"b", b"j"))  # of records of 52 bytes


@pytest.mark.parametrize(
    ("left", "foreign", "kept", "lost"),
    [
        (0, [b"java", b"more"], [b"java", b"more"], (0, 104)),
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
def test_what_another_broker_has_put_in_the_place_of_acknowledged_messages_is_told(
    puts: Puts,
    caplog: pytest.LogCaptureFixture,
    left: int,
    foreign: list[bytes],
    kept: list[bytes],
    lost: tuple[int, int] | None,
) -> None:
    """left: what a power cut left of the partition's file; a broker that knows no journal went on from there."""
    for letter in "ab":
        puts.round(letter * 30)
        puts.harness.threads.run_all()
    puts.harness.files.kill()
    path = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    path.write_bytes(path.read_bytes()[:left] + b"".join(encode_record(body, -5, 0) for body in foreign))
    puts.harness._start_anew()
    assert bodies(puts.harness, 3) == kept
    assert bodies(puts.harness, 4) == [b"a" * 30 + b"-4", b"b" * 30 + b"-4"]
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    if lost is None:
        assert errors == []
    else:
        assert len(errors) == 1
        assert f"t-3: acknowledged bytes [{lost[0]}, {lost[1]}) are lost" in errors[0]


@pytest.mark.parametrize("left", [52 + HEADER_BYTES, 104], ids=["its header", "all"])
@pytest.mark.parametrize("at", [0, 52], ids=["first", "second"])
def test_a_record_whose_first_bytes_the_disk_lost_comes_back_from_the_journal(
    puts: Puts, caplog: pytest.LogCaptureFixture, at: int, left: int
) -> None:
    """At the edge of a sector a cut leaves of it what looks like an empty message, with its id."""
    puts._next_id = message_id(counter_at(NOW_MS), 0)  # no byte of it is zero in front, as of every id of a broker
    for letter in "ab":
        puts.round(letter * 30)
        puts.harness.threads.run_all()
    puts.harness.files.kill()
    path = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    data = path.read_bytes()[:left]
    path.write_bytes(data[:at] + bytes(8) + data[at + 8 :])
    puts.harness._start_anew()
    puts.check()
    assert bodies(puts.harness, 3) == [A, B]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_empty_message_of_another_broker_in_the_place_of_an_acknowledged_one_stays(
    puts: Puts, caplog: pytest.LogCaptureFixture
) -> None:
    puts.round("a" * 30)
    puts.harness.threads.run_all()
    puts.harness.files.kill()
    path = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    path.write_bytes(encode_record(b"", -5, 0))
    puts.harness._start_anew()
    assert bodies(puts.harness, 3) == [b""]
    assert "t-3: acknowledged bytes [0, 52) are lost" in caplog.text


def test_the_journal_writes_nothing_behind_the_start_of_another_brokers_next_segment(
    puts: Puts, caplog: pytest.LogCaptureFixture
) -> None:
    puts.put_together([3], b"x")  # alone, it is synced without the journal
    puts.harness.threads.run_all()
    log = puts.harness.store.get("t", 3)
    two = encode_puts([(0, checksum(body), body) for body in (A, B)], log.end_offset, [1 << 41, 1 + (1 << 41)], NOW_MS)
    base = puts.harness.store.get("t", 3).end_offset
    puts.harness.store.append_many(Append(*each) for each in [(log, *two), *others(puts, (1, 2))])
    puts.harness.threads.run_all()
    puts.harness.files.kill()
    path = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    path.write_bytes(path.read_bytes()[: base + 52])
    path.with_name(f"{base + 52:020d}.meta").write_bytes(encode_record(b"java", -5, 0))
    puts.harness._start_anew()
    assert bodies(puts.harness, 3) == [b"x-3", A, b"java"]
    assert f"t-3: acknowledged bytes [{base + 52}, {base + 104}) are lost" in caplog.text


def test_a_rolled_segment_whose_end_was_lost_is_filled_up_again(puts: Puts) -> None:
    puts.harness.max_segment_size = 40
    for number in range(4):
        puts.round(f"{number}" * 10)
        puts.harness.threads.run_one()
        puts.harness.threads.run_one()
    acknowledged = {number: list(each) for number, each in puts.acknowledged.items()}
    assert sum(map(len, acknowledged.values())) > PARTITIONS
    puts.harness.lose_power()
    puts.check()


def test_a_first_segment_whose_name_was_lost_comes_back_from_the_journal(puts: Puts) -> None:
    """POSIX lets a power cut take an older name and leave a newer one, as long as the directory was not synced."""
    puts.harness.max_segment_size = 40
    for letter in "abc":
        puts.put_together(range(PARTITIONS), letter.encode() * 10)
    while any(len(each) < 3 for each in puts.acknowledged.values()):
        puts.harness.threads.run_one()
    puts.harness.files.kill()
    first = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    assert len(list(first.parent.glob("*.meta"))) > 1
    for path in first.parent.glob("*.index"):
        path.unlink()
    first.unlink()
    puts.harness._start_anew()
    puts.check()


def test_a_power_cut_that_keeps_only_the_newest_name_of_a_new_partition_loses_nothing(puts: Puts) -> None:
    """POSIX promises no order of names. The journal does not reach the newer one: its group was not written yet."""
    puts.harness.max_segment_size = 60
    puts.round("a")
    while any(not each for each in puts.acknowledged.values()):
        puts.harness.threads.run_one()
    puts.put(3, b"b" * 60)
    newest = max(Path(puts.harness.path, "t-3").glob("*.meta"))
    puts.harness.lose_power([str(newest)])
    puts.check()
    assert puts.acknowledged[3] == [b"a-3"]


def test_a_second_power_cut_while_a_lost_file_comes_back_loses_nothing(puts: Puts) -> None:
    """The first one has taken a segment's file and left its index, the second one the first sector of the new file."""
    puts.round("a")
    puts.harness.threads.run_all()
    puts.harness.store.get("t", 3).checkpoint()
    puts.harness.threads.run_all()
    puts.round("b")
    puts.harness.threads.run_all()
    puts.harness.files.kill()
    path = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    path.unlink()
    assert path.with_suffix(".index").stat().st_size
    files = FaultyFiles()
    replay_journal(files, puts.harness.path, lambda name: os.path.join(puts.harness.path, name))
    came_back = path.read_bytes()
    files.lose_power([str(path)])
    first = HEADER_BYTES + len(b"a-3")
    path.write_bytes(bytes(first) + came_back[first:])
    puts.harness._start_anew()
    puts.check()
    assert puts.acknowledged[3] == [b"a-3", b"b-3"]


def test_a_new_segment_waits_for_the_names_in_front_of_it_and_begins_when_they_are_on_the_disk(puts: Puts) -> None:
    puts.harness.max_segment_size = 60
    for letter in "abc":
        puts.put_together(range(PARTITIONS), letter.encode() * 60)
    log = puts.harness.store.get("t", 3)
    assert len(log.segments) == 1
    puts.harness.threads.run_all()
    assert [segment.size > 0 for segment in log.segments] == [True, False]
    puts.harness.lose_power()
    puts.check()


def test_a_segment_that_waits_for_names_asks_for_them_once_though_a_checkpoint_waits_for_its_turn(puts: Puts) -> None:
    puts.harness.max_segment_size = 60
    puts.round("a")
    while any(not each for each in puts.acknowledged.values()):
        puts.harness.threads.run_one()
    log = puts.harness.store.get("t", 3)
    for each in puts.harness.store.logs():  # as the journal asks when its files are full
        log._shared.syncs.checkpoint_soon(each)
    puts.put_together(range(PARTITIONS), b"b" * 60)
    for _ in range(50):
        if len(puts.harness.threads):
            puts.harness.threads.run_one()
    assert not len(puts.harness.threads)
    assert len(log.segments) == 1
    puts.harness.store.tick()
    puts.harness.threads.run_all()
    assert len(log.segments) == 2


def test_who_must_begin_a_segment_at_once_waits_for_the_names_in_front_of_it(puts: Puts) -> None:
    puts.round("a")
    while any(not each for each in puts.acknowledged.values()):
        puts.harness.threads.run_one()
    log = puts.harness.store.get("t", 3)
    end = log.end_offset
    body = b"of another node"
    log.append(*encode_puts([(0, checksum(body), body)], end, [1 << 42], NOW_MS), segment=end)
    assert len(log.segments) == 2
    puts.harness.lose_power([log.segments[-1].path])
    puts.check()
    assert puts.acknowledged[3] == [b"a-3"]


@pytest.mark.parametrize("cause", [errno.EIO, errno.ENOSPC], ids=["bad disk", "no room"])
def test_names_that_cannot_be_synced_for_a_new_segment_make_the_partition_read_only(puts: Puts, cause: int) -> None:
    """A sync that has failed is never repeated: the kernel has forgotten what it could not write."""
    puts.round("a")
    while any(not each for each in puts.acknowledged.values()):
        puts.harness.threads.run_one()
    log = puts.harness.store.get("t", 3)
    puts.harness.files.error = OSError(cause, os.strerror(cause))
    puts.harness.files.fail("fsync_directory")
    with pytest.raises(LogReadOnly, match="the names of its segments"):
        log.roll()
    assert log.read_only is not None
    assert len(log.segments) == 1


def test_a_first_segment_that_retention_took_stays_away(puts: Puts) -> None:
    puts.harness.max_segment_size = 40
    for letter in "abcd":
        puts.put_together(range(PARTITIONS), letter.encode() * 10)
        puts.harness.threads.run_all()
    assert all(len(each) == 4 for each in puts.acknowledged.values())
    puts.harness.store.get("t", 3).checkpoint()
    puts.harness.threads.run_all()
    assert journal_files(puts.harness)
    puts.harness.files.kill()
    first = Path(puts.harness.path, "t-3", "00000000000000000000.meta")
    first.unlink()
    puts.harness._start_anew()
    assert bodies(puts.harness, 3)[0] != b"a" * 10 + b"-3"
    assert puts.harness.store.get("t", 3).first_offset > 0


def test_a_copy_that_somebody_put_beside_the_journal_is_left_alone(puts: Puts) -> None:
    puts.round("a")
    puts.harness.threads.run_all()
    path = Path(puts.harness.path, JOURNAL_DIRECTORY, "00000000000000000000.journal")
    copy = path.with_name("backup.journal")
    copy.write_bytes(path.read_bytes())
    puts.harness.lose_power()
    puts.check()
    assert journal_files(puts.harness) == [copy.name]


def test_puts_just_after_asynchronous_flush_wait_for_what_lies_before_them(puts: Puts) -> None:
    puts.harness.group_commit = False
    puts.round("asynchronous")
    puts.harness.group_commit = True
    puts.harness.store.reconfigure()
    puts.round("safe")
    puts.harness.threads.run_all()
    assert journal_files(puts.harness) == []
    assert all(len(each) == 2 for each in puts.acknowledged.values())
    puts.round("journaled")
    puts.harness.threads.run_all()
    assert journal_files(puts.harness)
    puts.harness.lose_power()
    puts.check()


def scenario(data_path: Path, fail_at: int | None, seed: list[int]) -> tuple[Puts, int]:
    """Puts, worker steps and ticks as `seed` says, until the disk fails; then a power cut and a check."""
    harness = StoreHarness(data_path)
    harness.group_commit = True
    harness.max_segment_size = 120
    harness.files = FaultyFiles(fail_at)
    puts = Puts(harness)
    try:
        harness.store._journal._max_file_bytes = 500
        harness.store._journal._full_files = 1 + seed[1] % 3
        for number in seed:
            if number < PARTITIONS:
                puts.put(number, b"%d-" % number * (number + 1))
            elif number == PARTITIONS + 1:
                puts.put_together(range(seed[0] % 3, PARTITIONS), b"together")
            elif number == PARTITIONS:
                harness.now += 1
                harness.store.tick()
            elif len(harness.threads):
                harness.threads.run_one()
    except (MetaqError, OSError):
        pass  # the fault; what was acknowledged before must be kept
    changes = harness.files.changes
    harness.lose_power()
    return puts, changes


@settings(max_examples=60, deadline=None)
@given(seed=st.lists(st.integers(0, PARTITIONS + 4), min_size=10, max_size=120), data=st.data())
def test_acknowledged_puts_survive_a_fault_and_a_power_cut_at_any_change(
    tmp_path_factory: pytest.TempPathFactory, seed: list[int], data: st.DataObject
) -> None:
    puts, changes = scenario(tmp_path_factory.mktemp("whole"), None, seed)
    puts.check()
    fail_at = data.draw(st.integers(1, max(1, changes)))
    puts, _ = scenario(tmp_path_factory.mktemp("faulty"), fail_at, seed)
    puts.check()


JOURNAL_FILE = "00000000000000000000.journal"


def damage_block(puts: Puts, number: int) -> Path:
    """Flip a byte in the middle of a block of the journal's first file."""
    path = Path(puts.harness.path, JOURNAL_DIRECTORY, JOURNAL_FILE)
    data = bytearray(path.read_bytes())
    starts = [each for each in range(len(data)) if data[each : each + 4] == b"MTQK"]
    data[starts[number] + 60] ^= 1
    path.write_bytes(data)
    return path


def test_good_blocks_behind_a_damaged_one_come_back_and_the_file_is_kept(
    puts: Puts, caplog: pytest.LogCaptureFixture
) -> None:
    puts.put_together(range(4), b"a")
    puts.harness.threads.run_all()
    puts.put_together(range(3, PARTITIONS), b"b")
    puts.harness.threads.run_all()
    puts.put_together(range(1, 4), b"c")
    puts.harness.threads.run_all()
    puts.harness.files.lose_power()
    damaged = damage_block(puts, 1).read_bytes()
    puts.harness._start_anew()
    assert puts.kept() == {0: [b"a-0"], 1: [b"a-1", b"c-1"], 2: [b"a-2", b"c-2"], 3: [b"a-3"], 4: [], 5: []}
    assert journal_files(puts.harness) == [f"{JOURNAL_FILE}.damaged"]
    assert Path(puts.harness.path, JOURNAL_DIRECTORY, f"{JOURNAL_FILE}.damaged").read_bytes() == damaged
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "is damaged in [" in errors[0]
    assert "t-3: acknowledged bytes [23, 46) are lost" in errors[1]
    assert len(errors) == 3, errors
    puts.harness.restart()
    assert journal_files(puts.harness) == [f"{JOURNAL_FILE}.damaged"]


def test_a_torn_last_block_is_told_and_its_file_goes(puts: Puts, caplog: pytest.LogCaptureFixture) -> None:
    puts.put_together(range(3), b"a")
    puts.harness.threads.run_all()
    puts.harness.files.lose_power()
    path = Path(puts.harness.path, JOURNAL_DIRECTORY, JOURNAL_FILE)
    path.write_bytes(path.read_bytes() + b"MTQK and some more of it")
    puts.harness._start_anew()
    puts.check()
    assert "the last 24 bytes are no whole block" in caplog.text
    assert journal_files(puts.harness) == []


def test_a_failed_partition_keeps_its_own_journal_files_and_no_later_ones(puts: Puts) -> None:
    puts.harness.store._journal._max_file_bytes = 1
    puts.harness.store._journal._full_files = 2
    puts.put_together(range(3), b"a")
    puts.harness.threads.run_all()
    puts.harness.store.get("t", 0).sync_failed("its disk is gone")
    for number in range(8):
        puts.put_together(range(1, 4), b"%d" % number)
        for _ in range(3):
            puts.harness.threads.run_all()
            puts.harness.store.tick()
    files = journal_files(puts.harness)
    assert files[0] == JOURNAL_FILE
    assert len(files) <= 3
    puts.harness.lose_power()
    puts.check()


def test_a_journal_file_that_cannot_be_removed_does_not_stop_the_start(
    puts: Puts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    puts.round("a")
    puts.harness.threads.run_all()
    puts.harness.files.kill()

    def refuse(files: FaultyFiles, path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(FaultyFiles, "unlink", refuse)
    puts.harness._start_anew()
    assert "could not be removed" in caplog.text
    monkeypatch.undo()
    puts.round("b")
    puts.harness.threads.run_all()
    assert journal_files(puts.harness) == [JOURNAL_FILE, "00000000000000000001.journal"]
    puts.harness.lose_power()
    puts.check()
    assert all(len(each) == 2 for each in puts.kept().values())
    assert journal_files(puts.harness) == []


def test_recovered_partitions_behind_links_are_synced_on_their_own_disk(
    puts: Puts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tuning, "SYNCED_ONE_BY_ONE", 1)
    puts.round("a")
    puts.harness.threads.run_all()
    puts.harness.files.kill()
    elsewhere = tmp_path / "another disk"
    elsewhere.mkdir()
    for number in range(PARTITIONS):
        here = Path(puts.harness.path, f"t-{number}")
        here.rename(elsewhere / here.name)
        here.symlink_to(elsewhere / here.name)
    monkeypatch.setattr(FaultyFiles, "device", lambda _, path: 2 if os.path.islink(path) else 1)
    puts.harness._start_anew()
    assert puts.harness.files.calls["sync_filesystem"] == 2, "the links' disk, and the data path with their names"


def test_the_journal_goes_when_it_is_turned_over_and_nobody_waits_for_it(harness: StoreHarness) -> None:
    harness.group_commit = True
    puts, journal = Puts(harness), harness.store._journal
    puts.round("a")
    assert journal.turn_over() is None, "a group is under way"
    harness.threads.run_all()
    number = journal.turn_over()
    assert number is not None
    assert journal.has_older(number)
    for _ in range(3):
        harness.threads.run_all()
        harness.store.tick()
    assert not journal.has_older(number)
