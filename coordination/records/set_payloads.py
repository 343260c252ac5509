"""The payloads of a broker set's znodes, which hold what its nodes have agreed on. The functions are pure.

payloads.py has the functions that all payloads use.
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
    """The agreed state of a broker set.

    epoch: number of the leadership, at least 0. leader: name of the node that leads, "" for none. in_sync: the nodes
    that may be elected: their names, sorted, and the instances of their data. A node with the same name but other data
    (a new directory or a copy) is not in sync. preferred: name of the node that should lead, or "". members: names of
    the nodes that the set should have, sorted. These are all nodes that have ever been in sync, except nodes that an
    operator has removed. chosen: the highest epoch that was known when an operator last chose a node (`elect
    --unclean`); 0 for never. Data of this and older epochs that only other nodes have is given up.

    A state without in-sync nodes means that ZooKeeper was set back to an older state, and that a node that had seen a
    newer state has revoked it (see `revoked`). Then no node may be elected before an operator has chosen one.
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
        """Return this state, revoked. Every node acts correctly on it, even a node of an older version that does not
        know revoking: no node is in sync, so no node stands for election, and no node leads, so no node follows.
        """
        return replace(self, leader="", in_sync={})

    @property
    def is_revoked(self) -> bool:
        return not self.in_sync

    def has_in_sync(self, name: str, instance: str) -> bool:
        """Return whether the node `name` may be elected with the data `instance`. Before the first epoch there is no
        data to lose, so only the name is compared.
        """
        known = self.in_sync.get(name)
        return known is not None and (self.epoch == 0 or known == instance)


@dataclass(frozen=True, slots=True)
class SetNode:
    """One process of a broker set.

    name: unique in its set. url: `meta://host:port`. zone: "" for none. instance: identifies the node's data; it is
    chosen at random and kept in the data directory, and a copy of the directory gets another instance. forgetful: true
    if the node's machine has restarted since the node was last known to have all data.
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
        """Host (an IPv6 address without brackets) and port. Raises CoordinationError for an invalid URL."""
        address = parse_broker_url(self.name, self.url.encode())
        if address is None:
            raise damaged(self.name, self.url, "meta://host:port")
        return address


def may_revoke(state: SetState, newest: SetState) -> bool:
    """Return whether a node that has seen the state `newest` may revoke the older `state`, to which ZooKeeper was set
    back.

    It may not if a node has been elected since, or if an operator has chosen a node. Then all present nodes may follow
    that node, and a node that comes late is no reason to stop them. The late node does not truncate its own newer data.
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
    """Parse the output of format_set_state(). Unknown fields are ignored."""
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
    """Return a JSON object with the fields of SetNode. The name is omitted, because it is the znode's name. `forgetful`
    is included only if it is true, and `epoch` only if it is not 0.
    """
    fields: dict[str, object] = {"url": node.url, "zone": node.zone, "instance": node.instance}
    if node.forgetful:
        fields["forgetful"] = True
    if node.epoch:
        fields["epoch"] = node.epoch
    return json.dumps(fields, separators=(",", ":")).encode()


def parse_set_node(path: str, name: str, data: bytes | None) -> SetNode | None:
    """Parse the payload of the znode `name`, and return the node of the set. Unknown fields are ignored."""
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
