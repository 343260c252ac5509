"""Removing what ZooKeeper keeps of a consumer group that nobody is a member of: 1.x leaves it there for ever."""

from __future__ import annotations

from kazoo.exceptions import NotEmptyError

from metaq.protocol.errors import ClientError

from .paths import child_of, parent_of
from .session import ZkSession
from .znodes import ATOMIC_WRITES, delete

__all__ = ["remove_group"]


def remove_group(session: ZkSession, group: str) -> None:
    """Delete the group's node and all below it. Blocks; any thread but kazoo's.

    Up to a thousand nodes go together or not at all. Above, a member that joins meanwhile may find some of the offsets.
    Raises ClientError if the group has members or owners, SessionLost, CoordinationUnavailable.
    """
    nodes, paths = session.nodes, session.paths
    levels = [[child_of(paths.groups(), group)]]
    while below := [
        child_of(parent, name)
        for parent, names in zip(levels[-1], nodes.children_many(levels[-1]), strict=True)
        for name in names
    ]:
        levels.append(below)
    everything = [path for level in reversed(levels) for path in level]
    ids, owners = paths.group_ids(group), paths.group_owners(group)
    if any(parent_of(path) == ids or parent_of(parent_of(path)) == owners for path in everything):
        raise _in_use(group)  # members, and owned partitions
    if ids in everything:  # first: with a member that has come meanwhile it cannot be deleted, and nothing else is
        everything.remove(ids)
        everything.insert(0, ids)
    for start in range(0, len(everything), ATOMIC_WRITES):
        chunk = everything[start : start + ATOMIC_WRITES]
        failure = nodes.write_atomically(session.session_id, [delete(path) for path in chunk])
        if isinstance(failure, NotEmptyError):
            raise _in_use(group)
        if failure is not None:
            raise ClientError(f"group {group!r} has changed meanwhile, try again: {failure!r}")


def _in_use(group: str) -> ClientError:
    return ClientError(f"group {group!r} has live members, or partitions that one of them owns: stop them first")
