"""ZooKeeper comes back with an older state of a broker set of the same epoch, whose in-sync nodes were others later."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metaq.coordination.records.set_payloads import SetState, format_set_state
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import set_data
from tests.integration.set_nodes import SetNodes, set_nodes
from tests.integration.test_sets_identity import STAND_SECONDS, in_sync, says, send, stored
from tests.waiting import eventually
from tests.zookeepers import data_of, zookeeper_process

pytestmark = pytest.mark.timeout(180)


class Cluster:
    """A set, and its ZooKeeper, whose data are copied and put back."""

    def __init__(self, directory: Path, server: ZooKeeperProcess, nodes: SetNodes) -> None:
        self.nodes = nodes
        self._server = server
        self._copy = directory / "copy"

    def copy(self) -> SetState:
        """Copy the data, with a state of the set that it still has when the server runs again; return that state.

        A node on a busy machine may come back after its session has ended. Then the set elects another leader, and the
        copy has an earlier epoch than the set: such a copy is made again.
        """
        while True:
            before = self.nodes.view().state
            assert before is not None
            self._server.stop()
            shutil.copytree(data_of(self._server), self._copy)
            self._server.start()
            self.nodes.wait_in_sync(*before.in_sync)
            after = self.nodes.view().state
            assert after is not None
            if (after.epoch, after.leader) == (before.epoch, before.leader):
                return before
            shutil.rmtree(self._copy)

    def set_back(self) -> None:
        self._server.stop()
        shutil.rmtree(data_of(self._server))
        shutil.copytree(self._copy, data_of(self._server))
        self._server.start()

    def drop(self, name: str, number: signal.Signals) -> None:
        """Until the set has dropped the node. A stopped one still reads later what its socket was sent meanwhile."""
        self.nodes.signal(name, number)
        eventually(lambda: name not in in_sync(self.nodes), what=f"{name} to be dropped")
        self.absent(name)

    def absent(self, name: str) -> None:
        eventually(lambda: name not in self.nodes.view().nodes, what=f"the session of {name} to end")

    def resume(self, name: str) -> None:
        self.nodes.signal(name, signal.SIGCONT)
        eventually(lambda: name in self.nodes.view().nodes, what=f"{name} to come back")


@contextmanager
def cluster(directory: Path, *names: str) -> Iterator[Cluster]:
    server = zookeeper_process(directory / "zk", tick_time_ms=100)
    server.start()
    with set_nodes(directory, server.connect_string, {"t": "numPartitions=1"}) as nodes:
        nodes.start(*names)
        nodes.wait_in_sync(*names)
        yield Cluster(directory, server, nodes)
    server.stop()


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_a_dropped_node_is_not_elected_by_the_older_state_that_counts_it_in(tmp_path: Path, names: str) -> None:
    with cluster(tmp_path, *names) as tested:
        nodes, operator = tested.nodes, tested.nodes.operator
        copied = tested.copy()
        leader = copied.leader
        dropped = next(name for name in names if name != leader)
        tested.drop(dropped, signal.SIGSTOP)
        sent = send(nodes, "acknowledged")
        tested.set_back()
        advice = []

        def revoked() -> bool:
            advice.append(operator.ran("brokers", "sets").err)
            state = nodes.view().state
            return state is not None and state.is_revoked

        eventually(revoked, what="the older state to be taken out of force")
        tested.absent(dropped)
        for _ in range(2):  # before the dropped node goes on, and when it has had the time to be elected
            sets = operator.ran("brokers", "sets")
            advice.append(sets.err + sets.out)
            assert sets.code == 1
            assert "ZooKeeper was set back to an older state of broker set 0" in sets.err
            monitor = operator.ran("monitor", "--min-memory", "0")
            assert monitor.code == 1
            assert "nobody leads it" in monitor.out
            assert "ZooKeeper was set back" in monitor.out
            table = operator.ran("brokers", "elect", "0", "--unclean", "--node", leader).out
            assert "nobody knows which nodes were in sync" in table
            if dropped not in nodes.view().nodes:
                tested.resume(dropped)
                time.sleep(STAND_SECONDS)
        assert not [each for each in advice if "not present: start it" in each or "start an in-sync node" in each]
        state, master = nodes.view().state, nodes.view().master
        assert state is not None
        assert (state.epoch, state.leader) == (copied.epoch, "")
        assert master is None
        nodes.elect(leader)
        nodes.wait_in_sync(*names)
        assert nodes.leader == leader
        for name in names:
            eventually(lambda name=name: set(sent) <= stored(nodes, name), what=f"{name} to have everything")  # type: ignore[misc]
            assert nodes.kept(name) == []


def test_a_node_does_not_cut_what_is_acknowledged_for_a_leader_that_an_older_state_elected(tmp_path: Path) -> None:
    """Nobody who knew better was there in time, and ZooKeeper's numbers do not tell, either."""
    with cluster(tmp_path, "a", "b") as tested:
        nodes = tested.nodes
        old = nodes.view().state
        assert old is not None
        tested.drop("b", signal.SIGKILL)
        sent = send(nodes, "acknowledged")
        nodes.signal("a", signal.SIGSTOP)
        tested.absent("a")
        write(nodes, old)
        nodes.start("b")
        nodes.wait_in_sync("b")
        later = send(nodes, "later")
        tested.resume("a")
        says(nodes, "a", "lacks acknowledged messages that a has")
        assert set(sent) <= stored(nodes, "a")
        assert nodes.kept("a") == []
        shown = nodes.operator.ran("brokers", "sets").out
        assert "stopped" in shown
        assert "`metaq brokers elect 0 --unclean --node a`" in shown
        monitor = nodes.operator.ran("monitor", "--min-memory", "0")
        assert monitor.code == 1
        assert "a is stopped" in monitor.out
        nodes.kill("b")
        tested.absent("b")
        eventually(lambda: nodes.view().master is None, what="the session of b to end")
        nodes.elect("a")
        nodes.wait_in_sync("a")
        nodes.start("b")
        nodes.wait_in_sync("a", "b")
        eventually(lambda: set(sent) <= stored(nodes, "b"), what="b to have everything")
        assert not set(later) & stored(nodes, "b")
        assert nodes.kept("b")


def test_a_living_node_cuts_what_an_operator_has_given_up(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b") as tested:
        nodes = tested.nodes
        before = send(nodes, "before")
        tested.drop("b", signal.SIGKILL)
        sent = send(nodes, "given up")
        nodes.signal("a", signal.SIGSTOP)
        tested.absent("a")
        nodes.start("b")
        nodes.elect("b")
        nodes.wait_in_sync("b")
        tested.resume("a")
        nodes.wait_in_sync("a", "b")
        assert set(before) <= stored(nodes, "a")
        assert not set(sent) & stored(nodes, "a")
        assert nodes.kept("a")


def write(nodes: SetNodes, state: SetState) -> None:
    with ZkSession(nodes.connect) as session:
        session.nodes.write(session.session_id, [set_data(session.paths.broker_set(0), format_set_state(state))])
