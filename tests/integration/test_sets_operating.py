"""Nodes of a broker set as processes, and what operators ask of them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metaq import Consumer, Producer
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import delete
from metaq.coordination.sets.set_view import SetView, read_set
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import RunningBroker
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import read
from tests.integration.replication_helpers import broker, same_files, slave
from tests.waiting import DEADLINE, eventually

StartNode = Callable[..., RunningBroker]


@pytest.fixture
def start(chroot: str, tmp_path: Path) -> Iterator[StartNode]:
    """`start(name)` starts a node of set 0; again with the same directory after an end."""
    with ExitStack() as stack:

        def start(name: str, system: str = "", *options: str) -> RunningBroker:
            options = ("--node", name, *options)
            return stack.enter_context(broker(tmp_path / name, chroot, {"t": 2}, *options, system=system))

        yield start


def view(chroot: str) -> SetView:
    with ZkSession(chroot) as session:
        return read_set(session, 0)


def led(chroot: str, leader: str, *in_sync: str) -> SetView:
    """The set once it is led so."""

    def found() -> SetView | None:
        now = view(chroot)
        state = now.state
        good = state and now.master and state.leader == leader and set(state.in_sync) == {leader, *in_sync}
        return now if good else None

    return eventually(found, 2 * DEADLINE, f"{leader} leads with {in_sync}") or view(chroot)


def send(chroot: str, *payloads: bytes) -> None:
    with ZkSession(chroot) as session:  # a leader is elected before it has registered its topics
        view = ClusterView(session)
        eventually(lambda: len(view.topic_partitions("t")) == 2, DEADLINE, "the leader's topics")
    put(chroot, "t", *payloads)


def put(chroot: str, topic: str, *payloads: bytes) -> None:
    with Producer(chroot) as producer:
        for each in payloads:
            producer.send(topic, each, timeout=DEADLINE)


def test_an_asynchronous_slave_follows_the_leader_of_a_set_through_a_failover(
    chroot: str, tmp_path: Path, start: StartNode
):
    first = start("a")
    led(chroot, "a")
    start("b")
    led(chroot, "a", "b")
    with slave(tmp_path, chroot, {"t": 2}):
        send(chroot, b"1", b"2", b"3", b"4")
        eventually(lambda: same_files(tmp_path / "a" / "data", tmp_path / "slave" / "data"), 2 * DEADLINE, "the copy")
        first.kill()
        led(chroot, "b")
        send(chroot, b"5", b"6", b"7", b"8")
        eventually(lambda: same_files(tmp_path / "b" / "data", tmp_path / "slave" / "data"), 2 * DEADLINE, "the rest")


def test_a_reload_changes_the_promise_of_a_leader(chroot: str, start: StartNode):
    node = start("a")
    led(chroot, "a")
    send(chroot, b"taken")
    node.ini.write_text(node.ini.read_text().replace("[topic=t]\n", "[topic=t]\nminInSync=2\n"))
    with node.connect() as connection:
        assert connection.ask_frame(encode_frame(RequestCode.RELOAD_CONFIG, 1, {})).code == ResponseCode.SUCCESS
        put = connection.ask(b"put t 0 1 0 1\r\nx")
    assert b"minInSync" in put.text.encode() or "in-sync" in put.text, put


def test_monitor_tells_what_is_wrong_with_a_set_and_which_topics_take_nothing(chroot: str, start: StartNode):
    operator = Operator(chroot)
    first = start("a", "minInSync=2")
    led(chroot, "a")
    second = start("b", "minInSync=2")
    led(chroot, "a", "b")
    send(chroot, b"x")

    def seen() -> tuple[int, list[str]]:
        ran = operator.ran("monitor", "--min-memory", "0", "--json")
        found = json.loads(ran.out)["findings"]
        return ran.code, [f"{each['level']} {each['text']}" for each in found if each["what"] == "set 0"]

    assert seen() == (0, ["ok a leads epoch 1, in sync: a, b"])
    second.stop()
    led(chroot, "a")
    eventually(lambda: not view(chroot).nodes.keys() - {"a"}, DEADLINE, "the end of b")
    refused = "new messages have one copy; fewer nodes than minInSync, so no messages are taken: t"
    assert seen() == (1, [f"alarm a leads epoch 1, in sync: a; b is gone (it stops); {refused}"])
    ran = operator.ran("brokers", "sets")
    assert "broker set 0 takes no messages for t: nodes in sync: 1, fewer than minInSync" in ran.err
    assert "it stops" in ran.out
    assert "no messages are taken for t: in-sync nodes: 1, fewer than minInSync" in first.errors.read_text()
    start("b", "minInSync=2")
    led(chroot, "a", "b")
    assert seen() == (0, ["ok a leads epoch 1, in sync: a, b"])
    eventually(lambda: "messages are taken again for t" in first.errors.read_text(), DEADLINE, "the line")


def test_an_alarm_of_monitor_names_the_nodes_that_are_missing(chroot: str, start: StartNode):
    operator = Operator(chroot)
    nodes = [start("a")]
    led(chroot, "a")
    nodes.append(start("b"))
    led(chroot, "a", "b")
    nodes[1].kill()
    led(chroot, "a")
    nodes[0].kill()
    last = start("b")
    eventually(lambda: view(chroot).master is None, 2 * DEADLINE, "the end of the leader's session")
    eventually(lambda: "waits: no in-sync node is present: start a" in last.errors.read_text(), DEADLINE, "the line")
    ran = operator.ran("monitor", "--min-memory", "0")
    assert ran.code == 1
    (line,) = [each for each in ran.out.splitlines() if "set 0" in each or "broker 0" in each]
    assert " alarm set 0: nobody leads it, so it takes no messages; a is gone, was leader; b is out of sync" in line
    assert "(no in-sync node is present: start a)" in line


# --- handing over -----------------------------------------------------------------------------------------------------


def test_an_operator_hands_a_set_over_and_is_told_why_not(chroot: str, start: StartNode):
    operator = Operator(chroot)
    first = start("a")
    led(chroot, "a")
    assert "no other node is in sync" in operator.refused("brokers", "hand-over", "0")
    second = start("b")
    led(chroot, "a", "b")
    a_topic_that_a_reload_has_made_is_there_after_a_change_of_the_leader(chroot, operator, first, second)
    assert "c cannot take over" in operator.refused("brokers", "hand-over", "0", "--to", "c")
    done = operator.json("brokers", "hand-over", "0", "--to", "b")
    assert (done["set"], done["leader"]) == (0, "b")
    assert done["epoch"] == 2
    assert 0 < done["seconds"] < DEADLINE
    led(chroot, "b", "a")
    for topic in ("solo", "lone"):  # lone: only a's file names it
        put(chroot, topic, b"3")
        with Consumer(chroot, group="audit", topics=[topic]) as consumer:
            assert sorted(each.payload for each in read(consumer, 3)) == [b"1", b"2", b"3"]
    told = "no section in this node's server.ini: lone. They are served with the settings of [system]"
    eventually(lambda: told in second.errors.read_text(), DEADLINE, "the line")
    ran = operator.ran("brokers", "hand-over", "0")
    assert ran.code == 0
    assert "broker set 0: a leads epoch 3; the hand-over took 0." in ran.out
    assert "a leads already" in operator.ran("brokers", "hand-over", "0", "--to", "a").out
    assert "is no broker set" in operator.refused("brokers", "hand-over", "7")
    second.kill()
    first.kill()
    eventually(lambda: view(chroot).master is None, 2 * DEADLINE, "the end of the leader's session")
    assert "no leader in broker set 0" in operator.refused("brokers", "hand-over", "0")


def a_topic_that_a_reload_has_made_is_there_after_a_change_of_the_leader(
    chroot: str, operator: Operator, leader: RunningBroker, other: RunningBroker
) -> None:
    """The first part: a topic in both files, and one that is in the leader's alone."""
    files = [(node, node.ini.read_text()) for node in (leader, other)]
    for node, ini in files:
        node.ini.write_text(ini + "\n[topic=solo]\n")
    assert [each["addedTopics"] for each in operator.json("reload", "--broker", "0")["nodes"]] == [["solo"], ["solo"]]
    leader.ini.write_text(leader.ini.read_text() + "\n[topic=lone]\n")
    ran = operator.ran("reload", "--broker", "0")
    assert (ran.code, "[topic=lone] only on a, not on b" in ran.err) == (1, True), ran
    monitored = operator.ran("monitor", "--min-memory", "0")
    assert (monitored.code, "[topic=lone] only on a, not on b" in monitored.out) == (1, True), monitored
    for topic in ("solo", "lone"):
        put(chroot, topic, b"1", b"2")


def test_operators_see_how_far_the_nodes_of_a_set_are(chroot: str, start: StartNode):
    operator = Operator(chroot)
    node = start("a")
    led(chroot, "a")
    start("b", "", "--zone", "west")
    led(chroot, "a", "b")
    send(chroot, b"x")

    def caught_up() -> Any:
        rows = operator.json("brokers", "sets")
        return rows if [row["lag_bytes"] for row in rows] == [0, 0] else None

    rows = eventually(caught_up, DEADLINE, "no lag")
    assert [(row["node"], row["role"], row["zone"]) for row in rows] == [
        ("a", "leader", None),
        ("b", "in-sync", "west"),
    ]
    assert all(row["lag_seconds"] == 0.0 and row["since_ms"] > 10**12 and row["error"] is None for row in rows)
    with node.connect() as connection:
        lines = connection.ask(b"stats replication 1\r\n").text.splitlines()
    assert {"role leader", "node a", "epoch 1", "inSync a,b", "elections 1", "handOvers 0"} <= set(lines)
    (follower,) = [line for line in lines if line.startswith("follower ")]
    assert follower.startswith(
        "follower b in_sync true connected true live true lag_bytes 0 lag_seconds 0.000 since_ms "
    )
    assert operator.ran("brokers", "sets", "--in-sync", "2").code == 0
    too_few = operator.ran("brokers", "sets", "--in-sync", "3")
    assert too_few.code == 1
    assert "broker set 0 has 2 in-sync nodes, not 3: a, b" in too_few.err
    listed = operator.json("brokers", "list")
    assert [(row["broker"], row["role"], row["node"]) for row in listed] == [(0, "master", "a")]


def test_a_preferred_node_is_written_into_the_state_and_nothing_else(chroot: str, start: StartNode):
    operator = Operator(chroot)
    start("a")
    state = led(chroot, "a").state
    assert state
    assert operator.json("brokers", "prefer", "0", "a") == {"set": 0, "preferred": "a"}
    assert view(chroot).state == replace(state, preferred="a")
    assert "is no node of broker set 0: choose a" in operator.refused("brokers", "prefer", "0", "z")
    assert operator.ran("brokers", "prefer", "0").code == 2
    assert operator.json("brokers", "prefer", "0", "--none") == {"set": 0, "preferred": None}
    assert view(chroot).state == state
    start("b")
    led(chroot, "a", "b")  # the leader goes on from the state that was written


# --- the last resort --------------------------------------------------------------------------------------------------


def test_a_node_that_is_not_in_sync_leads_only_if_an_operator_insists(chroot: str, tmp_path: Path, start: StartNode):
    operator = Operator(chroot)
    first = start("a")
    led(chroot, "a")
    second = start("b")
    led(chroot, "a", "b")
    send(chroot, b"both")
    assert "has a leader" in operator.refused("brokers", "elect", "0", "--unclean", "--node", "b")
    assert second.stop() == 0
    led(chroot, "a")
    send(chroot, b"only a", b"only a", b"only a")
    with Consumer(chroot, group="audit", topics=["t"]) as consumer:
        assert len(read(consumer, 4)) == 4
        consumer.commit()
    first.kill()
    second = start("b")
    eventually(lambda: view(chroot).master is None, 2 * DEADLINE, "the end of a's session")
    eventually(lambda: "a" not in view(chroot).nodes, 2 * DEADLINE, "the end of a's session")
    elect = ("brokers", "elect", "0", "--unclean", "--node", "b")
    ran = operator.ran(*elect)
    assert ran.code == 1
    assert "not present: a; what only they have is lost" in ran.out
    assert "nothing is done: with --yes" in ran.out
    assert "groups that have read more than b has" in ran.out
    assert "--node=c" in operator.refused("brokers", "elect", "0", "--unclean", "--node", "c")
    before = view(chroot).state
    assert before
    ran = operator.ran(*elect, "--yes")
    assert ran.code == 1, ran
    assert "b leads epoch" in ran.out
    after = led(chroot, "b").state
    assert after
    assert after.epoch == before.epoch + 1
    a_group_that_was_ahead_is_told_and_set_back(chroot, operator, ran.err)
    start("a")
    led(chroot, "b", "a")
    assert list((tmp_path / "a" / "data").rglob("*damaged*"))
    assert "has a leader" in operator.refused(*elect, "--yes")


def a_group_that_was_ahead_is_told_and_set_back(chroot: str, operator: Operator, told: str) -> None:
    """Its offsets of what is lost lie in the middle of what has come since. told: by `elect`."""
    commands = re.findall(r"metaq: not set back: `metaq (groups seek audit --topic t [^`]*)`", told)
    assert commands
    new = [b"after %d" % number for number in range(12)]
    send(chroot, *new)
    ran = operator.ran("monitor", "--min-memory", "0", "--group", "audit")
    alarm = "alarm group audit: has read messages that are lost, and skips the messages that took their place"
    assert (ran.code, alarm in ran.out) == (1, True), ran
    for command in commands:
        assert operator.ran(*command.split()).code == 0
    with Consumer(chroot, group="audit", topics=["t"]) as consumer:
        assert sorted(each.payload for each in read(consumer, len(new))) == sorted(new)


def test_a_set_whose_state_is_lost_waits_for_an_operator(chroot: str, start: StartNode):
    operator = Operator(chroot)
    nodes = [start("a")]
    led(chroot, "a")
    nodes.append(start("b"))
    led(chroot, "a", "b")
    send(chroot, b"kept")
    for node in nodes:
        node.kill()
    with ZkSession(chroot) as session:
        eventually(lambda: not read_set(session, 0).nodes, 2 * DEADLINE, "the end of the sessions")
        epoch = read_set(session, 0).state
        delete_state(session)
    start("b")
    start("0")  # a node without data that comes too
    node = start("a")
    eventually(lambda: "has no state of broker set 0" in node.errors.read_text(), DEADLINE, "a's log")
    assert view(chroot).state is None
    with node.connect() as connection:
        lines = connection.ask(b"stats replication 1\r\n").text.splitlines()
    assert "role waiting" in lines
    assert any(line.startswith("error ZooKeeper has no state of broker set 0") for line in lines)
    assert epoch
    ran = operator.ran("brokers", "elect", "0", "--unclean", "--node", "a", "--yes")
    assert ran.code == 0, ran
    assert "nobody knows which nodes were in sync" in ran.out
    after = led(chroot, "a", "b", "0").state
    assert after
    assert after.epoch == epoch.epoch + 1
    with ZkSession(chroot) as session:  # once more, with nodes that go on running
        delete_state(session)
    eventually(lambda: node.errors.read_text().count("has no state of broker set 0") == 2, DEADLINE, "a's log")
    eventually(lambda: view(chroot).nodes.keys() == {"a", "b", "0"}, DEADLINE, "the nodes")
    ran = operator.ran("brokers", "sets")
    assert (ran.code, "`metaq brokers elect 0 --unclean --node NODE`" in ran.err) == (1, True), ran
    ran = operator.ran("brokers", "elect", "0", "--unclean", "--node", "b", "--yes")
    assert ran.code == 0, ran
    again = led(chroot, "b", "a", "0").state
    assert again
    assert again.epoch == after.epoch + 1


def delete_state(session: ZkSession) -> None:
    paths = session.paths
    nodes = [paths.set_node(0, name) for name in session.nodes.children(paths.set_nodes(0))]
    nodes += [paths.set_nodes(0), paths.broker_set(0)]
    assert session.nodes.write_atomically(session.session_id, [delete(each) for each in nodes]) is None
