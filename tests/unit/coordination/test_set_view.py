"""What a view of a broker set says of its nodes."""

import pytest

from metaq.coordination.records import SetNode, SetState
from metaq.coordination.set_view import SetView
from metaq.protocol.errors import CoordinationError


def test_the_leader_and_the_in_sync_nodes_of_a_set_are_told_from_the_others():
    view = SetView(SetState(3, "a", ("a", "b")), 7)
    assert [view.role(name) for name in ("a", "b", "c")] == ["leader", "in-sync", "out of sync"]


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
