"""The commands `metaq brokers sets`, `hand-over`, `prefer`, `elect` and `forget`: show broker sets, and change them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from metaq.client.questions.admin import hand_over
from metaq.client.records.results import TopicPartition
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.records.payloads import host_and_port
from metaq.coordination.records.set_payloads import SetState
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_admin import forget_set, write_state
from metaq.coordination.sets.set_view import SetView, read_set, read_sets
from metaq.protocol.errors import BrokerUnavailable, ConfigError, CoordinationError, MetaqError
from metaq.protocol.limits import check_node

from .ahead import Ahead, ahead_of, commanded, diverged_groups, readable_ends, set_back
from .cluster_access import open_cluster, open_session
from .options import Parsed, json_option, zk_option
from .output import echo, moment, print_json, say, show
from .servers import wait_until
from .set_look import SetLook, Told, ask_nodes, connected, look_at_sets, told_differences
from .tables import print_table

__all__ = ["elect_node", "forget_broker_set", "hand_over_set", "list_sets", "prefer_node"]

ELECTION_SECONDS = 15.0
"""After an operator has elected a node, or handed the leadership over to it, the command waits at most this number of
seconds until the node leads.
"""

_TRIES = 5
"""Maximum number of attempts to change a broker set's state in ZooKeeper. An attempt fails if another program changes
the state at the same time.
"""

_NODE = Parsed("NODE", check_node)
_SET = click.argument("broker_set", type=click.IntRange(0), metavar="ID")


def _view(session: ZkSession, broker_set: int) -> SetView:
    """Read the state of a broker set from ZooKeeper. Raises ConfigError if there is no set with this id."""
    view = read_set(session, broker_set)
    if view.version < 0 and not view.nodes:
        raise ConfigError("ID", broker_set, "is no broker set: `metaq brokers sets` lists them")
    return view


# --- sets -------------------------------------------------------------------------------------------------------------


@click.command("sets")
@click.argument("broker_set", type=click.IntRange(0), metavar="[ID]", required=False)
@zk_option
@json_option
@click.option(
    "--in-sync", type=click.IntRange(1), metavar="COUNT", help="Exit with 1 if a set has fewer in-sync nodes present."
)
def list_sets(broker_set: int | None, zk: str, as_json: bool, in_sync: int | None) -> None:
    """Show the nodes of each broker set, or only of the set ID: their roles, their lag, and why they are not in sync.

    LAG BYTES: data that the node has not acknowledged. LAG: seconds since the leader sent the oldest part of this data
    to the node. SINCE: the time at which the node got its present role. ERROR: why it is not in sync. A node that is
    not registered has the role `gone` and no address. Such a node is shown only as long as the set's state in ZooKeeper
    lists it as in sync, or the set's leader remembers it. Exits with 1 if a set has no leader that clients can find, or
    if a leader does not answer. Warns on stderr if topics accept no messages, and if the server.ini files of nodes
    differ in a way that clients can notice.

    \b
    Example
      metaq brokers sets --zk 127.0.0.1:2181
      until metaq brokers sets 0 --in-sync 2; do sleep 1; done
    """
    with open_session(zk) as session:
        views = read_sets(session) if broker_set is None else {broker_set: _view(session, broker_set)}
        if not views and not ClusterView(session).broker_ids():
            raise CoordinationError(
                f"ZooKeeper at {zk} has no broker set, and no broker has ever registered there: name another --zk. If "
                "it has lost a set, start its nodes, then `metaq brokers elect ID --unclean --node NODE`"
            )
    looks = look_at_sets(views)
    found = [_row(look, name) for look in looks for name in look.names]
    columns = ("SET", "NODE", "ROLE", "EPOCH", "ZONE", "ADDRESS", "PREFERRED", "LAG BYTES", "LAG", "SINCE", "ERROR")
    show(as_json, found, columns, [_cells(row) for row in found])
    troubles: list[str] = []
    for look in looks:
        what = f"broker set {look.broker_id}"
        if refusing := look.leader_says.get("refusing"):
            echo(
                f"metaq: {what} takes no messages for {', '.join(refusing)}: nodes in sync: {len(look.in_sync)}, "
                "fewer than minInSync",
                err=True,
            )
        if differences := look.differences:
            echo(f"metaq: {what}: {told_differences(differences)}", err=True)
        silent = look.told.get(look.leader)
        if isinstance(silent, MetaqError):
            troubles.append(f"{what}: its leader {look.leader} does not tell how far the others are: {silent}")
        if in_sync is not None and len(look.in_sync) < in_sync:
            troubles.append(
                f"{what} has {len(look.in_sync)} in-sync nodes, not {in_sync}: {', '.join(look.in_sync) or 'none'}"
            )
    lost = [look for look in looks if look.view.state is None]
    for look in lost:
        present = ", ".join(look.names)
        troubles.append(
            f"ZooKeeper has no state of broker set {look.broker_id}, so nobody leads it: "
            + (f"present are {present}: choose the one with the right data: " if present else "start its nodes, then ")
            + f"`metaq brokers elect {look.broker_id} --unclean --node NODE`"
        )
    leaderless: list[str] = []
    for look in looks:
        if look.leader or look in lost:
            continue
        if look.set_back:
            troubles.append(
                f"ZooKeeper was set back to an older state of broker set {look.broker_id}, so nobody leads it: start "
                "its nodes, and choose the node that led last, which has the most data: "
                f"`metaq brokers elect {look.broker_id} --unclean --node NODE` shows the data of each"
            )
        elif look.stopped:
            reasons = "; ".join(f"{name} has stopped ({look.error(name)})" for name in look.stopped)
            troubles.append(
                f"no leader in broker set {look.broker_id}: {reasons}: put that right, or start another in-sync node"
            )
        else:
            leaderless.append(str(look.broker_id))
    if leaderless:
        troubles.append(
            f"no leader in broker set {', '.join(leaderless)}: start an in-sync node of it, or, if the set is given up "
            f"for good, `metaq brokers forget {leaderless[0]}`"
        )
    if troubles:
        raise CoordinationError("; ".join(troubles))


def _row(look: SetLook, name: str) -> dict[str, object]:
    state, node, seen = look.view.state, look.view.nodes.get(name), look.seen(name)
    leads = look.leader_says if name == look.leader else {}
    return {
        "set": look.broker_id,
        "node": name,
        "role": look.role(name),
        "epoch": state.epoch if state else None,
        "zone": node.zone or None if node else None,
        "address": host_and_port(*node.address) if node else None,
        "preferred": bool(state and state.preferred == name),
        "lag_bytes": seen.get("lagBytes"),
        "lag_seconds": seen.get("lagSeconds"),
        "since_ms": seen.get("sinceMs"),
        "error": look.error(name) or None,
        "refusing": leads.get("refusing"),
        "under_replicated": leads.get("underReplicated"),
        "differences": look.differences if leads else None,
    }


_FIGURES_OF_LEADERS = ("refusing", "under_replicated", "differences")
"""Keys of a node's JSON object that have no column in the table. Only a leader's object has values for these keys.
"""


def _cells(row: Mapping[str, Any]) -> list[object]:
    """Return the cells of one row of the table, for the JSON object `row` of a node."""
    shown = {**row, "set": str(row["set"]), "preferred": "yes" if row["preferred"] else "no"}
    shown["lag_seconds"] = None if row["lag_seconds"] is None else f"{row['lag_seconds']:.1f} s"
    shown["since_ms"] = moment(row["since_ms"])
    return [value for name, value in shown.items() if name not in _FIGURES_OF_LEADERS]


# --- who leads --------------------------------------------------------------------------------------------------------


@click.command("hand-over")
@_SET
@click.option("--to", "target", type=_NODE, help="The node that is to lead.  [default: any that is in sync]")
@zk_option
@json_option
def hand_over_set(broker_set: int, target: str | None, zk: str, as_json: bool) -> None:
    """Make another in-sync node lead the broker set ID. Clients notice a pause, but no error.

    Prints which node leads now, and for how long no node led. If the leader has not changed, prints the reason and
    exits with 1. The leader accepts the request only from its own machine, unless it runs with --admin-from any.

    \b
    Example
      metaq brokers hand-over 0 --to b
    """
    with open_session(zk) as session:
        view = _view(session, broker_set)
        if view.state is None or not view.is_led:
            raise CoordinationError(f"no leader in broker set {broker_set}: start an in-sync node of it")
        before = view.state
        if target == before.leader:
            say(as_json, _led_json(broker_set, before, 0.0), f"broker set {broker_set}: {target} leads already")
            return
        with connected(view.nodes[before.leader]) as connection:
            done = hand_over(connection, target or "")
        now = _await_leader(session, broker_set, before.epoch)
    seconds = float(done["seconds"])
    text = f"broker set {broker_set}: {now.leader} leads epoch {now.epoch}; the hand-over took {seconds:.3f} s"
    say(as_json, _led_json(broker_set, now, seconds), text)


def _led_json(broker_set: int, state: SetState, seconds: float) -> dict[str, object]:
    return {"set": broker_set, "leader": state.leader, "epoch": state.epoch, "seconds": seconds}


def _await_leader(session: ZkSession, broker_set: int, epoch: int) -> SetState:
    """Wait until clients can find a leader with an epoch above `epoch`; return the set's state. Raises
    CoordinationError after ELECTION_SECONDS.
    """
    found = [read_set(session, broker_set)]

    def led() -> bool:
        found[0] = read_set(session, broker_set)
        return found[0].state is not None and found[0].state.epoch > epoch and found[0].is_led

    if not wait_until(led, time.monotonic() + ELECTION_SECONDS):
        raise CoordinationError(
            f"nobody leads broker set {broker_set} after {ELECTION_SECONDS:.0f} s: `metaq brokers sets` shows its nodes"
        )
    assert found[0].state is not None
    return found[0].state


@click.command("prefer")
@_SET
@click.argument("node", type=_NODE, metavar="NODE", required=False)
@click.option("--none", is_flag=True, help="Remove the preference.")
@zk_option
@json_option
def prefer_node(broker_set: int, node: str | None, none: bool, zk: str, as_json: bool) -> None:
    """Make NODE lead the broker set ID whenever possible: when NODE has been in sync for a minute, the leader hands
    over to NODE.

    \b
    Example
      metaq brokers prefer 0 a
      metaq brokers prefer 0 --none
    """
    if (node is None) != none:
        raise click.UsageError("name a NODE, or say --none", click.get_current_context())
    with open_session(zk) as session:
        for _ in range(_TRIES):
            view = _view(session, broker_set)
            state = view.state
            if state is None:
                raise CoordinationError(f"broker set {broker_set} has no state: nobody has ever led it, or it is lost")
            known = sorted({*view.nodes, *state.in_sync})
            if node is not None and node not in known:
                raise ConfigError("NODE", node, f"is no node of broker set {broker_set}: choose {' or '.join(known)}")
            if write_state(session, broker_set, replace(state, preferred=node or ""), view):
                break
        else:
            raise CoordinationError(f"broker set {broker_set} keeps changing: try again")
    say(as_json, {"set": broker_set, "preferred": node}, f"broker set {broker_set} prefers {node or 'no node'}")


# --- the last resort --------------------------------------------------------------------------------------------------


@click.command("elect")
@_SET
@click.option("--unclean", is_flag=True, required=True, help="Required: messages that only other nodes have are lost.")
@click.option("--node", type=_NODE, required=True, help="The node that is to lead.")
@click.option("--yes", is_flag=True, help="Elect the node; without --yes, only show what may be lost.")
@click.option(
    "--set-back",
    "sets_back",
    is_flag=True,
    help="Set groups that have read lost messages back to the end of the node's messages. On a terminal the default is "
    "to ask.",
)
@zk_option
@json_option
def elect_node(broker_set: int, unclean: bool, node: str, yes: bool, sets_back: bool, zk: str, as_json: bool) -> int:
    """Make a node that is not in sync lead the broker set ID: the last resort when no in-sync node comes back.

    The command shows which nodes were in sync, and how much data each of the nodes that answer has. Clients lose all
    messages that the chosen node does not have. When another node that has some of these messages returns, it removes
    them from its partitions and keeps them in .damaged- files. The command refuses to work while a leader, or an
    in-sync node that can lead, is running. The command also restores a set whose state in ZooKeeper was deleted; for
    this the set's nodes need not be stopped.

    New messages get the offsets of the lost messages. So a group that has read lost messages would skip the new
    messages at the offsets that it has already read. The command lists these groups; with --set-back it sets their
    committed offsets back to the end of the chosen node's messages. Exits with 1 if the offsets of a listed group are
    not set back.

    \b
    Example
      metaq brokers elect 0 --unclean --node b
      metaq brokers elect 0 --unclean --node b --yes --set-back
    """
    with open_session(zk) as session:
        view = _view(session, broker_set)
        told = ask_nodes(dict(sorted(view.nodes.items())))
        epochs = [int(answer["epoch"]) for answer in told.values() if isinstance(answer, dict)]
        epoch = max([view.state.epoch if view.state else 0, *epochs])
        _refuse_needless(broker_set, view, told, node, epoch)
        if not as_json:
            _show_loss(view, told)
        silent = told[node]
        if isinstance(silent, MetaqError):
            raise BrokerUnavailable(f"{node} does not answer, so it cannot lead: {silent}")
        with connected(view.nodes[node]) as connection:
            ends = readable_ends(connection, broker_set)
        if not yes:
            with open_cluster(zk) as cluster:
                ahead = ahead_of(cluster, broker_set, ends)
            value = {"set": broker_set, "done": False, "nodes": _answers(told), "groups": _groups(ahead)}
            if ahead and not as_json:
                _show_groups(ahead, f"have read more than {node} has")
            say(as_json, value, f"nothing is done: with --yes {node} leads epoch {epoch + 1} of set {broker_set}")
            return 1
        before = view.state or SetState(0, "", {})
        chosen = replace(before, epoch=epoch, leader="", in_sync={node: view.nodes[node].instance}, chosen=epoch)
        if not write_state(session, broker_set, chosen, view):
            raise CoordinationError(f"broker set {broker_set} has changed meanwhile: look again")
        now = _await_leader(session, broker_set, epoch)
    if not as_json:
        echo(f"broker set {broker_set}: {now.leader} leads epoch {now.epoch}")
    ahead, left = _groups_set_back(zk, broker_set, ends, sets_back, as_json)
    if as_json:
        value = {"set": broker_set, "done": True, "leader": now.leader, "epoch": now.epoch, "nodes": _answers(told)}
        print_json({**value, "groups": _groups(ahead), "left": _groups(left)})
    return 1 if left else 0


def _groups_set_back(
    zk: str, broker_set: int, ends: Mapping[TopicPartition, int], chosen: bool, as_json: bool
) -> tuple[list[Ahead], list[Ahead]]:
    """Find the groups that have read lost messages. Set their offsets back if `chosen` is true (--set-back was given).
    Otherwise ask the user whether to set them back, unless stdin is no terminal or the output is JSON. Return two
    lists: the offsets of all these groups, and the offsets that were not set back.
    """
    with open_cluster(zk) as cluster:
        ahead = diverged_groups(cluster, broker_set, ends)
        if not ahead:
            return [], []
        if not as_json:
            _show_groups(ahead, "have read messages that are lost")
            if not chosen and sys.stdin.isatty():
                chosen = click.confirm("Set them back, so that they miss nothing?", err=True)
        left = set_back(cluster, ahead) if chosen else ahead
    if not as_json:
        if len(left) < len(ahead):
            echo(f"set back: {len(ahead) - len(left)}")
        for each in left:
            reads = f"; {each.owner} reads it: stop the group's members first" if each.owner else ""
            echo(f"metaq: not set back: `{commanded(each.group, each.partition, each.back)}`{reads}", err=True)
    return ahead, left


def _groups(ahead: Sequence[Ahead]) -> list[dict[str, object]]:
    return [each.to_json() for each in ahead]


def _show_groups(ahead: Sequence[Ahead], what: str) -> None:
    echo(f"groups that {what}, and would skip the messages that take their place:")
    columns = ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "BACK TO", "OWNER")
    print_table(columns, [list(each.to_json().values()) for each in ahead])


_LEADING = ("leader", "taking-over", "handing-over")
"""The roles in a node's report that mean that the node leads."""


def _refuse_needless(broker_set: int, view: SetView, told: Mapping[str, Told], node: str, epoch: int) -> None:
    """Raise CoordinationError if an unclean election is not necessary, because the set has a leader, or an in-sync node
    that can lead is registered. Raise ConfigError if the chosen node is not registered in ZooKeeper.

    epoch: the highest epoch that a node has seen. If the set's state in ZooKeeper has a lower epoch, ZooKeeper was set
    back to older data, so the state in ZooKeeper does not show which nodes are in sync, and the election is necessary.
    A node that led before its set's state was lost may still be registered as `master` in ZooKeeper; the elected node
    replaces it.
    """
    if view.master is not None:
        holders = [name for name, each in view.nodes.items() if each.url == view.master.url]
        answers = [told[name] for name in holders]
        if not holders or any(isinstance(each, MetaqError) or each.get("role") in _LEADING for each in answers):
            raise CoordinationError(
                f"broker set {broker_set} has a leader at {view.master.url}: use `metaq brokers hand-over {broker_set}`"
            )
    in_sync = view.state.in_sync if view.state else ()
    present = [] if view.state and view.state.epoch < epoch else view.in_sync_present
    present = [each for each in present if not _waits_for_a_choice(told[each])]
    if any(not view.nodes[each].forgetful for each in present) or (in_sync and len(present) == len(in_sync)):
        raise CoordinationError(
            f"in sync and present in broker set {broker_set}: {', '.join(present)}: it leads by itself within seconds; "
            "if not, its log says why"
        )
    if node not in view.nodes:
        choice = " or ".join(sorted(view.nodes)) or "none is"
        raise ConfigError("--node", node, f"is not registered in ZooKeeper: start it, or choose {choice}")


def _waits_for_a_choice(told: Told) -> bool:
    """Whether a node reports that it does not stand for election, because ZooKeeper was set back to an older state of
    the set.
    """
    return not isinstance(told, MetaqError) and bool(told.get("setBack"))


def _answers(told: Mapping[str, Mapping[str, Any] | MetaqError]) -> list[dict[str, object]]:
    return [
        {"node": name, "error": str(answer)}
        if isinstance(answer, MetaqError)
        else {"node": name, **{key: answer[key] for key in ("epoch", "lastEpoch", "bytes", "error")}}
        for name, answer in told.items()
    ]


def _show_loss(view: SetView, told: Mapping[str, Mapping[str, Any] | MetaqError]) -> None:
    if view.state is None:
        echo("ZooKeeper has no state of this set: nobody knows which nodes were in sync")
    elif view.state.is_revoked or any(map(_waits_for_a_choice, told.values())):
        echo(
            "ZooKeeper was set back to an older state of this set: nobody knows which nodes were in sync. Start all "
            "nodes; the right one has the highest DATA OF EPOCH, and among nodes with the same the most BYTES"
        )
    else:
        absent = [each for each in view.state.in_sync if each not in view.in_sync_present]
        echo(
            f"in sync at the end of epoch {view.state.epoch}, and not present: {', '.join(absent) or 'none'}; "
            "what only they have is lost"
        )
    columns = ("NODE", "HIGHEST EPOCH SEEN", "DATA OF EPOCH", "BYTES", "ERROR")
    print_table(
        columns,
        [
            [each["node"], *(each.get(key) for key in ("epoch", "lastEpoch", "bytes")), each["error"] or None]
            for each in _answers(told)
        ],
    )


# --- the end of a set -------------------------------------------------------------------------------------------------


@click.command("forget")
@_SET
@click.option("--node", help="Remove only this node, which has left the set for good.")
@click.option("--yes", is_flag=True, help="Remove it; without --yes, only show what would be removed.")
@zk_option
@json_option
def forget_broker_set(broker_set: int, node: str | None, yes: bool, zk: str, as_json: bool) -> int:
    """Remove from ZooKeeper a broker set that you have given up, or one node that has left its set.

    Stop all nodes of the set before you run the command. The command refuses to work while a node of the set, or any
    broker with the same id, is registered. Afterwards ZooKeeper does not know which nodes have all acknowledged
    messages, so nodes that start again with their directories wait for `metaq brokers elect --unclean`. No data
    directory is changed. With --node the command removes only this node from the set. It refuses to do this while the
    node is registered or in sync.

    \b
    Example
      metaq brokers forget 7
      metaq brokers forget 7 --yes
      metaq brokers forget 7 --node c --yes
    """
    if node is not None:
        return _forget_node(broker_set, node, yes, zk, as_json)
    with open_session(zk) as session:
        view = _view(session, broker_set)
        if view.nodes:
            raise CoordinationError(
                f"present in broker set {broker_set}: {', '.join(sorted(view.nodes))}: stop them, and wait until they "
                "have left"
            )
        if view.master is not None:
            raise CoordinationError(f"broker {broker_set} is registered at {view.master.url}: stop it first")
        state = view.state
        last = f"epoch {state.epoch}, in sync: {', '.join(state.in_sync)}" if state else "no state"
        value = {
            "set": broker_set,
            "done": yes,
            "epoch": state and state.epoch,
            "in_sync": list(state.in_sync) if state else [],
        }
        if not yes:
            say(as_json, value, f"nothing is done: with --yes ZooKeeper forgets broker set {broker_set} ({last})")
            return 1
        if not forget_set(session, broker_set, view):
            raise CoordinationError(f"broker set {broker_set} has changed meanwhile: look again")
    say(as_json, value, f"broker set {broker_set} is forgotten ({last})")
    return 0


def _forget_node(broker_set: int, node: str, yes: bool, zk: str, as_json: bool) -> int:
    with open_session(zk) as session:
        view = _view(session, broker_set)
        state = view.state
        members = state.members if state else ()
        if state is None or node not in members:
            raise ConfigError("--node", node, f"broker set {broker_set} has {', '.join(members) or 'no nodes'}")
        if node in view.nodes:
            raise CoordinationError(f"{node} is present at {view.nodes[node].url}: stop it first")
        if node in state.in_sync:
            raise CoordinationError(
                f"{node} is in sync and may have data that no other node has: let another node of the set lead first"
            )
        value = {"set": broker_set, "node": node, "done": yes}
        if not yes:
            say(as_json, value, f"nothing is done: with --yes broker set {broker_set} no longer expects {node}")
            return 1
        left = replace(state, members=[name for name in members if name != node])
        if not write_state(session, broker_set, left, view):
            raise CoordinationError(f"broker set {broker_set} has changed meanwhile: look again")
    say(as_json, value, f"broker set {broker_set} has forgotten {node}")
    return 0
