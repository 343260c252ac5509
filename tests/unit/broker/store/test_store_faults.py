"""Every write and sync is made to fail once: nothing acknowledged is lost, and nobody waits for ever."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from metaq.broker.store.batch import encode_puts
from metaq.broker.store.journal_format import JOURNAL_DIRECTORY
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.store import Append
from metaq.protocol.errors import LogReadOnly, StoreError
from metaq.protocol.record import checksum
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, Answers, StoreHarness
from tests.raising import raising

BODIES = [b"message %d" % number for number in range(8)]
CHANGES = {True: 30, False: 29}
"""How often `run_puts` changes the disk, with group commit and with asynchronous flush."""


def run_puts(harness: StoreHarness, answers: Answers) -> list[bytes]:
    """Put BODIES, some in one sync, with a checkpoint in the middle; returns those that were appended."""
    appended = []
    for number, body in enumerate(BODIES):
        try:
            harness.append(body)
        except LogReadOnly:
            answers.got.append((body, LogReadOnly("", "append")))
            continue
        appended.append(body)
        answers.expect(harness.log, harness.log.end_offset, body)
        check_invariants(harness.log)
        if number == 5:
            harness.log.checkpoint()
        if number % 3 == 2:
            harness.threads.run_one()
    harness.threads.run_all()
    return appended


@pytest.mark.parametrize(
    ("group_commit", "fault"), [(mode, fault) for mode, last in CHANGES.items() for fault in range(1, last + 1)]
)
def test_a_failing_disk_loses_nothing_acknowledged(harness, answers, group_commit, fault):
    harness.group_commit = group_commit
    harness.unflush_threshold = 2
    harness.max_segment_size = 90
    log = harness.log
    harness.files.fail_at = harness.files.changes + fault
    run_puts(harness, answers)
    assert sorted(answers.names) == BODIES  # type: ignore[type-var]
    assert log.read_only is not None
    acknowledged = answers.succeeded
    harness.crash(power=group_commit)
    check_invariants(harness.log)
    found = harness.bodies()
    assert [body for body in found if body in acknowledged] == acknowledged
    assert len(found) == len(set(found))
    assert harness.log.read_only is None
    harness.append(b"goes on")
    harness.threads.run_all()
    assert harness.bodies()[-1] == b"goes on"


@pytest.mark.parametrize("group_commit", CHANGES)
def test_the_fault_test_covers_every_change_of_the_disk(harness, answers, group_commit):
    harness.group_commit = group_commit
    harness.unflush_threshold = 2
    harness.max_segment_size = 90
    assert harness.log.read_only is None
    before = harness.files.changes
    run_puts(harness, answers)
    assert harness.files.changes - before == CHANGES[group_commit]
    assert len(answers.succeeded) == len(BODIES)


def test_a_failed_write_is_cut_back_and_named(harness):
    harness.append(b"good")
    harness.files.error = OSError(errno.EIO, "Input/output error")
    harness.files.fail("pwritev")
    with pytest.raises(LogReadOnly, match="Input/output error") as caught:
        harness.append(b"too much")
    assert caught.value.directory == harness.log.directory
    assert harness.data_file().stat().st_size == 24
    harness.files.heal()
    with pytest.raises(LogReadOnly):
        harness.append(b"even now")
    assert harness.bodies() == [b"good"]
    assert harness.data_file().stat().st_size == 24


def test_a_failed_write_that_cannot_be_cut_back_says_so_and_recovery_cuts_it(harness):
    harness.append(b"good")
    harness.files.fail("pwritev")
    harness.files.fail("truncate")
    with pytest.raises(LogReadOnly, match="cutting the file back to 24 bytes failed"):
        harness.append(b"half written")
    assert harness.data_file().stat().st_size > 24
    assert harness.bodies() == [b"good"]
    harness.kill()
    assert harness.bodies() == [b"good"]
    assert harness.report().cut_at == 24


def test_a_failed_sync_answers_all_with_an_error_and_is_never_repeated(harness, answers):
    harness.group_commit = True
    for body in (b"a", b"b"):
        harness.append(body)
        answers.expect(harness.log, harness.log.end_offset, body)
    harness.files.fail("fdatasync")
    harness.threads.run_all()
    assert [type(error) for _, error in answers.got] == [LogReadOnly, LogReadOnly]
    assert harness.log.visible_end == 0
    harness.files.heal()
    for harness.now in range(20):
        harness.store.tick()
    harness.log.flush()
    harness.checkpoint()
    assert harness.files.calls["fdatasync"] == 1
    answers.expect(harness.log, 21, "later")
    assert isinstance(answers.got[-1][1], LogReadOnly)


def test_a_worker_that_fails_otherwise_is_answered_too(harness, answers, monkeypatch):
    harness.group_commit = True
    harness.append(b"a")
    answers.expect(harness.log, 21, "a")
    monkeypatch.setattr(harness.files, "fdatasync", raising(RuntimeError("bug in a worker")))
    harness.threads.run_all()
    assert isinstance(answers.got[0][1], LogReadOnly)
    assert "bug in a worker" in str(harness.log.read_only)


def test_close_after_a_failed_sync_in_flight_answers_with_the_failure(harness, answers):
    harness.group_commit = True
    harness.append(b"a")
    answers.expect(harness.log, 21, "a")
    harness.files.fail("fdatasync")
    harness.store.close()
    assert [type(error) for _, error in answers.got] == [LogReadOnly]


def test_one_partitions_failure_leaves_the_others_writable(harness):
    harness.append(b"a")
    harness.files.fail("pwritev")
    with pytest.raises(LogReadOnly):
        harness.append(b"b")
    harness.files.heal()
    assert harness.store.get_or_create("other", 0).read_only is None


def test_a_new_partition_that_cannot_be_made_is_an_error_that_names_it(harness):
    store = harness.open()
    harness.files.fail("open")
    with pytest.raises(StoreError, match="t-0 cannot be made"):
        store.get_or_create("t", 0)
    harness.files.heal()
    assert store.get_or_create("t", 0).segments.message_count == 0


@pytest.mark.parametrize("group_commit", [True, False])
@pytest.mark.parametrize("how", ["partition", "everything", "moved"])
def test_a_directory_that_was_deleted_under_a_broker_takes_no_more_messages(
    harness, answers, group_commit, how, caplog
):
    """The open files took messages, and acknowledged them, that the next start would not have."""
    harness.group_commit = group_commit
    harness.append(b"good")
    answers.expect(harness.log, harness.log.end_offset, b"good")
    harness.flush()
    if how == "moved":
        os.rename(harness.log.directory, harness.log.directory + ".moved")
    else:
        shutil.rmtree(harness.log.directory if how == "partition" else harness.path)
    append(harness, [harness.log], b"gone")
    answers.expect(harness.log, harness.log.end_offset, b"gone")
    harness.log.flush()  # with asynchronous flush a timer asks for it
    harness.threads.run_all()
    assert answers.succeeded == [b"good"] + ([] if group_commit else [b"gone"])  # which does not wait for the disk
    assert harness.log.read_only is not None
    assert "was deleted or moved away while the broker ran" in caplog.text
    with pytest.raises(LogReadOnly):
        append(harness, [harness.log], b"even now")


def append(harness: StoreHarness, logs: list[PartitionLog], body: bytes) -> None:
    """Without a look at the files, in one group, to logs that are equal."""
    data, units = encode_puts([(0, checksum(body), body)], logs[0].end_offset, [harness.next_id], NOW_MS)
    harness.next_id += 1
    for each in harness.store.append_many([Append(log, data, units) for log in logs]):
        if each.error is not None:
            raise each.error


def test_a_journal_that_was_deleted_under_a_broker_makes_nothing_safe(harness, answers):
    harness.group_commit = True
    logs = [harness.store.get_or_create("t", number) for number in range(8)]  # too many for syncs of their own

    def put(body):
        append(harness, logs, body)
        for log in logs:
            answers.expect(log, log.end_offset, body)
        harness.threads.run_all()

    put(b"good")
    assert harness.store.journal_status().files == 1
    shutil.rmtree(os.path.join(harness.path, JOURNAL_DIRECTORY))
    put(b"gone")
    assert set(answers.succeeded) == {b"good"}
    assert "was deleted or moved away while the broker ran" in harness.store.journal_status().cause


def test_a_segment_that_retention_takes_away_during_its_sync_is_no_failure(harness):
    harness.max_segment_size = 30
    harness.append_each(*BODIES[:4])
    harness.log.flush()
    first = harness.log.segments[0]
    first.removed = True
    os.unlink(first.path)
    harness.threads.run_all()
    assert harness.log.read_only is None
