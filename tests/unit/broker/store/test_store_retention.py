"""Which segments go, and how (storage.md §5)."""

import os
import zipfile
from pathlib import Path

import pytest

from metaq.broker.store.retention import SegmentAge, count_excess, count_expired
from metaq.broker.store.store import Store
from metaq.broker.store.topic_config import DeletePolicy, Disposal, parse_delete_policy
from metaq.protocol.errors import ConfigError, OffsetOutOfRange
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, StoreHarness

HOUR = 3600


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete,168", DeletePolicy(Disposal.DELETE, 168 * HOUR)),
        ("delete,24h", DeletePolicy(Disposal.DELETE, 24 * HOUR)),
        ("delete, 30m", DeletePolicy(Disposal.DELETE, 1800)),
        ("archive,45s", DeletePolicy(Disposal.ARCHIVE, 45)),
        ("archive,24h,true", DeletePolicy(Disposal.COMPRESS, 24 * HOUR)),
        ("archive,1,false", DeletePolicy(Disposal.ARCHIVE, HOUR)),
        ("archive,1,TRUE,more", DeletePolicy(Disposal.COMPRESS, HOUR)),
        ("archive,1,x", DeletePolicy(Disposal.ARCHIVE, HOUR)),
        ("delete,1,true", DeletePolicy(Disposal.DELETE, HOUR)),
        # a size limit is a further word, which 1.x passes over
        ("delete,168,size=10g", DeletePolicy(Disposal.DELETE, 168 * HOUR, 10 << 30)),
        ("delete,168, SIZE=512MB", DeletePolicy(Disposal.DELETE, 168 * HOUR, 512 << 20)),
        ("archive,24h,size=1000", DeletePolicy(Disposal.ARCHIVE, 24 * HOUR, 1000)),
        ("archive,24h,true,size=2t", DeletePolicy(Disposal.COMPRESS, 24 * HOUR, 2 << 40)),
        ("delete,1,more,size=3k", DeletePolicy(Disposal.DELETE, HOUR, 3 << 10)),
    ],
)
def test_policies_of_1_x_are_read(text, policy):
    assert parse_delete_policy(text) == policy


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
    closed = [[SegmentAge(0, 20, 10), SegmentAge(10, 50, 10)], [SegmentAge(0, 10, 10), SegmentAge(10, 30, 10)], []]
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


def aged(harness: StoreHarness, ages_hours: list[int], policy: str = "delete,10") -> None:
    """A log of one record a segment, closed ones with these ages, then one record in the last."""
    harness.delete_policy = parse_delete_policy(policy)
    harness.append_each(*(b"%05d" % number for number in range(len(ages_hours))), segment_bytes=25)
    harness.threads.run_all()
    for number, age in enumerate(ages_hours):
        os.utime(harness.data_file(number * 25), (NOW_MS / 1000 - age * HOUR,) * 2)
    harness.append(b"young")


def test_old_segments_are_deleted_with_their_index_and_readers_are_told_the_new_start(harness):
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
    assert [int(name[:20]) for name in harness.names() if int(name[:20]) < 50] == []
    assert harness.bodies() == [b"00002", b"young"]
    harness.append(b"after")
    assert (harness.log.lookup.count_before(75), harness.restart().segments.message_count) == (1, 3)
    assert harness.log.first_offset == 50


@pytest.mark.parametrize(
    ("policy", "apply"), [("delete,1s", Store.apply_retention), ("delete,1000,size=1", Store.apply_size_limits)]
)
def test_the_last_segment_stays_whatever_its_age_and_the_size_limit(harness, policy, apply):
    harness.delete_policy = parse_delete_policy(policy)
    harness.append(b"only")
    harness.wall += 10**9 if apply is Store.apply_retention else 0
    assert apply(harness.store) == []
    assert harness.bodies() == [b"only"]


def test_without_a_policy_everything_stays_and_only_topics_whose_turn_has_come_are_looked_at(harness):
    aged(harness, [3000])
    policy, harness.delete_policy = harness.delete_policy, None
    assert harness.store.apply_retention() == []
    harness.delete_policy = policy
    assert harness.store.apply_retention(lambda topic: topic != "t") == []
    assert len(harness.store.apply_retention(lambda topic: topic == "t")) == 1


@pytest.mark.parametrize(("policy", "suffix"), [("archive,10", ".arc"), ("archive,10,true", ".zip")])
def test_archived_segments_are_renamed_or_in_a_zip_and_no_other_user_may_read_a_file(harness, policy, suffix):
    aged(harness, [30], policy)
    data = harness.data_file().read_bytes()
    harness.retain()
    archived = harness.data_file().with_suffix(f".meta{suffix}")
    if suffix == ".zip":
        with zipfile.ZipFile(archived) as archive:
            assert {name: archive.read(name) for name in archive.namelist()} == {harness.data_file().name: data}
    else:
        assert archived.read_bytes() == data
    assert not harness.data_file().exists()
    harness.checkpoint()
    files = [path for path in Path(harness.path).rglob("*") if path.is_file()]
    assert {".meta", ".index", suffix} <= {path.suffix for path in files}
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_segments_that_cannot_be_deleted_come_back(harness, caplog):
    aged(harness, [30, 20, 5])
    with harness.files.failing("unlink"):
        harness.retain()
    assert "stopped after 0 of 2 segments" in caplog.text
    assert (harness.log.first_offset, harness.log.segments.message_count) == (0, 4)
    check_invariants(harness.log)
    assert len(harness.retain()) == 2
    assert harness.names()[0].startswith("00000000000000000050")


def test_a_segment_without_checkpoint_waits_for_it(harness):
    harness.delete_policy = parse_delete_policy("delete,0")
    harness.max_segment_size = 25
    harness.append(b"first")
    harness.wall += 10**9
    assert harness.retain() == []
    assert len(harness.store.apply_retention()) == 1


def test_a_topic_larger_than_its_limit_loses_its_oldest_segments_of_all_partitions(harness):
    aged(harness, [30, 20, 10], "delete,1000,size=50")  # 3 closed segments of 25 bytes, and 25 bytes in the last
    other = harness.store.get_or_create("u", 0)
    removed = harness.store.apply_size_limits()
    assert [(entry.topic, entry.first_offset) for entry in removed] == [("t", 0), ("t", 25)]
    assert harness.store.apply_size_limits() == []
    harness.threads.run_all()
    assert not harness.data_file(25).exists()
    assert (harness.log.first_offset, harness.log.segments.size_bytes, other.first_offset) == (50, 50, 0)
    check_invariants(harness.log)


def test_a_read_under_way_is_not_hurt_by_a_segment_that_goes(harness, monkeypatch):
    aged(harness, [30, 20], "archive,10")
    opened = harness.files.open

    def open_then_remove(path, flags):
        fd = opened(path, flags)
        if path == str(harness.data_file()) and flags == os.O_RDONLY:
            monkeypatch.undo()
            harness.retain()
        return fd

    monkeypatch.setattr(harness.files, "open", open_then_remove)
    assert harness.log.segments.snapshot().read(0, 100)[20:] == b"00000"
    assert not harness.data_file().exists()
    with pytest.raises(OffsetOutOfRange):
        harness.log.segments.snapshot().read(0, 100)
