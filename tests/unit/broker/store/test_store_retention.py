"""Which segments go, and how (storage.md §5)."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from metaq.broker.store.retention import SegmentAge, count_excess, count_expired
from metaq.broker.store.topic_config import DeletePolicy, Disposal, parse_delete_policy
from metaq.protocol.errors import ConfigError, OffsetOutOfRange
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness

HOUR = 3600


@pytest.mark.parametrize(
    ("text", "action", "seconds"),
    [
        ("delete,168", Disposal.DELETE, 168 * HOUR),
        ("delete,24h", Disposal.DELETE, 24 * HOUR),
        ("delete, 30m", Disposal.DELETE, 1800),
        ("archive,45s", Disposal.ARCHIVE, 45),
        ("archive,24h,true", Disposal.COMPRESS, 24 * HOUR),
        ("archive,1,false", Disposal.ARCHIVE, HOUR),
        ("archive,1,TRUE,more", Disposal.COMPRESS, HOUR),
        ("archive,1,x", Disposal.ARCHIVE, HOUR),
        ("delete,1,true", Disposal.DELETE, HOUR),
    ],
)
def test_policies_of_1_x_are_read(text, action, seconds):
    assert parse_delete_policy(text) == DeletePolicy(action, seconds)


@pytest.mark.parametrize(
    ("text", "action", "max_bytes"),
    [
        ("delete,168,size=10g", Disposal.DELETE, 10 << 30),
        ("delete,168, SIZE=512MB", Disposal.DELETE, 512 << 20),
        ("archive,24h,size=1000", Disposal.ARCHIVE, 1000),
        ("archive,24h,true,size=2t", Disposal.COMPRESS, 2 << 40),
        ("delete,1,more,size=3k", Disposal.DELETE, 3 << 10),
    ],
)
def test_a_size_limit_is_a_further_word_that_1_x_passes_over(text, action, max_bytes):
    assert parse_delete_policy(text) == DeletePolicy(action, parse_delete_policy(text).max_age_s, max_bytes)


@pytest.mark.parametrize("text", ["size=", "size=0", "size=x", "size=-1", "size=1.5g", "size=1g,size=2g"])
def test_a_size_that_is_none_is_a_config_error_with_the_accepted_form(text):
    with pytest.raises(ConfigError, match=r"use size=<bytes>"):
        parse_delete_policy(f"delete,168,{text}")


@pytest.mark.parametrize(
    ("excess", "counts"),
    [
        (0, [0, 0, 0]),
        (-5, [0, 0, 0]),
        (1, [0, 1, 0]),
        (10, [0, 1, 0]),
        (11, [1, 1, 0]),
        (21, [1, 2, 0]),
        (99, [2, 2, 0]),
    ],
)
def test_of_a_topic_that_is_too_large_the_oldest_segments_go_whichever_partition_they_are_in(excess, counts):
    closed = [
        [SegmentAge(0, 20, 10), SegmentAge(10, 50, 10)],
        [SegmentAge(0, 10, 10), SegmentAge(10, 30, 10)],
        [],
    ]
    assert count_excess(closed, excess) == counts


@pytest.mark.parametrize("text", ["", "delete", "delete,", "delete,x", "delete,-1", "delete,1d", "a,1", "archive"])
def test_other_policies_are_a_config_error_with_the_accepted_forms(text):
    with pytest.raises(ConfigError, match=r"deletePolicy=.*use delete,<age>"):
        parse_delete_policy(text)


@pytest.mark.parametrize(
    ("modified", "expired"), [([], 0), ([10, 20, 80], 2), ([40, 50], 1), ([41, 1], 0), ([80, 10], 0), ([1, 2, 3], 3)]
)
def test_the_oldest_segments_go_and_a_younger_one_keeps_those_behind_it(modified, expired):
    closed = [SegmentAge(number, time) for number, time in enumerate(modified)]
    assert count_expired(closed, DeletePolicy(Disposal.DELETE, 59), now=100) == expired


def aged(harness: StoreHarness, ages_hours: list[int]) -> None:
    """A log of one record a segment, closed ones with these ages, then one record in the last."""
    harness.max_segment_size = 25
    for number in range(len(ages_hours)):
        harness.append(b"%05d" % number)
    harness.threads.run_all()
    for number, age in enumerate(ages_hours):
        modified = NOW_MS / 1000 - age * HOUR
        os.utime(harness.data_file(number * 25), (modified, modified))
    harness.append(b"young")


def test_old_segments_are_deleted_with_their_index_and_readers_are_told_the_new_start(harness):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30, 20, 5])
    removed = harness.store.apply_retention()
    assert [(entry.topic, entry.first_offset, entry.size) for entry in removed] == [("t", 0, 25), ("t", 25, 25)]
    log = harness.log
    assert (log.first_offset, log.segments.message_count) == (50, 2)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.segments.read(0, 100)
    assert caught.value.first == 50
    check_invariants(log)
    harness.threads.run_all()
    assert not harness.data_file(0).exists()
    assert not harness.index_file(25).exists()
    assert harness.bodies() == [b"00002", b"young"]
    harness.append(b"after")
    assert harness.log.lookup.count_before(75) == 1
    assert harness.restart().segments.message_count == 3
    assert harness.log.first_offset == 50


def test_the_last_segment_stays_whatever_its_age(harness):
    harness.delete_policy = parse_delete_policy("delete,1s")
    harness.append(b"only")
    harness.wall += 10**9
    assert harness.store.apply_retention() == []
    assert harness.bodies() == [b"only"]


def test_no_policy_keeps_everything(harness):
    aged(harness, [3000])
    assert harness.store.apply_retention() == []


def test_only_topics_whose_turn_has_come_are_looked_at(harness):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30])
    assert harness.store.apply_retention(lambda topic: topic != "t") == []
    assert len(harness.store.apply_retention(lambda topic: topic == "t")) == 1


def test_archived_segments_are_renamed(harness):
    harness.delete_policy = parse_delete_policy("archive,10")
    aged(harness, [30])
    data = harness.data_file().read_bytes()
    harness.retain()
    assert harness.data_file().with_suffix(".meta.arc").read_bytes() == data
    assert not harness.data_file().exists()


def test_compressed_segments_are_zips_with_one_entry(harness):
    harness.delete_policy = parse_delete_policy("archive,10,true")
    aged(harness, [30])
    data = harness.data_file().read_bytes()
    harness.retain()
    with zipfile.ZipFile(harness.data_file().with_suffix(".meta.zip")) as archive:
        assert archive.namelist() == [harness.data_file().name]
        assert archive.read(harness.data_file().name) == data
    assert not harness.data_file().exists()


def test_no_other_user_of_the_machine_may_read_a_file(harness):
    harness.delete_policy = parse_delete_policy("archive,10,true")
    aged(harness, [30, 20])
    harness.retain()
    files = [path for path in Path(harness.path).rglob("*") if path.is_file()]
    assert {".meta", ".index", ".zip"} <= {path.suffix for path in files}
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_segments_that_cannot_be_deleted_come_back(harness, caplog):
    harness.delete_policy = parse_delete_policy("delete,10")
    aged(harness, [30, 20, 5])
    harness.files.fail("unlink")
    harness.retain()
    assert "stopped after 0 of 2 segments" in caplog.text
    assert (harness.log.first_offset, harness.log.segments.message_count) == (0, 4)
    check_invariants(harness.log)
    harness.files.heal()
    assert len(harness.store.apply_retention()) == 2
    harness.threads.run_all()
    assert harness.names()[0].startswith("00000000000000000050")


def test_a_segment_without_checkpoint_waits_for_it(harness):
    harness.delete_policy = parse_delete_policy("delete,0")
    harness.max_segment_size = 25
    harness.append(b"first")
    harness.wall += 10**9
    assert harness.store.apply_retention() == []
    harness.threads.run_all()
    assert len(harness.store.apply_retention()) == 1


def test_a_topic_larger_than_its_limit_loses_its_oldest_segments_of_all_partitions(harness):
    aged(harness, [30, 20, 10])  # 3 closed segments of 25 bytes, and 25 bytes in the last
    other = harness.store.get_or_create("u", 0)
    harness.delete_policy = parse_delete_policy("delete,1000,size=50")
    removed = harness.store.apply_size_limits()
    assert [(entry.topic, entry.first_offset) for entry in removed] == [("t", 0), ("t", 25)]
    assert harness.store.apply_size_limits() == []
    harness.threads.run_all()
    assert not harness.data_file(25).exists()
    assert (harness.log.first_offset, harness.log.segments.size_bytes) == (50, 50)
    assert other.first_offset == 0
    check_invariants(harness.log)


def test_the_last_segment_stays_whatever_the_size_limit(harness):
    harness.delete_policy = parse_delete_policy("delete,1000,size=1")
    harness.append(b"only")
    assert harness.store.apply_size_limits() == []
    assert harness.bodies() == [b"only"]


def test_a_read_under_way_is_not_hurt_by_a_segment_that_goes(harness):
    aged(harness, [30, 20])
    harness.delete_policy = parse_delete_policy("archive,10")
    opened = harness.files.open

    def open_then_remove(path, flags):
        fd = opened(path, flags)
        if path == str(harness.data_file()) and flags == os.O_RDONLY:
            harness.files.open = opened  # type: ignore[method-assign]
            harness.retain()
        return fd

    harness.files.open = open_then_remove  # type: ignore[method-assign]
    assert harness.log.segments.snapshot().read(0, 100)[20:] == b"00000"
    assert not harness.data_file().exists()
    with pytest.raises(OffsetOutOfRange):
        harness.log.segments.snapshot().read(0, 100)
