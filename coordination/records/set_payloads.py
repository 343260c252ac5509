"""Format and parse the payloads of a broker set's znodes. The payloads contain the state on which the nodes of the set
have agreed, and data about each node. The functions are pure.

The functions use helper functions from payloads.py.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from .payloads import damaged, parse_broker_url, payload_text

__all__ = [
    "SetNode",
    "SetState",
    "format_set_node",
    "format_set_state",
    "may_revoke",
    "parse_set_node",
    "parse_set_state",
]

_STATE_FIELDS = ("epoch", "leader", "inSync", "preferred", "members")


@dataclass(frozen=True, slots=True)
class SetState:
    """The state of a broker set on which its nodes have agreed.

    epoch: number of the current leadership; 0 before the first one. leader: name of the node that leads, "" for none.
    in_sync: the nodes that may be elected, sorted by name. Each key of in_sync is a node's name; its value is the
    identifier of the node's data (SetNode.instance). If a node has a name that is listed here, but its data has another
    identifier (because the directory is new or a copy), the node is not in sync. preferred: name of the node that
    should lead whenever it is in sync, "" for none. members: names of the nodes that the set should have, sorted. The
    members are all nodes that have ever been in sync, except nodes that an operator has removed.
    chosen: the highest epoch that was known when an operator last chose a leader by `elect --unclean`, or 0 if no
    operator has done so. With this choice the operator gives up all data that was written up to this epoch and that the
    chosen node lacks, even if other nodes have this data.

    If a state has no in-sync nodes, ZooKeeper was set back to an older state, and a node that had a newer state in
    memory has revoked the older state (see `revoked`). After a revocation no node may be elected until an operator has
    chosen one.
    """

    epoch: int
    leader: str
    in_sync: Mapping[str, str]
    preferred: str = ""
    members: Collection[str] = ()
    chosen: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "in_sync", dict(sorted(self.in_sync.items())))
        object.__setattr__(self, "members", tuple(sorted({*self.members, *self.in_sync})))

    def revoked(self) -> SetState:
        """Return a copy of this state without a leader and without in-sync nodes. The copy is called a revoked state.
        No node stands for election, because no node is in sync, and no node follows a leader, because there is none.
        This is true even for a node with an older version of metaq, which does not know revoked states.
        """
        return replace(self, leader="", in_sync={})

    @property
    def is_revoked(self) -> bool:
        return not self.in_sync

    def has_in_sync(self, name: str, instance: str) -> bool:
        """Return whether the node `name`, whose data has the instance `instance`, is in sync and so may be elected. In
        epoch 0, before the first leadership, the set has no data that could be lost, so the method compares only the
        name and ignores the instance.
        """
        known = self.in_sync.get(name)
        return known is not None and (self.epoch == 0 or known == instance)


@dataclass(frozen=True, slots=True)
class SetNode:
    """The data that one node of a broker set publishes about itself.

    name: the node's name, which is unique in its set. url: the node's address, `meta://host:port`. zone: the node's
    zone, "" for none. instance: an identifier of the node's data. The identifier is chosen at random and kept in the
    data directory. A copy of the directory gets another identifier. forgetful: true if the node's machine has restarted
    since the time when the node was last known to have all data. Data that was not on the disk at the restart may then
    be lost.
    """

    name: str
    url: str
    zone: str
    instance: str
    forgetful: bool = False
    epoch: int = 0
    """The highest epoch that the node had seen when it wrote this payload; 0 for a node that has never been in a
    set.
    """

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the node; an IPv6 host has no brackets. Raises CoordinationError if the node's URL is
        invalid.
        """
        address = parse_broker_url(self.name, self.url.encode())
        if address is None:
            raise damaged(self.name, self.url, "meta://host:port")
        return address


def may_revoke(state: SetState, newest: SetState) -> bool:
    """Return whether a node that has seen the state `newest` may revoke the older state `state`, to which ZooKeeper was
    set back. The result is False if a node has been elected, or an operator has chosen a node, since ZooKeeper was set
    back. In both cases the other nodes may already follow the elected or chosen node. A node that reconnects later must
    not stop them by a revocation, although it knows a newer state. This late node keeps its own newer data.
    """
    return not state.is_revoked and state.epoch <= newest.epoch and state.chosen <= newest.chosen


def format_set_state(state: SetState) -> bytes:
    """Return a JSON object with the fields of SetState. `chosen` is included only if it is not 0."""
    fields: dict[str, object] = {
        "epoch": state.epoch,
        "leader": state.leader,
        "inSync": state.in_sync,
        "preferred": state.preferred,
        "members": state.members,
    }
    if state.chosen:
        fields["chosen"] = state.chosen
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_set_state(path: str, data: bytes | None) -> SetState | None:
    """Parse a payload that format_set_state() has made. Unknown fields are ignored."""
    text = payload_text(path, data)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        epoch, leader, in_sync, preferred, members = (fields[key] for key in _STATE_FIELDS)
        chosen = fields.get("chosen", 0)  # earlier versions do not write it
        named = (
            type(chosen) is int
            and type(leader) is str
            and type(preferred) is str
            and type(in_sync) is dict
            and type(members) is list
        )
        named = named and all(type(each) is str and each for each in [*members, *in_sync])
        if type(epoch) is int and epoch >= 0 and named and all(type(each) is str for each in in_sync.values()):
            return SetState(epoch, leader, in_sync, preferred, members, chosen)
    except (ValueError, KeyError, TypeError):
        pass  # reported below, with the node
    shape = '{"epoch":<number>,"leader":<node>,"inSync":{<node>:<instance>},"preferred":<node>,"members":[<node>]}'
    raise damaged(path, data, shape)


def format_set_node(node: SetNode) -> bytes:
    """Return a JSON object with the fields of SetNode. The object omits the node's name, because the name of the znode
    is the node's name. `forgetful` is included only if it is true, and `epoch` only if it is not 0.
    """
    fields: dict[str, object] = {"url": node.url, "zone": node.zone, "instance": node.instance}
    if node.forgetful:
        fields["forgetful"] = True
    if node.epoch:
        fields["epoch"] = node.epoch
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_set_node(path: str, name: str, data: bytes | None) -> SetNode | None:
    """Parse the payload of the znode of the node `name`, and return a SetNode. Unknown fields are ignored."""
    text = payload_text(path, data)
    if text is None:
        return None
    try:
        fields = json.loads(text)
        url, zone, instance = (fields[key] for key in ("url", "zone", "instance"))
        epoch = fields.get("epoch", 0)
        named = type(zone) is str and type(instance) is str and instance and type(epoch) is int
        if named and parse_broker_url(path, url.encode()):
            return SetNode(name, url, zone, instance, fields.get("forgetful") is True, epoch)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # reported below, with the node
    raise damaged(path, data, '{"url":"meta://host:port","zone":<name>,"instance":<id>}')
