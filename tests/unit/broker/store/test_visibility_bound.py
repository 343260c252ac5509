"""What readers see of a log whose visibility is limited beside its durability: the smaller of the two ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store.topic_config import DeletePolicy, Disposal
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import StoreHarness

SIZE = 21  # of a record with one byte


def ends(harness: StoreHarness) -> tuple[int, int]:
    return harness.log.visible_end, harness.log.segments.message_count


def test_readers_of_a_limited_log_see_what_the_bound_allows(harness):
    harness.append(b"a")
    harness.log.limit_visibility()
    harness.append_each(b"b", b"c")
    assert ends(harness) == (SIZE, 1)
    assert harness.bodies() == [b"a"]
    harness.log.raise_bound(2 * SIZE, 2)
    assert ends(harness) == (2 * SIZE, 2)
    harness.log.unlimited()
    assert ends(harness) == (3 * SIZE, 3)
    harness.append(b"d")
    assert harness.bodies() == [b"a", b"b", b"c", b"d"]


def test_what_is_safe_is_told_whatever_readers_see_and_a_bound_above_it_shows_only_that(grouped, log, answers):
    log.limit_visibility()
    answers.append(grouped, b"a")
    assert answers.names == []
    grouped.threads.run_all()
    assert (answers.succeeded, log.durability.safe_end) == ([b"a"], SIZE)
    assert ends(grouped) == (0, 0)
    grouped.append(b"b")
    log.raise_bound(3 * SIZE, 3)
    check_invariants(log)
    assert ends(grouped) == (SIZE, 1)
    grouped.threads.run_all()
    assert ends(grouped) == (2 * SIZE, 2)
    grouped.append_safe(b"c")
    check_invariants(log)
    assert ends(grouped) == (3 * SIZE, 3)


def test_a_bound_is_never_lowered_and_means_nothing_without_a_limit(harness):
    harness.log.raise_bound(SIZE, 1)
    harness.append_each(b"a", b"b")
    harness.log.limit_visibility()
    harness.log.raise_bound(SIZE, 1)
    assert harness.log.bound == (2 * SIZE, 2)
    harness.append(b"c")
    harness.log.limit_visibility()
    assert ends(harness) == (2 * SIZE, 2), "limited twice is limited once"


def test_on_visible_is_called_only_when_more_is_visible(harness, log):
    seen: list[int] = []
    log.on_visible = lambda log: seen.append(log.visible_end)
    log.limit_visibility()
    harness.append_each(b"a", b"b")
    assert seen == []
    log.raise_bound(SIZE, 1)
    log.raise_bound(SIZE, 1)
    log.raise_bound(5 * SIZE, 5)
    assert seen == [SIZE, 2 * SIZE]
    harness.append(b"c")
    log.unlimited()
    log.unlimited()
    assert seen == [SIZE, 2 * SIZE, 3 * SIZE]


def test_nothing_more_is_shown_after_a_failed_sync(grouped):
    grouped.log.limit_visibility()
    grouped.append(b"a")
    grouped.files.fail("fdatasync")
    grouped.threads.run_all()
    grouped.log.raise_bound(SIZE, 1)
    grouped.log.unlimited()
    assert ends(grouped) == (0, 0)


def test_retention_leaves_segments_that_readers_have_not_seen(harness):
    harness.max_segment_size = 2 * SIZE
    harness.delete_policy = DeletePolicy(Disposal.DELETE, 60)
    log = harness.log
    log.limit_visibility()
    harness.append_each(*(b"%d" % number for number in range(6)))
    harness.checkpoint()
    log.raise_bound(3 * SIZE, 3)
    harness.wall += 10**9
    removed = harness.retain()
    assert [each.first_offset for each in removed] == [0]
    check_invariants(log)
    log.unlimited()
    assert harness.bodies() == [b"2", b"3", b"4", b"5"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("raise"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["limit", "free", "work", "switch", "checkpoint"]), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("group_commit", [False, True])
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_readers_see_a_prefix_that_never_shrinks(tmp_path_factory, group_commit, steps):
    harness = StoreHarness(tmp_path_factory.mktemp("store"))
    harness.group_commit = group_commit
    harness.max_segment_size = 4 * SIZE
    log, seen = harness.log, 0
    for step, number in steps:
        if step == "append":
            harness.append(*[b"x"] * number)
        elif step == "raise":
            log.raise_bound(number * SIZE, number)
        elif step == "limit":
            log.limit_visibility()
        elif step == "free":
            log.unlimited()
        elif step == "work" and len(harness.threads):
            harness.threads.run_one()
        elif step == "switch":
            harness.group_commit = not harness.group_commit
            harness.store.reconfigure()
        elif step == "checkpoint":
            log.checkpoint()
        check_invariants(log)
        assert seen <= log.visible_end <= log.durability.safe_end
        seen = log.visible_end
    harness.files.kill()
