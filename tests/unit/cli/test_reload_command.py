"""`metaq reload` and `partitions close` of a broker set: every node, the leader last."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.cli import reload as module
from metaq.cli import set_look
from metaq.cli.partitions import _at_target
from metaq.coordination.records.set_payloads import SetNode, SetState
from metaq.coordination.sets.set_view import SetMaster, SetView
from metaq.protocol.errors import BrokerUnavailable, ClientError, RequestRefused
from metaq.protocol.statuses import ResponseCode

ADDED = {"changed": True, "addedTopics": ["solo"], "warnings": []}
SAME = {"changed": False}
NODES = {name: SetNode(name, f"meta://{name}:1", "", name) for name in "abc"}
VIEW = SetView(SetState(3, "a", {"a": "a", "b": "b"}, members="abcd"), 5, NODES, SetMaster("meta://a:1", 1, 1))


class Nodes:
    """What the nodes answer. asked: their hosts in turn."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = dict.fromkeys("abc", ADDED)
        self.topics: dict[str, list[str]] = {}

    @contextmanager
    def connected(self, node: SetNode) -> Iterator[str]:
        yield node.name

    def reload(self, node: str) -> Any:
        self.asked.append(node)
        answer = self.answers[node]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def status(self, node: SetNode) -> Any:
        topics = dict.fromkeys(self.topics.get(node.name, ["solo"]), 0)
        return {"configuration": {"system": {}, "settings": [{}], "topics": topics}}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()
    monkeypatch.setattr(set_look, "connected", nodes.connected)
    monkeypatch.setattr(module, "reload_config", nodes.reload)
    monkeypatch.setattr(set_look, "_ask", nodes.status)
    return nodes


def test_the_leader_reads_its_file_last(nodes, capsys):
    module._reload_set(0, VIEW, as_json=False, dry_run=False)
    assert nodes.asked == ["b", "c", "a"]
    out, err = capsys.readouterr()
    assert out.count("server.ini was loaded again\n  topics added: solo\n") == 3
    assert out.startswith("node b: server.ini was loaded again")
    assert "not present in broker set 0: d; a node reads its file when it starts" in err


def test_a_node_that_is_not_reached_keeps_the_leader_from_reading_its_file(nodes):
    nodes.answers["c"] = BrokerUnavailable("c:1 refuses connections")
    with pytest.raises(ClientError) as refused:
        module._reload_set(0, VIEW, as_json=False, dry_run=False)
    assert nodes.asked == ["b", "c"]
    assert "node c of broker set 0 did not read its server.ini again: c:1 refuses connections" in str(refused.value)
    assert "not asked any more: a; asked before: b" in str(refused.value)
    assert "`metaq reload --server`" in str(refused.value)


def test_files_that_differ_still_are_an_error(nodes, capsys):
    """The operator has changed the leader's file alone."""
    nodes.answers["b"] = SAME
    nodes.topics["b"] = []
    with pytest.raises(ClientError, match=r"\[topic=solo\] only on a, c, not on b"):
        module._reload_set(0, VIEW, as_json=False, dry_run=False)
    assert "node b: server.ini has not changed" in capsys.readouterr().out


def test_a_dry_run_asks_nobody(nodes, capsys):
    module._reload_set(0, VIEW, as_json=False, dry_run=True)
    assert nodes.asked == []
    assert capsys.readouterr().out.splitlines()[-1] == "would ask node a at meta://a:1 to read its server.ini again"


# --- closing partitions -----------------------------------------------------------------------------------------------


def closing(nodes: Nodes) -> list[int]:
    target: Any = SimpleNamespace(found=lambda: ("meta://a:1", (0, VIEW)))
    connections = {name: SimpleNamespace(endpoint=name) for name in "abc"}

    @contextmanager
    def connected(node: SetNode) -> Iterator[Any]:
        yield connections[node.name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(set_look, "connected", connected)
        return _at_target(
            target, lambda connection: nodes.reload(str(connection.endpoint)), "close them", "metaq close"
        )


def test_partitions_are_closed_at_every_node_so_that_the_next_leader_does_not_serve_them(nodes):
    nodes.answers = {"a": [1, 2], "b": [1, 2], "c": [2]}
    assert closing(nodes) == [1, 2]
    assert nodes.asked == ["b", "c", "a"]


def test_a_node_that_is_not_reached_keeps_the_leader_from_closing(nodes):
    nodes.answers["b"] = BrokerUnavailable("b:1 refuses connections")
    with pytest.raises(ClientError, match="node b of broker set 0 did not close them: b:1 refuses connections"):
        closing(nodes)
    assert nodes.asked == ["b"]


def test_a_follower_of_an_earlier_version_is_told_and_passed_over(nodes, capsys):
    """It takes the request only while it leads."""
    nodes.answers = {"a": [1], "b": RequestRefused(ResponseCode.NOT_LEADER, "b does not lead"), "c": [1]}
    assert closing(nodes) == [1]
    assert "b is left out: its version takes this only while it leads" in capsys.readouterr().err
