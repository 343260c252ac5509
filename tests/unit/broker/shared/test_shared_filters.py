"""What a shared group takes of a topic: who says it, who is refused, and when it may change."""

import pytest

from metaq.broker.shared.group_filter import GroupFilter, TopicFilter
from metaq.errors import InvalidWhere, SharedRefused, StoreError
from metaq.protocol.shared import AcquireRequest

MINE = GroupFilter("n > 1", ("a", "b"), True)
OTHER = GroupFilter()


def asked(**more: object) -> GroupFilter:
    return GroupFilter.of(AcquireRequest("t", 0, "g", "m", 1, 1, 1, **more))  # type: ignore[arg-type]


def test_the_same_tags_in_another_order_and_blanks_around_the_filter_are_the_same() -> None:
    assert asked(where=" n > 1 ", tags=("b", "a", "b"), ordered=True) == MINE
    assert asked() == OTHER


def test_the_first_who_asks_says_it_and_others_are_refused_until_nobody_has_asked_for_a_minute() -> None:
    agreed = TopicFilter("g", "t", 0.0)
    assert agreed.agree(MINE, "m", 0.0, has_leases=False)
    assert not agreed.agree(MINE, "m", 50.0, has_leases=True)
    for wanted in (OTHER, MINE._replace(ordered=False), MINE._replace(tags=("a",)), MINE._replace(where="n > 2")):
        with pytest.raises(SharedRefused) as refusal:
            agreed.agree(wanted, "x", 109.9, has_leases=False)
        assert str(MINE) in str(refusal.value)
        assert f"({'x'}) wants {wanted}" in str(refusal.value)
        assert agreed.filter == MINE
    with pytest.raises(SharedRefused):
        agreed.agree(OTHER, "x", 200.0, has_leases=True)
    assert agreed.agree(OTHER, "x", 110.0, has_leases=False)
    assert agreed.filter == OTHER


def test_one_that_was_written_down_is_in_use_for_a_minute_from_the_start_on() -> None:
    agreed = TopicFilter("g", "t", 1000.0, MINE)
    with pytest.raises(SharedRefused):
        agreed.agree(OTHER, "x", 1059.9, has_leases=False)
    assert agreed.agree(OTHER, "x", 1060.0, has_leases=False)


def test_what_cannot_be_read_changes_nothing() -> None:
    agreed = TopicFilter("g", "t", 0.0, MINE)
    with pytest.raises(InvalidWhere):
        agreed.agree(GroupFilter("n >"), "x", 100.0, has_leases=False)
    assert agreed.filter == MINE


def test_it_is_read_as_it_was_written() -> None:
    assert [GroupFilter.from_text(each.to_text()) for each in (MINE, OTHER)] == [MINE, OTHER]
    for text in ("", "{}", "[]", '{"where": 1, "tags": 2, "ordered": 3}'):
        with pytest.raises(StoreError, match="filter"):
            GroupFilter.from_text(text)


def test_a_long_one_is_shortened_for_people() -> None:
    assert str(MINE) == "where='n > 1', tags=['a', 'b'], ordered_by_key=True"
    assert len(str(GroupFilter("x" * 4096))) < 1100
