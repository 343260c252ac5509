"""Every write and sync is made to fail once: nothing acknowledged is lost, and nobody waits for ever."""

import errno
import os
import shutil

import pytest

from metaq.broker.store.journal_format import JOURNAL_DIRECTORY
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.store import Append
from metaq.protocol.errors import LogReadOnly, StoreError
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import Answers, StoreHarness
from tests.raising import raising

BODIES = [b"message %d" % number for number in range(8)]
CHANGES = {True: 30, False: 29}
"""How often `run_puts` changes the disk, with group commit and with asynchronous flush."""


def run_puts(harness: StoreHarness, answers: Answers) -> None:
    """Put BODIES, some in one sync, with a checkpoint in the middle."""
    for number, body in enumerate(BODIES):
        try:
            answers.append(harness, body)
        except LogReadOnly:
            answers.got.append((body, LogReadOnly("", "append")))
            continue
        if number == 5:
            harness.log.checkpoint()
        if number % 3 == 2:
            harness.threads.run_one()
    harness.threads.run_all()


@pytest.fixture
def small(harness, group_commit):
    """It syncs and rolls often."""
    harness.group_commit = group_commit
    harness.unflush_threshold = 2
    harness.max_segment_size = 90
    assert harness.log.read_only is None
    return harness


@pytest.mark.parametrize(
    ("group_commit", "fault"), [(mode, fault) for mode, last in CHANGES.items() for fault in range(1, last + 1)]
)
def test_a_failing_disk_loses_nothing_acknowledged(small, answers, group_commit, fault):
    log = small.log
    small.files.fail_at = small.files.changes + fault
    run_puts(small, answers)
    assert sorted(answers.names) == BODIES
    assert log.read_only is not None
    acknowledged = answers.succeeded
    small.crash(power=group_commit)
    check_invariants(small.log)
    found = small.bodies()
    assert [body for body in found if body in acknowledged] == acknowledged
    assert len(found) == len(set(found))
    assert small.log.read_only is None
    small.append_safe(b"goes on")
    assert small.bodies()[-1] == b"goes on"


@pytest.mark.parametrize("group_commit", CHANGES)
def test_the_fault_test_covers_every_change_of_the_disk(small, answers, group_commit):
    before = small.files.changes
    run_puts(small, answers)
    assert small.files.changes - before == CHANGES[group_commit]
    assert len(answers.succeeded) == len(BODIES)


def test_a_failed_write_is_cut_back_and_named(harness):
    harness.append(b"good")
    with harness.files.failing("pwritev"), pytest.raises(LogReadOnly, match="Input/output error") as caught:
        harness.append(b"too much")
    assert caught.value.directory == harness.log.directory
    with pytest.raises(LogReadOnly):
        harness.append(b"even now")
    assert harness.store.get_or_create("other", 0).read_only is None
    assert harness.bodies() == [b"good"]
    assert harness.data_file().stat().st_size == 24


@pytest.mark.parametrize("cause", [errno.EIO, errno.ENOSPC], ids=["bad disk", "no room"])
def test_a_failed_write_that_cannot_be_cut_back_says_so_and_recovery_cuts_it(harness, cause):
    harness.append(b"good")
    with (
        harness.files.failing("pwritev", "truncate", cause=cause),
        pytest.raises(LogReadOnly, match="cutting the file back to 24 bytes failed"),
    ):
        harness.append(b"half written")
    assert harness.data_file().stat().st_size > 24
    assert harness.bodies() == [b"good"]
    harness.kill()
    assert harness.bodies() == [b"good"]
    assert harness.report().cut_at == 24


def test_a_failed_sync_answers_all_with_an_error_and_is_never_repeated(grouped, answers):
    answers.append(grouped, b"a", b"b")
    with grouped.files.failing("fdatasync"):
        grouped.threads.run_all()
    assert [type(error) for _, error in answers.got] == [LogReadOnly, LogReadOnly]
    assert grouped.log.visible_end == 0
    for grouped.now in range(20):
        grouped.store.tick()
    grouped.log.flush()
    grouped.checkpoint()
    assert grouped.files.calls["fdatasync"] == 1
    answers.expect(grouped.log, 21, "later")
    assert isinstance(answers.got[-1][1], LogReadOnly)


def test_a_worker_that_fails_otherwise_is_answered_too(grouped, answers, monkeypatch):
    answers.append(grouped, b"a")
    monkeypatch.setattr(grouped.files, "fdatasync", raising(RuntimeError("bug in a worker")))
    grouped.threads.run_all()
    assert [type(error) for _, error in answers.got] == [LogReadOnly]
    assert "bug in a worker" in str(grouped.log.read_only)


def test_close_after_a_failed_sync_in_flight_answers_with_the_failure(grouped, answers):
    answers.append(grouped, b"a")
    grouped.files.fail("fdatasync")
    grouped.store.close()
    assert [type(error) for _, error in answers.got] == [LogReadOnly]


def test_a_new_partition_that_cannot_be_made_is_an_error_that_names_it(harness):
    store = harness.open()
    with harness.files.failing("open"), pytest.raises(StoreError, match="t-0 cannot be made"):
        store.get_or_create("t", 0)
    assert store.get_or_create("t", 0).segments.message_count == 0


@pytest.mark.parametrize("group_commit", [True, False])
@pytest.mark.parametrize("how", ["partition", "everything", "moved"])
def test_a_directory_that_was_deleted_under_a_broker_takes_no_more_messages(
    harness, answers, group_commit, how, caplog
):
    """The open files took messages, and acknowledged them, that the next start would not have."""
    harness.group_commit = group_commit
    answers.append(harness, b"good")
    harness.flush()
    if how == "moved":
        os.rename(harness.log.directory, harness.log.directory + ".moved")
    else:
        shutil.rmtree(harness.log.directory if how == "partition" else harness.path)
    append(harness, answers, [harness.log], b"gone")
    harness.flush()  # with asynchronous flush a timer asks for it
    assert answers.succeeded == [b"good"] + ([] if group_commit else [b"gone"])  # which does not wait for the disk
    assert harness.log.read_only is not None
    assert "was deleted or moved away while the broker ran" in caplog.text
    with pytest.raises(LogReadOnly):
        append(harness, answers, [harness.log], b"even now")


def append(harness: StoreHarness, answers: Answers, logs: list[PartitionLog], body: bytes) -> None:
    """Without a look at the files, in one group, to logs that are equal."""
    data, units = harness.encoded(logs[0].end_offset, body)
    for each in harness.store.append_many([Append(log, data, units) for log in logs]):
        if each.error is not None:
            raise each.error
    for log in logs:
        answers.expect(log, log.end_offset, body)


def test_a_journal_that_was_deleted_under_a_broker_makes_nothing_safe(grouped, answers):
    logs = [grouped.store.get_or_create("t", number) for number in range(8)]  # too many for syncs of their own
    append(grouped, answers, logs, b"good")
    grouped.threads.run_all()
    assert grouped.store.journal_status().files == 1
    shutil.rmtree(os.path.join(grouped.path, JOURNAL_DIRECTORY))
    append(grouped, answers, logs, b"gone")
    grouped.threads.run_all()
    assert set(answers.succeeded) == {b"good"}
    assert "was deleted or moved away while the broker ran" in grouped.store.journal_status().cause


def test_a_segment_that_retention_takes_away_during_its_sync_is_no_failure(harness):
    harness.append_each(*BODIES[:4], segment_bytes=30)
    harness.log.flush()
    first = harness.log.segments[0]
    first.removed = True
    os.unlink(first.path)
    harness.threads.run_all()
    assert harness.log.read_only is None
