"""Read the state of broker sets from ZooKeeper and from the reports of their nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from metaq.client.questions.admin import set_status
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Connection, Endpoint, open_connection
from metaq.coordination.records.set_payloads import SetNode
from metaq.coordination.sets.set_view import SetView
from metaq.protocol.errors import ClientError, MetaqError

__all__ = [
    "SetLook",
    "Told",
    "ask_nodes",
    "at_every_node",
    "connected",
    "leader_last",
    "look_at_sets",
    "told_differences",
]

T = TypeVar("T")

MAX_ASKED = 16
"""The code asks at most this number of nodes for their reports at the same time."""

_NAMED = 8
"""Maximum number of differences between nodes that one line names."""

Told = Mapping[str, Any] | MetaqError
"""A node's own report (SET_STATUS), or the error if the node gave no report."""


@contextmanager
def connected(node: SetNode) -> Iterator[Connection]:
    """Yield a connection to a node. Raises BrokerUnavailable if the node cannot be reached."""
    connection = open_connection(Endpoint(*node.address), ConnectionConfig())
    try:
        yield connection
    finally:
        connection.close()


def ask_nodes(nodes: Mapping[str, SetNode]) -> dict[str, Told]:
    """Ask these nodes for their reports (SET_STATUS), and return the reports by the name of the node."""
    with ThreadPoolExecutor(MAX_ASKED) as pool:
        return dict(zip(nodes, pool.map(_ask, nodes.values()), strict=True))


def _ask(node: SetNode) -> Told:
    try:
        with connected(node) as connection:
            return set_status(connection)
    except MetaqError as error:
        return error


class SetLook(NamedTuple):
    """The state of one broker set. view: the state that ZooKeeper has. told: for each node that is registered now, by
    name, its own report, or the error if it did not answer.
    """

    broker_id: int
    view: SetView
    told: Mapping[str, Told]

    @property
    def leader(self) -> str:
        """The name of the node that leads the set, if clients can find this node. The value is "" if no node leads, or
        if the leading node reports that it has stopped.

        ZooKeeper still names a stopped leader as the leader as long as no other node is in sync, because another leader
        would lack some of its data.
        """
        leader = self.view.state.leader if self.view.state and self.view.is_led else ""
        return "" if self.says(leader).get("role") == "stopped" else leader

    @property
    def is_replaced(self) -> bool:
        """Whether no node of the set is present, and a broker outside the set has been started with the set's broker
        id.
        """
        return self.view.master is not None and not self.view.nodes

    @property
    def stopped(self) -> list[str]:
        """The names of the nodes that report that they have stopped and wait for an operator, sorted."""
        return [name for name in self.names if self.role(name) == "stopped"]

    @property
    def leader_says(self) -> Mapping[str, Any]:
        """The leader's report on the set. The report is empty if no node leads, or if the leader does not answer."""
        return self.says(self.leader)

    @property
    def in_sync(self) -> list[str]:
        """The names of the nodes that are in sync and present, sorted."""
        return sorted(self.view.in_sync_present)

    @property
    def set_back(self) -> bool:
        """Whether ZooKeeper has an older state of the set than a node has already seen. Nodes that are in sync
        according to this older state perhaps lack messages.
        """
        revoked = self.view.state is not None and self.view.state.is_revoked
        return revoked or any(bool(self.says(name).get("setBack")) for name in self.told)

    @property
    def names(self) -> list[str]:
        """The names of the nodes that are present, or that the set's state in ZooKeeper names, sorted."""
        state = self.view.state
        named = {*state.members, state.leader, state.preferred} - {""} if state else set()
        return sorted(named.union(self.view.nodes))

    def says(self, name: str) -> Mapping[str, Any]:
        """Return a node's own report, or an empty mapping if the node was not asked or has not answered."""
        answer = self.told.get(name, {})
        return {} if isinstance(answer, MetaqError) else answer

    def seen(self, name: str) -> Mapping[str, Any]:
        """Return what the report of the set's leader says about a node: `sinceMs`, `lagBytes`, `lagSeconds` and
        `error`. Some or all of these can be missing.
        """
        if name == self.leader and self.leader_says:
            return {"sinceMs": self.leader_says["sinceMs"], "lagBytes": 0, "lagSeconds": 0.0}
        return self._others().get(name, {})

    def role(self, name: str) -> str:
        """Return the role of a node: `leader`, `in-sync`, `out of sync` or `stopped`; `was leader` if the set's state
        names the node as the leader, but it does not lead. For an absent node, return `gone`, and the role that the
        set's state gives it unless this role is `out of sync`.
        """
        role = self.view.role(name)
        if name not in self.view.nodes:
            return "gone" if role == "out of sync" else f"gone, was {role}"
        if self.says(name).get("role") == "stopped":
            return "stopped"
        return f"was {role}" if role == "leader" and name != self.leader else role

    def error(self, name: str) -> str:
        """Return the error of a node from its own report, or else from the leader's report. Return "" if there is no
        error.
        """
        answer = self.told.get(name)
        if isinstance(answer, MetaqError):
            return "" if name == self.leader else f"does not answer: {answer}"
        return str(self.says(name).get("error") or self.seen(name).get("error") or "")

    @property
    def differences(self) -> list[str]:
        """Sentences about those differences between the nodes' configurations that clients would notice if another node
        became the leader. The list is empty if no difference is known. Nodes that do not answer, or whose version does
        not report the configuration, are left out of the comparison.
        """
        told = {name: found for name in self.names if (found := self.says(name).get("configuration"))}
        return _differences(told)

    def _others(self) -> dict[str, Mapping[str, Any]]:
        return {each["name"]: each for each in self.leader_says.get("nodes") or ()}


def look_at_sets(views: Mapping[int, SetView]) -> list[SetLook]:
    """Return the state of these broker sets in the order of their ids. Every present node is asked for its report."""
    asked = {(broker_id, name): node for broker_id, view in views.items() for name, node in view.nodes.items()}
    with ThreadPoolExecutor(MAX_ASKED) as pool:
        told = dict(zip(asked, pool.map(_ask, asked.values()), strict=True))
    return [
        SetLook(broker_id, view, {name: answer for (of, name), answer in told.items() if of == broker_id})
        for broker_id, view in sorted(views.items())
    ]


# --- what every node is to do -----------------------------------------------------------------------------------------


def leader_last(view: SetView) -> list[str]:
    """Return the names of the present nodes; the leader's name is the last. If a change is made at the nodes in this
    order, all other nodes already have the change when the leader gets it.
    """
    leader = view.state.leader if view.state is not None else ""
    return sorted(view.nodes, key=lambda name: (name == leader, name))


def at_every_node(
    broker_set: int, view: SetView, act: Callable[[Connection], T], failed: str, command: str
) -> Iterator[tuple[str, T]]:
    """Call `act` with a connection to each present node in turn; the leader comes last. Yield each node's name and the
    result. If `act` fails at a node, it is not called for the remaining nodes.

    failed: the words in the error text that say what the failing node did not do. command: the command that the error
    text advises the operator to run with --server, on each node's own machine. Raises ClientError if `act` fails at a
    node.
    """
    names = leader_last(view)
    for number, name in enumerate(names):
        try:
            with connected(view.nodes[name]) as connection:
                done = act(connection)
        except MetaqError as error:
            told = f"; not asked any more: {', '.join(names[number + 1 :])}" if names[number + 1 :] else ""
            told += f"; asked before: {', '.join(names[:number])}" if number else ""
            raise ClientError(
                f"node {name} of broker set {broker_set} did not {failed}: {error}{told}. Put that right and repeat "
                f"the command, or run `{command} --server` on each node's own machine, the leader's last"
            ) from error
        yield name, done


# --- configurations ---------------------------------------------------------------------------------------------------


def _differences(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return sentences about the differences between the nodes' configurations. told: the `configuration` in the
    SET_STATUS report of each node, by the node's name.
    """
    found: list[str] = []
    options = {name: each.get("system", {}) for name, each in told.items()}
    found += _differing(options, "[system]")
    for topic in sorted({topic for each in told.values() for topic in each.get("topics", {})}):
        having = {
            name: each["settings"][each["topics"][topic]] for name, each in told.items() if topic in each["topics"]
        }
        lacking = [name for name in told if name not in having]
        if lacking:
            found.append(f"[topic={topic}] only on {', '.join(having)}, not on {', '.join(lacking)}")
        found += _differing(having, f"[topic={topic}]")
    return found


def told_differences(differences: Sequence[str]) -> str:
    """Return one sentence that names the differences; it is meant for an operator."""
    more = f"; and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return (
        f"its nodes have different server.ini files, so what clients are served depends on which node leads: "
        f"{'; '.join(differences[:_NAMED])}{more}: give all nodes the same file, and run `metaq reload`"
    )


def _differing(options: Mapping[str, Mapping[str, Any]], section: str) -> list[str]:
    """Return descriptions of the options in one section of server.ini whose values differ between nodes. options: the
    options of this section, by node. A node of an earlier version that does not report an option is left out of the
    comparison of this option.
    """
    nodes = list(options)
    keys = dict.fromkeys(key for each in options.values() for key in each)
    found = []
    for key in keys:
        values = {name: options[name][key] for name in nodes if key in options[name]}
        filters = key.startswith("group.")
        if filters:
            values = {name: options[name].get(key) for name in nodes}
        if len({str(value) for value in values.values()}) > 1:
            told = ", ".join(f"{_shown(value)} on {name}" for name, value in values.items())
            found.append(f"{section} {key}={told}")
    return found


def _shown(value: object) -> str:
    """Return an option's value as text, written as in server.ini."""
    if value is None:
        return "(none)"
    return str(value).lower() if isinstance(value, bool) else str(value)
