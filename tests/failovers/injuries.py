"""Doing a fault to a set, and putting it right again. One thread."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.kills.children import ROOT, wait_until
from tests.kills.journal import Journal, clock

from .facts import Failover
from .faults import Fault
from .network import CLIENTS
from .nodes import SESSION_SECONDS, NodePlace
from .sets import ZOOKEEPER, Sets

__all__ = ["Injuries", "Unhealed"]

_MOVE_SECONDS = 10.0
"""How long another node is waited for; some faults of the network leave the leader where it is."""
_STOPPED_SECONDS = SESSION_SECONDS + 3.0
_LEAST_SECONDS = 1.0
_END_SECONDS = 30.0
_ORDER_SECONDS = 120.0
_ALONE_SECONDS = 45.0
"""How long nodes have to come back by themselves; then they are started again, as an operator would do it."""
_HEALTHY_SECONDS = 180.0
_NEED_A_START = ("syncs fail", "disk full")
_LOOP_SECONDS = 1.0
_PAUSE_SECONDS = 2.0
"""Of load between two faults."""


class Unhealed(AssertionError):
    """A set did not come back although everything was put right."""


class Injuries:
    """done: the faults that were done, in order."""

    def __init__(self, cluster: Sets, notes: Journal) -> None:
        self.done: list[Failover] = []
        self._cluster = cluster
        self._notes = notes
        self._kinds: Mapping[str, Callable[[NodePlace], None]] = {
            "kill": lambda node: node.child.kill(),
            "stop": lambda node: node.child.freeze(),
            "term": self._terminate,
            "hand-over": self._hand_over,
            "syncs fail": lambda node: node.disk.break_syncs(),
            "disk full": lambda node: node.disk.fill(),
            "zookeeper lost": lambda node: self._cut(node, [ZOOKEEPER]),
            "peers lost": lambda node: self._cut(node, self._peers(node)),
            "both lost": lambda node: self._cut(node, [ZOOKEEPER, *self._peers(node)]),
            "alone": lambda node: self._cut(node, [ZOOKEEPER, CLIENTS, *self._peers(node)]),
            "one way: to zookeeper": lambda node: self._cut(node, [ZOOKEEPER], back=False),
            "one way: from zookeeper": lambda node: self._cut(node, [ZOOKEEPER], forth=False),
            "one way: to peers": lambda node: self._cut(node, self._peers(node), back=False),
            "one way: from peers": lambda node: self._cut(node, self._peers(node), forth=False),
        }

    def do(self, fault: Fault) -> Failover:
        """Do it, wait for what comes of it, and put it right. Raises Unhealed."""
        time.sleep(_PAUSE_SECONDS)
        cluster, watcher = self._cluster, self._cluster.watcher
        nodes = cluster.sets[fault.set_id]
        before, leader = watcher.leader(fault.set_id)
        followers = [name for name in nodes if name != leader]
        other = followers[fault.which % len(followers)]
        victim = nodes[leader if fault.of_leader else other]
        begin = clock()
        self._notes.write("begin", fault.kind, victim.name, "leader" if fault.of_leader else "follower", before)
        self._kinds[fault.kind](victim)
        if fault.second:
            self._notes.write("beside", fault.second, nodes[other].name)
            self._kinds[fault.second](nodes[other])

        def moved() -> bool:
            epoch, name = watcher.leader(fault.set_id)
            return epoch > before and name != leader

        if fault.of_leader:
            wait_until(moved, _MOVE_SECONDS)
        moved_at, after = clock(), watcher.leader(fault.set_id)[0]
        least = _STOPPED_SECONDS if "stop" in (fault.kind, fault.second) else _LEAST_SECONDS
        time.sleep(max(fault.seconds, begin + least - clock()))
        healed = clock()
        self._notes.write("heal", fault.kind, victim.name, watcher.leader(fault.set_id))
        struck = {victim: fault.kind, nodes[other]: fault.second} if fault.second else {victim: fault.kind}
        restarted = self._heal(fault.set_id, [node for node, kind in struck.items() if kind in _NEED_A_START])
        done = Failover(
            begin,
            moved_at,
            healed,
            clock(),
            fault.kind,
            fault.of_leader,
            fault.set_id,
            victim.name,
            fault.second,
            before,
            after,
            restarted,
        )
        self.done.append(done)
        self._notes.write("end", *done)
        return done

    def roll(self) -> Iterator[Failover]:
        """Restart every node by the loop of docs/replication.md: SIGTERM, a start, and the next one when all sets are
        whole. Raises Unhealed."""
        cluster, watcher = self._cluster, self._cluster.watcher
        for set_id, nodes in cluster.sets.items():
            for node in nodes.values():
                before, leader = watcher.leader(set_id)
                begin = clock()
                self._notes.write("restart", node.name)
                self._terminate(node)
                ended = clock()
                node.start()
                while not self._is_whole(len(nodes)):
                    if clock() - begin > _HEALTHY_SECONDS:
                        raise Unhealed(f"set {set_id} does not come back: {watcher.views[set_id]}")
                    time.sleep(_LOOP_SECONDS)
                after = watcher.leader(set_id)[0]
                kind = f"restart of a {'leader' if node.node == leader else 'follower'}"
                name = node.name
                done = Failover(begin, ended, ended, clock(), kind, True, set_id, name, "", before, after)
                self.done.append(done)
                yield done

    def _is_whole(self, nodes: int) -> bool:
        words = [
            sys.executable,
            "-m",
            "metaq",
            "brokers",
            "sets",
            "--in-sync",
            str(nodes),
            "--zk",
            self._cluster.connect,
        ]
        return not subprocess.run(words, cwd=ROOT, check=False, capture_output=True, timeout=_ORDER_SECONDS).returncode

    def _heal(self, set_id: int, distrusted: Sequence[NodePlace]) -> Sequence[str]:
        """Put everything right and wait until all nodes are in sync; those that had to be started again although they
        should have come back by themselves.

        distrusted: nodes whose disk has failed; they take nothing any more until they are started again.
        """
        cluster, watcher = self._cluster, self._cluster.watcher
        nodes = cluster.sets[set_id]
        cluster.network.heal()
        for node in nodes.values():
            node.disk.repair()
            if node.running:
                node.child.thaw()
        for node in distrusted:
            self._terminate(node)
        for node in nodes.values():
            node.start()
        if watcher.wait_healthy(set_id, list(nodes), _ALONE_SECONDS):
            return ()
        view = watcher.views[set_id]
        missing = [name for name in nodes if view.state is None or name not in view.state.in_sync]
        again = missing or list(nodes)
        self._notes.write("again", again)
        for name in again:
            self._terminate(nodes[name])
            nodes[name].start()
        if not watcher.wait_healthy(set_id, list(nodes), _HEALTHY_SECONDS):
            raise Unhealed(f"set {set_id} does not come back: {watcher.views[set_id]}")
        return again

    def _terminate(self, node: NodePlace) -> None:
        node.child.terminate()
        if not node.child.wait(_END_SECONDS):
            self._notes.write("killed", node.name)
            node.child.kill()

    def _hand_over(self, node: NodePlace) -> None:
        words = [sys.executable, "-m", "metaq", "brokers", "hand-over", str(node.set_id), "--zk", self._cluster.connect]
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=_ORDER_SECONDS)
        self._notes.write("hand-over", done.returncode, done.stdout.strip() or done.stderr.strip())

    def _peers(self, node: NodePlace) -> list[str]:
        return [each.name for each in self._cluster.sets[node.set_id].values() if each is not node]

    def _cut(self, node: NodePlace, others: Sequence[str], *, forth: bool = True, back: bool = True) -> None:
        for other in others:
            if forth:
                self._cluster.network.cut(node.name, other)
            if back:
                self._cluster.network.cut(other, node.name)
