"""What `metaq brokers sets` and `metaq monitor` say of broker sets in trouble."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from metaq.cli import broker_sets, set_look
from metaq.cli.app import run
from metaq.cli.probes import ProbeLevel, _set
from metaq.cli.set_look import SetLook, look_at_sets
from metaq.coordination.records.set_payloads import SetNode, SetState
from metaq.coordination.sets.set_view import SetMaster, SetView
from metaq.protocol.errors import BrokerUnavailable


def node(name: str) -> SetNode:
    return SetNode(name, f"meta://{name}:1", "", name)


def view(present: str, *, in_sync: str = "ab", master: str | None = "a", members: str = "") -> SetView:
    """A set that a leads by its state. master: the host that clients find."""
    state = SetState(3, "a", {name: name for name in in_sync}, members=members)
    found = SetMaster(f"meta://{master}:1", 1, 1) if master else None
    return SetView(state, 5, {name: node(name) for name in present}, found)


def follower(name: str, error: str = "", *, live: bool = True) -> dict[str, Any]:
    lag = {"lagBytes": 0, "lagSeconds": 0.0} if live else {"lagBytes": None, "lagSeconds": None}
    return {"name": name, "inSync": live, "connected": live, "live": live, "error": error, "sinceMs": 7, **lag}


def leader(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a says."""
    return {"role": "leader", "epoch": 3, "sinceMs": 7, "error": "", "nodes": list(nodes)} | more


def test_a_whole_set_is_fine():
    look = SetLook(0, view("ab"), {"a": leader(follower("b"), refusing=[], underReplicated=[])})
    assert [look.role(name) for name in look.names] == ["leader", "in-sync"]
    assert _set(look) == (ProbeLevel.OK, "set 0", "a leads epoch 3, in sync: a, b")


def test_a_set_with_one_node_left_is_an_alarm_that_says_why_and_what_is_refused():
    gone = follower("b", "it stops", live=False)
    told = leader(gone, refusing=["safe"], underReplicated=["safe", "t"])
    look = SetLook(0, view("a", in_sync="a", members="ab"), {"a": told})
    assert (look.role("b"), look.error("b")) == ("gone", "it stops")
    assert _set(look) == (
        ProbeLevel.ALARM,
        "set 0",
        "a leads epoch 3, in sync: a; b is gone (it stops); new messages have one copy; "
        "fewer nodes than minInSync, so no messages are taken: safe",
    )


def test_a_member_that_the_leader_has_never_seen_is_missed():
    """It led before, and died."""
    look = SetLook(0, view("ab", members="abc"), {"a": leader(follower("b"), refusing=[], underReplicated=["t"])})
    assert look.role("c") == "gone"
    assert _set(look)[::2] == (ProbeLevel.WARNING, "a leads epoch 3, in sync: a, b; c is gone")


def test_more_nodes_wanted_than_there_are_is_an_alarm_though_all_are_in_sync():
    look = SetLook(0, view("ab"), {"a": leader(follower("b"), refusing=["safe"], underReplicated=[])})
    assert _set(look).level is ProbeLevel.ALARM
    look = SetLook(0, view("ab"), {"a": leader(follower("b"), refusing=[], underReplicated=["wide"])})
    assert _set(look)[::2] == (
        ProbeLevel.WARNING,
        "a leads epoch 3, in sync: a, b; fewer nodes than replicas= says: wide",
    )


def test_a_stopped_node_of_three_is_a_warning_in_its_own_words():
    seen = follower("c", "the connection to c was lost", live=False)
    told = {"a": leader(follower("b"), seen), "c": {"role": "stopped", "error": "move its data directories away"}}
    look = SetLook(0, view("abc"), told)
    assert (look.role("c"), look.error("c")) == ("stopped", "move its data directories away")
    assert _set(look)[::2] == (
        ProbeLevel.WARNING,
        "a leads epoch 3, in sync: a, b; c is stopped (move its data directories away)",
    )


def test_a_set_without_a_leader_is_an_alarm_and_names_what_each_node_was_and_waits_for():
    told = {"c": {"role": "waiting", "error": "no in-sync node is present: start a or b"}}
    look = SetLook(7, view("c", master=None), told)
    assert [look.role(name) for name in look.names] == ["gone, was leader", "gone, was in-sync", "out of sync"]
    level, what, text = _set(look)
    assert (level, what) == (ProbeLevel.ALARM, "set 7")
    assert "a is gone, was leader; b is gone, was in-sync; c is out of sync (no in-sync node is present" in text
    assert "`metaq brokers forget 7`" in text


FULL = {"role": "stopped", "error": "its disk is full", "epoch": 3, "sinceMs": 7}


def test_a_leader_that_has_stopped_does_not_lead_and_says_why():
    """It is registered still, so that what it has is not given up while no other node is in sync."""
    look = SetLook(0, view("ab", in_sync="a"), {"a": FULL, "b": FULL})
    assert (look.leader, look.role("a"), look.error("a")) == ("", "stopped", "its disk is full")
    level, what, text = _set(look)
    assert (level, what) == (ProbeLevel.ALARM, "set 0")
    assert "nobody leads it, so it takes no messages; a is stopped (its disk is full); b is stopped" in text
    assert text.endswith("put right what has stopped a, b, or start another in-sync node")


@pytest.mark.parametrize("options", [(), ("--in-sync", "1")])
def test_the_command_fails_if_the_leader_has_stopped(monkeypatch, capsys, options):
    monkeypatch.setattr(broker_sets, "open_session", lambda zk: nullcontext())
    monkeypatch.setattr(broker_sets, "read_sets", lambda session: {0: view("ab", in_sync="a"), 1: view("ab")})
    monkeypatch.setattr(set_look, "_ask", lambda each: FULL)
    assert run(["brokers", "sets", "--zk", "zk:1", "--json", *options]) == 1
    assert "no leader in broker set 0: a has stopped (its disk is full); b has stopped" in capsys.readouterr().err


def test_a_leader_that_is_back_but_not_elected_yet_does_not_lead():
    look = SetLook(0, view("ab", master=None), {})
    assert (look.leader, look.role("a"), look.role("b")) == ("", "was leader", "in-sync")
    assert _set(look).level is ProbeLevel.ALARM


def test_a_lone_broker_in_the_place_of_a_set_is_a_warning():
    level, _, text = _set(SetLook(7, view("", in_sync="a", master="lone"), {}))
    assert level is ProbeLevel.WARNING
    assert "broker 7 at meta://lone:1 is no node of it; a is gone, was leader: see `metaq brokers forget 7`" in text


def test_a_leader_that_does_not_answer_leaves_the_rest_unknown():
    look = SetLook(0, view("ab"), {"a": BrokerUnavailable("refused")})
    assert (look.leader, look.error("a")) == ("a", "")
    assert _set(look).level is ProbeLevel.UNKNOWN
    silent = SetLook(0, view("abc"), {"a": leader(), "c": BrokerUnavailable("refused")})
    assert silent.error("c") == "does not answer: refused"


@pytest.mark.parametrize("master", ["a", None])
def test_every_node_that_is_present_is_asked(monkeypatch, master):
    """An in-sync node, too: it may lead next, with a file of its own."""
    monkeypatch.setattr(set_look, "_ask", lambda each: {"role": "it", "name": each.name})
    (look,) = look_at_sets({0: view("abc", master=master)})
    assert set(look.told) == {"a", "b", "c"}
    assert all(look.says(name)["name"] == name for name in "abc")


# --- files of nodes ---------------------------------------------------------------------------------------------------


def configured(*topics: str, **options: Any) -> dict[str, Any]:
    settings = {"numPartitions": 2, "ack": "disk", "acceptPublish": True, "replicas": None} | options
    system = {"maxTransferSize": 1000}
    return {"configuration": {"system": system, "settings": [settings], "topics": dict.fromkeys(topics, 0)}}


def test_nodes_with_different_files_are_an_alarm_that_names_what_differs():
    told = {"a": leader(follower("b"), **configured("t", "solo")), "b": {"role": "follower", **configured("t")}}
    look = SetLook(0, view("ab"), told)
    assert look.differences == ["[topic=solo] only on a, not on b"]
    level, _, text = _set(look)
    assert level is ProbeLevel.ALARM
    assert "different server.ini files" in text
    assert "[topic=solo] only on a, not on b: give all nodes the same file, and run `metaq reload`" in text


def test_each_option_that_differs_is_told_as_the_file_has_it():
    options = {"numPartitions": 4, "replicas": 2, "acceptPublish": False, "group.g": "acme:keep"}
    told = {"a": leader(**configured("t")), "b": {**configured("t", **options)}, "c": {**configured("t")}}
    assert SetLook(0, view("abc"), told).differences == [
        "[topic=t] numPartitions=2 on a, 4 on b, 2 on c",
        "[topic=t] acceptPublish=true on a, false on b, true on c",
        "[topic=t] replicas=(none) on a, 2 on b, (none) on c",
        "[topic=t] group.g=(none) on a, acme:keep on b, (none) on c",
    ]
    told["b"] = {"configuration": {"system": {"maxTransferSize": 7}, "settings": [], "topics": {}}}
    assert "[system] maxTransferSize=1000 on a, 7 on b, 1000 on c" in SetLook(0, view("abc"), told).differences


def test_a_node_that_does_not_tell_its_file_is_no_alarm():
    """An older one, or one that does not answer; and an option that only newer nodes know."""
    newer = leader(follower("b"), refusing=[], underReplicated=[], **configured("t", newOption=1))
    for other in ({"role": "follower"}, BrokerUnavailable("refused"), {"role": "follower", **configured("t")}):
        look = SetLook(0, view("ab"), {"a": newer, "b": other})
        assert look.differences == []
        assert _set(look).level is ProbeLevel.OK


@pytest.mark.parametrize("revoked", [True, False])
def test_a_set_whose_state_was_set_back_asks_for_a_choice_and_for_no_start(revoked: bool):
    """Without the mark in the state, a node says that it knows of a newer one."""
    found = view("a", master=None)
    assert found.state is not None
    state = found.state.revoked() if revoked else found.state
    look = SetLook(0, replace(found, state=state), {"a": {} if revoked else {"setBack": True}})
    assert look.set_back
    level, _, text = _set(look)
    assert level is ProbeLevel.ALARM
    assert "choose the node that led last, which has most data, with `metaq brokers elect 0 --unclean" in text
    assert "start" not in text
