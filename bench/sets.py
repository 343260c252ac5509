"""Run the nodes of a broker set as processes, and read their state from ZooKeeper and from their logs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_view import SetView, read_set

from .processes import ProcessFailed, Server, free_port
from .server_ini import Topics, server_ini

__all__ = ["METAQ", "NodeSet", "line_time", "logged_at", "node_set"]

METAQ = (sys.executable, "-m", "metaq")
IN_SYNC_SECONDS = 120.0
"""Seconds within which nodes must be in sync if they have nothing to copy."""
_LOOK_SECONDS = 0.02
_TIME = "%Y-%m-%d %H:%M:%S,%f"
_TIME_LENGTH = len("2026-01-01 00:00:00,000")


class NodeSet:
    """The nodes of the broker set with broker id 0. Each node has a port and a directory, which stay the same when it
    is started again.
    """

    def __init__(
        self, directory: Path, zk_connect: str, topics: Topics, settings: Mapping[str, object], session: ZkSession
    ) -> None:
        """directory: contains a folder for each node; settings: more keys of [system]; session: a started ZooKeeper
        session.
        """
        self.nodes: dict[str, Server] = {}
        """By name: the latest process of each node, which may have ended."""
        self._directory = directory
        self._zk_connect = zk_connect
        self._topics = topics
        self._settings = settings
        self._session = session
        self._logs: dict[str, list[Path]] = {}

    def start(self, name: str) -> Server:
        """Start a node that is not running. When this returns, the node may not yet have joined the set. Raises
        ProcessFailed.
        """
        home = self._directory / name
        config = home / "server.ini"
        if not home.exists():
            home.mkdir(parents=True)
            settings = {"dataPath": home / "data", **self._settings}
            config.write_text(server_ini(free_port(), self._zk_connect, self._topics, settings), "utf-8")
        logs = self._logs.setdefault(name, [])
        logs.append(home / f"broker-{len(logs)}.log")
        command = [*METAQ, "broker", "--node", name, "-f", str(config)]
        node = self.nodes[name] = Server(command, logs[-1], "metaq broker 0 serving")
        return node

    def view(self) -> SetView:
        """Return the set's state as ZooKeeper has it. Raises CoordinationError."""
        return read_set(self._session, 0)

    @property
    def leader(self) -> str:
        """Return the name of the leading node; "" if no node leads."""
        state = self.view().state
        return "" if state is None else state.leader

    def await_in_sync(self, names: Collection[str], seconds: float = IN_SYNC_SECONDS) -> SetView:
        """Wait until exactly these nodes are in sync, and one of them leads. Raises ProcessFailed."""
        return self._await(
            lambda view: (
                view.state is not None
                and view.master is not None
                and view.state.leader in names
                and {*view.state.in_sync} == {*names}
            ),
            f"in sync are not {', '.join(names)}",
            seconds,
        )

    def _await(self, reached: Callable[[SetView], bool], what: str, seconds: float) -> SetView:
        deadline = time.monotonic() + seconds
        while not reached(view := self.view()):
            if time.monotonic() > deadline:
                raise ProcessFailed(f"after {seconds:.0f} s {what}: {view}", self._logs[next(iter(self._logs))][-1])
            time.sleep(_LOOK_SECONDS)
        return view

    def lines(self, name: str) -> list[str]:
        """Return all lines that a node has logged, including those of its earlier processes."""
        return [line for log in self._logs.get(name, []) for line in log.read_text("utf-8", "replace").splitlines()]

    def close(self) -> None:
        """End all nodes. The followers end first, so that the leader does not hand over to a node that is about to
        end.
        """
        leader = self.leader
        for name in sorted(self.nodes, key=lambda each: each == leader):
            self.nodes[name].close()


def line_time(line: str) -> float | None:
    """Return the time of a line in a log, converted to this machine's `time.monotonic()`; None for a line without a
    time, as in a traceback.
    """
    try:
        at = datetime.strptime(line[:_TIME_LENGTH], _TIME).timestamp()
    except ValueError:
        return None
    return at - (time.time() - time.monotonic())


def logged_at(lines: Sequence[str], pattern: str, since: float = 0.0) -> float | None:
    """Return the time of the first line since `since` that matches the pattern, converted to this machine's
    `time.monotonic()`; None if there is no such line.
    """
    for line in lines:
        if re.search(pattern, line) and (at := line_time(line)) is not None and at >= since:
            return at
    return None


@contextmanager
def node_set(
    directory: Path, zk_connect: str, topics: Topics, settings: Mapping[str, object], names: Sequence[str]
) -> Iterator[NodeSet]:
    """Start a broker set, and yield it when all its nodes are in sync. The first node leads. Raises ProcessFailed."""
    with ZkSession(zk_connect) as session, ExitStack() as stack:
        nodes = NodeSet(directory, zk_connect, topics, settings, session)
        stack.callback(nodes.close)
        for number, name in enumerate(names, 1):
            nodes.start(name)
            nodes.await_in_sync(names[:number])
        yield nodes
