"""When data becomes visible and who is told: group commit, asynchronous flush, checkpoints by the timer."""

import pytest

from metaq.broker.store.topic_config import GROUP_COMMIT, FlushPolicy, TopicStoreConfig
from metaq.protocol.errors import LogReadOnly, OffsetOutOfRange
from tests.doubles.store import check_invariants, run_inline
from tests.raising import raising


def test_threshold_of_zero_or_less_means_group_commit():
    policies = [TopicStoreConfig(1 << 20, threshold, 1000).flush_policy for threshold in (0, -1, 3)]
    assert policies == [GROUP_COMMIT, GROUP_COMMIT, FlushPolicy(3, 1000)]
    assert [policy.has_group_commit for policy in policies] == [True, True, False]


def test_group_commit_shows_and_answers_only_after_the_sync(grouped, answers):
    answers.append(grouped, b"a")
    log = grouped.log
    assert (log.visible_end, log.end_offset, log.segments.message_count) == (0, 21, 0)
    assert (log.segments.read(0, 100), len(log.lookup.units(0, 100)), log.lookup.offset_at_time(0)) == (b"", 0, 0)
    with pytest.raises(OffsetOutOfRange):
        log.segments.read(21, 100)
    assert answers.got == []
    grouped.threads.run_all()
    assert (log.visible_end, log.segments.message_count) == (21, 1)
    assert answers.got == [(b"a", None)]
    assert grouped.bodies() == [b"a"]


def test_appends_during_a_sync_share_the_next_one(grouped, answers):
    answers.append(grouped, b"a", b"b", b"c", b"d")
    grouped.threads.run_one()  # was started for the first alone
    assert answers.names == [b"a"]
    assert (grouped.log.visible_end, grouped.log.segments.message_count) == (21, 1)
    grouped.threads.run_one()
    assert answers.names == [b"a", b"b", b"c", b"d"]
    assert (len(grouped.threads), grouped.files.calls["fdatasync"]) == (0, 2)


def test_the_first_sync_of_a_new_partition_syncs_its_directories_too(grouped, answers):
    grouped.open()
    grouped.files.calls.clear()
    answers.append(grouped, b"a")
    grouped.threads.run_all()
    assert grouped.files.calls["fsync_directory"] == 2
    answers.append(grouped, b"b")
    grouped.threads.run_all()
    assert grouped.files.calls["fsync_directory"] == 2


@pytest.mark.parametrize(
    ("group_commit", "during", "after"), [(True, [], [(21, 1), (42, 2)]), (False, [(21, 0), (42, 1)], [])]
)
def test_on_visible_is_called_after_the_waiters_each_time_data_becomes_visible(
    harness, answers, group_commit, during, after
):
    """Within an asynchronous append, whose answer is asked for behind it."""
    harness.group_commit = group_commit
    seen = []
    harness.log.on_visible = lambda log: seen.append((log.visible_end, len(answers.got)))
    answers.append(harness, b"a", b"b")
    assert seen == during
    assert answers.got == ([] if group_commit else [(b"a", None), (b"b", None)])
    harness.threads.run_all()
    assert seen == during + after


def test_a_callback_that_raises_does_not_keep_the_others_from_being_called(grouped, answers, caplog):
    grouped.append(b"a")
    grouped.log.when_safe(21, raising(RuntimeError("bug")))
    answers.expect(grouped.log, 21, "second")
    grouped.threads.run_all()
    assert answers.names == ["second"]
    assert "RuntimeError: bug" in caplog.text


def test_threads_that_finish_at_once_work_too(grouped, answers):
    grouped.max_segment_size = 60
    grouped.threads = run_inline
    answers.append(grouped, *(b"%d" % number for number in range(7)))
    assert len(answers.succeeded) == 7
    check_invariants(grouped.log)


def test_asynchronous_flush_syncs_at_the_record_after_the_threshold(harness):
    harness.unflush_threshold = 3
    harness.append_each(*[b"x"] * 3)
    assert len(harness.threads) == 0
    harness.append_safe(b"x")
    assert harness.log.segments[0].synced == 4 * 21


def test_asynchronous_flush_syncs_after_the_interval(harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.tuning.CHECKPOINT_SECONDS", 1e9)
    harness.append(b"x")
    harness.store.tick()
    harness.now = 9.9
    harness.store.tick()
    assert len(harness.threads) == 0
    harness.now = 10.0
    harness.tick()
    assert (harness.log.segments[0].synced, harness.log.segments[0].checkpointed) == (21, 0)


def test_dirty_logs_get_a_checkpoint_every_five_seconds_and_clean_ones_none(harness):
    for harness.now in (0.0, 0.25):
        harness.store.tick()
    harness.append(b"x")
    for harness.now in (0.5, 5.25):
        harness.store.tick()
        assert len(harness.threads) == 0
    harness.now = 5.5
    harness.tick()
    assert harness.log.segments[0].checkpointed == 21
    done = harness.files.changes
    for harness.now in range(6, 60):
        harness.store.tick()
        assert len(harness.threads) == 0
    assert harness.files.changes == done


def test_checkpoints_of_many_partitions_are_bounded_at_a_time_and_all_made(harness):
    for number in range(50):
        harness.put(harness.store.get_or_create("many", number), b"x")
    harness.store.tick()
    harness.now = 5.0
    harness.store.tick()
    assert 0 < len(harness.threads) <= 16
    harness.threads.run_all()
    assert all(log.segments[0].checkpointed == log.end_offset for log in harness.store.logs())


def test_a_roll_starts_the_checkpoint_of_the_closed_segment(harness):
    harness.max_segment_size = 21
    harness.append_safe(b"x")
    assert [segment.finished for segment in harness.log.segments] == [True, True]
    assert harness.names() == ["00000000000000000000.index", "00000000000000000000.meta", "00000000000000000021.meta"]


def test_close_answers_waiters_whose_sync_was_never_run(grouped, answers):
    answers.append(grouped, b"a", b"b")
    grouped.store.close()
    assert answers.succeeded == [b"a", b"b"]
    grouped.threads.run_all()  # the late worker finds nothing to do
    assert answers.succeeded == [b"a", b"b"]
    with pytest.raises(LogReadOnly, match="closed"):
        grouped.append(b"c")


def test_close_takes_over_a_sync_whose_result_has_not_arrived(grouped, answers):
    answers.append(grouped, b"a")
    arrive = grouped.threads.run_unreported()
    answers.append(grouped, b"b")
    assert answers.got == []
    grouped.store.close()
    assert answers.succeeded == [b"a", b"b"]
    (segment,) = grouped.log.segments
    arrive()
    assert answers.succeeded == [b"a", b"b"]
    assert segment.data.pins == 0
    assert grouped.open().get("t", 0).segments.message_count == 2


def test_jobs_let_go_of_the_descriptors_they_pinned(grouped):
    grouped.max_segment_size = 60
    for _ in range(5):
        grouped.append_safe(b"x" * 20)
    grouped.checkpoint()
    assert [segment.data.pins for segment in grouped.log.segments] == [0] * 3
