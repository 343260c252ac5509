"""A group whose members filter a topic differently hears of it: what one leaves out reaches nobody."""

import logging

import pytest

from metaq.client.consumer.filters import GroupFilters
from metaq.coordination.records import ConsumerFilter

LOG = "metaq.client.consumer.filters"
BUY, SELL = {"t": ConsumerFilter(("buy",))}, {"t": ConsumerFilter(("sell",))}
MEMBERS = {"t": ("a", "b"), "%RETRY%g": ("a", "b")}


def test_both_sides_are_warned_once_with_the_remedy(caplog):
    for me in ("a", "b"):
        member = GroupFilters("g")
        for _ in range(3):
            member.look(me, MEMBERS, {"a": BUY, "b": SELL})
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2
    first, second = (each.getMessage() for each in caplog.records)
    assert "topic t differently: a takes tags buy, and b takes tags sell" in first
    assert "b takes tags sell, and a takes tags buy" in second
    assert "give all members the same tags and where, or each filter a group of its own" in first


def test_the_same_filters_and_none_at_all_say_nothing(caplog):
    member = GroupFilters("g")
    member.look("a", MEMBERS, {"a": BUY, "b": BUY})
    member.look("a", MEMBERS, {})
    member.look("a", {"t": ("a",)}, {"b": SELL})
    assert caplog.text == ""


@pytest.mark.parametrize("me", ["a", "b"])
def test_a_member_without_a_filter_is_another_one_too(me, caplog):
    GroupFilters("g").look(me, MEMBERS, {"a": {"t": ConsumerFilter(("x", "y"), "v = 1")}})
    assert "tags x, y and of these what has v = 1" in caplog.text
    assert "all messages, or does not say which (Java, an older version)" in caplog.text


def test_a_change_is_told_again_and_so_is_its_end(caplog):
    member = GroupFilters("g")
    member.look("a", MEMBERS, {"a": BUY, "b": SELL})
    member.look("a", {"t": ("a", "b", "c")}, {"a": BUY, "b": SELL, "c": SELL})  # another member, no other filter
    assert len(caplog.records) == 1
    member.look("a", MEMBERS, {"a": BUY})
    assert len(caplog.records) == 2
    with caplog.at_level(logging.INFO, LOG):
        member.look("a", MEMBERS, {"a": BUY, "b": BUY})
    assert "all members filter topic t alike again" in caplog.messages[-1]
