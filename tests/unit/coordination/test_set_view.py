"""What a view of a broker set says of its nodes."""

import pytest

from metaq.coordination.records.set_payloads import SetNode, SetState
from metaq.coordination.sets.set_view import SetView
from metaq.protocol.errors import CoordinationError


def test_the_leader_and_the_in_sync_nodes_of_a_set_are_told_from_the_others():
    view = SetView(SetState(3, "a", {"a": "x", "b": "y"}), 7)
    assert [view.role(name) for name in ("a", "b", "c")] == ["leader", "in-sync", "out of sync"]


def test_a_node_with_other_data_than_those_that_were_in_sync_is_not_in_sync():
    nodes = {name: SetNode(name, f"meta://{name}:1", "", "x") for name in "abc"}
    view = SetView(SetState(3, "a", {"a": "x", "b": "y"}), 7, nodes)
    assert [view.role(name) for name in ("a", "b", "c")] == ["leader", "out of sync", "out of sync"]
    assert view.in_sync_present == ["a"]


def test_before_the_first_epoch_the_name_of_a_node_is_enough():
    assert SetState(0, "", {"a": ""}).has_in_sync("a", "x")
    assert not SetState(0, "", {"a": ""}).has_in_sync("b", "x")
    assert not SetState(1, "", {"a": ""}).has_in_sync("a", "x")


def test_a_set_that_has_never_had_a_leader_has_nobody_in_sync():
    assert SetView(None, 0).role("a") == "out of sync"


@pytest.mark.parametrize(
    ("url", "address"), [("meta://host:8123", ("host", 8123)), ("meta://[::1]:8123", ("::1", 8123))]
)
def test_a_node_listens_where_its_url_says(url: str, address: tuple[str, int]):
    assert SetNode("a", url, "", "x").address == address


@pytest.mark.parametrize("url", ["", "host:8123", "meta://host:0"])
def test_a_node_without_a_proper_url_has_no_address(url: str):
    with pytest.raises(CoordinationError, match="meta://host:port"):
        _ = SetNode("a", url, "", "x").address
