"""`metaq reload` of a broker set: every node, the leader last."""

from typing import Any

import pytest

from metaq.cli import reload as module
from metaq.cli import set_look
from metaq.coordination.set_records import SetNode, SetState
from metaq.coordination.set_view import SetMaster, SetView
from metaq.protocol.errors import BrokerUnavailable, ClientError

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

    def reload(self, endpoint: Any) -> Any:
        self.asked.append(endpoint.host)
        answer = self.answers[endpoint.host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def status(self, node: SetNode) -> Any:
        topics = dict.fromkeys(self.topics.get(node.name, ["solo"]), 0)
        return {"configuration": {"system": {}, "settings": [{}], "topics": topics}}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()
    monkeypatch.setattr(module, "_reload_node", nodes.reload)
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
