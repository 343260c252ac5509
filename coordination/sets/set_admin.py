"""Change the state of a broker set from a process that is not a node of the set: from an operator's tool, or at the
first start of a cluster.
"""

from __future__ import annotations

from kazoo.exceptions import BadVersionError, NoNodeError, NotEmptyError

from metaq.protocol.errors import CoordinationError

from ..records.set_payloads import SetState, format_set_state
from ..session.zk_session import ZkSession
from ..session.znodes import delete, set_data
from .set_view import SetView

__all__ = ["forget_set", "write_state"]


def write_state(session: ZkSession, broker_id: int, state: SetState, view: SetView) -> bool:
    """Replace the set's state by `state`. Return False, and change nothing, if the set's present state is not the state
    in `view`.

    If `view` has no state, the set must have no state now. The function blocks on ZooKeeper; any thread except kazoo's
    may call it. Raises SessionLost or CoordinationUnavailable if it is unknown whether the state was written. In this
    case call read_set() later to find out.
    """
    path = session.paths.broker_set(broker_id)
    version = view.version
    if version < 0:
        session.ensure_chroot()
        session.nodes.ensure([path])
        version = 0  # version of a znode that nobody has written to
    failure = session.nodes.write_atomically(session.session_id, [set_data(path, format_set_state(state), version)])
    if failure is None:
        return True
    if isinstance(failure, BadVersionError | NoNodeError):
        return False
    raise CoordinationError(f"cannot change broker set {broker_id}: {type(failure).__name__} {failure}") from failure


def forget_set(session: ZkSession, broker_id: int, view: SetView) -> bool:
    """Remove the znodes of a broker set that has no node according to `view`.

    Return False, and change nothing, if a node has registered since, or if the set's present state is not the state in
    `view`. The function blocks on ZooKeeper. It raises the same errors as write_state().
    """
    path, nodes = session.paths.broker_set(broker_id), session.paths.set_nodes(broker_id)
    present = [nodes] if session.nodes.get(nodes) is not None else []
    writes = [*map(delete, present), delete(path, view.version)]
    failure = session.nodes.write_atomically(session.session_id, writes)
    if failure is None:
        return True
    if isinstance(failure, BadVersionError | NoNodeError | NotEmptyError):
        return False
    raise CoordinationError(f"cannot remove broker set {broker_id}: {type(failure).__name__} {failure}") from failure
