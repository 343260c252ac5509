"""The code by which a node of a broker set takes part in its set. A BrokerSet registers the node, watches the other
nodes, and changes the set's state in ZooKeeper.

Other code decides which node leads and when. A BrokerSet writes this decision to ZooKeeper; if another node has changed
the state since the decision was made, the BrokerSet writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from metaq.protocol.errors import ConfigError, CoordinationError

from ..brokers.cluster_view import read_entry
from ..records.set_payloads import SetNode, SetState, format_set_node, format_set_state, may_revoke, parse_set_node
from ..runtime.backoff import Backoff
from ..runtime.logs import get_log
from ..session.presence import Presence
from ..session.watches import ChildrenWatcher, DataWatcher
from ..session.zk_session import SessionEvent, ZkSession, session_clock
from ..session.znodes import FencedWrite, create_ephemeral, delete, set_data
from .set_view import SetMaster, SetView, read_set

__all__ = ["BrokerSet", "SetMaster", "SetNode", "SetState", "SetView"]

log = get_log(__name__)

_FASTER = (BadVersionError, NodeExistsError, NoNodeError)
"""If a transaction fails with one of these errors, another node was faster: it has changed, created or deleted one of
the transaction's znodes after this node had read it.
"""


class BrokerSet:
    """One node of the broker set `broker_id`. An object of this class works from start() to close(), even if its
    ZooKeeper session expires.

    The methods block on ZooKeeper: call them on worker threads, never on a reactor or on kazoo's threads. on_view: a
    function that is called on the session's event thread and must not block. The function gets the current view of the
    set: first after start(), then at each change, and after each reconnection even without a change. The state in a
    view is never older than the state in an earlier view, unless ZooKeeper itself was set back. The object concludes
    that ZooKeeper was set back if a new session shows an older state: a majority of ZooKeeper's servers creates a new
    session, so the older state does not come from a single server that lags behind. It concludes the same if an
    existing session shows an older state for at least the length of the session timeout.

    Every change is made on the ZooKeeper session that created the node's own znode. A change is made only if the state
    still has the version on which the change is based. If a method raises CoordinationUnavailable or SessionLost, its
    change may or may not have happened; read() shows whether it has. After a new session has begun, the methods raise
    SessionLost until the node's own znode was created on this session.
    """

    def __init__(
        self,
        session: ZkSession,
        broker_id: int,
        node: SetNode,
        on_view: Callable[[SetView], None],
        *,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = session_clock,
    ) -> None:
        """session: a ZooKeeper session that belongs to the caller. The caller starts this session before calling
        start(), and closes it after calling close().
        """
        self.broker_id = broker_id
        self.node = node
        self._session = session
        self._nodes = session.nodes
        self._on_view = on_view
        paths = session.paths
        self._state_path, self._master_path = paths.broker_set(broker_id), paths.master(broker_id)
        self._own_path = paths.set_node(broker_id, node.name)
        self._parents = [paths.set_nodes(broker_id), paths.broker(broker_id)]
        self._payload = format_set_node(node)
        self._session_id = 0  # the session that holds the own znode
        self._deposed = False  # another process has the own znode
        self._told: SetView | None = None
        self._clock = clock
        self._newest = 0  # zxid of the newest state passed to on_view
        self._newest_state: SetState | None = None
        self._older_since: float | None = None  # set while ZooKeeper shows an older state
        self._looked_on = 0  # the session of the last look
        self._era: tuple[int, int | None] = 0, None  # number; zxid of the older state that began the era
        self._lost: SetState | None = None  # the newest state known when the era began
        self._presence = Presence(session, f"node {node.name} of broker set {broker_id}", self._look, backoff)
        self._watchers = (
            DataWatcher(session, self._state_path, self._changed),
            ChildrenWatcher(session, paths.set_nodes(broker_id), self._changed),
            ChildrenWatcher(session, paths.broker(broker_id), self._changed),
        )

    # --- public -----------------------------------------------------------------------------------------------------

    @property
    def session_id(self) -> int:
        """Id of the ZooKeeper session on which this node makes its changes. So the `master` znode of the set belongs to
        this node if the znode's owner is this session.

        The id is 0 before start(). After the session has expired, the value remains the id of the expired session until
        the node is registered on a new session.
        """
        return self._session_id

    @property
    def present(self) -> bool:
        """Whether other nodes see this node, as far as this process knows. Reading this property makes no request to
        ZooKeeper.
        """
        return self._session.is_current(self._session_id) and not self._deposed

    def start(self) -> None:
        """Register the node, and begin to watch the set.

        If an earlier process of this node (same instance) has left its znode behind, the znode is replaced. If another
        process has a znode with the same name, start() waits about one session timeout: if that process is dead,
        ZooKeeper removes the znode in this time. If the other process's znode still exists after the wait, start()
        raises ConfigError, which names both processes. Raises CoordinationUnavailable or SessionLost if ZooKeeper
        cannot be used. After each of these errors this object no longer keeps the node registered, and the caller can
        call start() again.
        """
        with self._presence.begun():
            self._ensure_parents()
            session_id = self._session.session_id
            self._presence.take_over(partial(self._take_own_node, session_id))
            self._session_id = session_id
        self._session.on_session(self._session_changed)
        for watcher in self._watchers:
            watcher.start()

    def declare(self, node: SetNode) -> None:
        """Replace the data of the node's own znode in the background. node: the new data. Its name and instance must be
        the same as in the former data. Any thread may call this method.
        """
        self.node, self._payload = node, format_set_node(node)
        self._presence.again()

    def close(self) -> None:
        """Stop watching the set, and remove the node's own znode. If this node leads the set, the caller must call
        release() before close().
        """
        for watcher in self._watchers:
            watcher.close()
        self._session.off_session(self._session_changed)
        self._presence.stop()
        self._presence.leave(lambda: self._nodes.delete_owned(self._session.session_id, [self._own_path]))

    def read(self) -> SetView:
        """Return the current state and nodes of the set. The result includes all writes that were made before the call.
        Raises CoordinationError if the state is damaged.
        """
        era, older = self._era
        view = read_set(self._session, self.broker_id)
        return replace(view, era=era, set_back=view.state is not None and view.zxid == older)

    def create(self, state: SetState) -> bool:
        """Write the first state of the set. Return False if the set already has a state."""
        self._nodes.ensure([self._state_path])
        found = self._nodes.get_versioned(self._state_path)
        if found is None or (found[0] or b"").strip():
            return False
        return self.change(state, found[1]) is not None

    def change(self, state: SetState, version: int) -> int | None:
        """Replace the set's state by `state`, if the version of the current state is `version`. Return the new version,
        or None if the current state has another version.
        """
        return self._write([], state, version)

    def take_over(self, state: SetState, version: int, replacing: SetMaster | None) -> int | None:
        """In one transaction: delete `replacing`, create this node's `master`, and write `state` as change() does.

        replacing: the `master` znode in the SetView whose version is `version`; None if the view has no such znode, or
        if the znode must not be deleted. Return the new version of the state. Return None, and change nothing, if
        another node has changed the state since this version, or if another `master` znode than `replacing` exists now.

        The transaction never deletes a `master` znode that a node of the set has created after the view was read: such
        a node writes a new version of the state together with its `master` znode, so the transaction fails. A broker
        outside of a set creates its `master` znode without changing the state. But the transaction can tell this znode
        from the `master` znode of a set's node, because their data versions are 0 and 1. One case is not covered:
        between the view and this call, a broker outside of a set is replaced by another broker outside of a set. The
        second broker's `master` znode then looks like the first broker's, and is deleted.
        """
        self._nodes.ensure([self._parents[1]])
        deletion = [delete(self._master_path, replacing.version)] if replacing else []
        url = self.node.url.encode()
        # The second write makes the data version 1, see above.
        return self._write(
            [*deletion, create_ephemeral(self._master_path, url), set_data(self._master_path, url, 0)], state, version
        )

    def release(self, state: SetState, version: int) -> int | None:
        """In one transaction: delete this node's `master`, and write `state` as change() does.

        Return the new version of the state. Return None, and change nothing, if the `master` znode does not belong to
        this node, or if the current state has another version.
        """
        (master,) = self._nodes.get_with_stats([self._master_path])
        if master is None or master[1].ephemeralOwner != self._session_id:
            return None
        return self._write([delete(self._master_path, master[1].version)], state, version)

    # --- changes ----------------------------------------------------------------------------------------------------

    def _write(self, before: Sequence[FencedWrite], state: SetState, version: int) -> int | None:
        if version < 0:
            return None  # the znode was missing; for ZooKeeper, -1 would mean any version
        writes = [*before, set_data(self._state_path, format_set_state(state), version)]
        failure = self._nodes.write_atomically(self._session_id, writes)
        if failure is None:
            return version + 1
        if isinstance(failure, _FASTER):
            return None
        raise CoordinationError(
            f"cannot change broker set {self.broker_id}: {type(failure).__name__} {failure}"
        ) from failure

    # --- the own znode ----------------------------------------------------------------------------------------------

    def _ensure_parents(self) -> None:
        self._session.ensure_chroot()
        self._nodes.ensure(self._parents)

    def _take_own_node(self, session_id: int) -> CoordinationError | ConfigError | None:
        """Create the node's own znode. Return None on success, otherwise the error. If the znode already exists with
        this node's instance but belongs to another session, an earlier process of this node has left the znode behind,
        and this method replaces it.
        """
        creation = create_ephemeral(self._own_path, self._payload)
        if self._nodes.write(session_id, [creation], NodeExistsError) == [None]:
            return None
        node = self._nodes.get(self._own_path)
        if node is not None:
            if node == (self._payload, session_id):
                return None
            holder = read_entry(self._parse_own, self._own_path, node.data)
            if holder is None or holder.instance != self.node.instance:
                return self._other_user(holder)
            log.info("node %s replaces the znode of its former process (%s)", self.node.name, self._own_path)
            if self._nodes.write_atomically(session_id, [delete(self._own_path), creation]) is None:
                return None
        return CoordinationError(f"node {self.node.name} cannot register: {self._own_path} comes and goes")

    def _parse_own(self, path: str, data: bytes | None) -> SetNode | None:
        return parse_set_node(path, self.node.name, data)

    def _other_user(self, holder: SetNode | None) -> ConfigError:
        user = f"{holder.url}, instance {holder.instance}" if holder else "another process"
        return ConfigError(
            "node",
            self.node.name,
            f"in use by {user} ({self._own_path}), this is {self.node.url}, instance {self.node.instance}: "
            "give each node of a broker set a name of its own",
        )

    # --- event thread -----------------------------------------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.CONNECTED, SessionEvent.RECONNECTED):
            self._told = None
            self._presence.again()

    def _changed(self, _path: str, _value: object) -> None:
        self._presence.again()

    def _tell(self, view: SetView) -> None:
        if view != self._told and not self._presence.stopped:
            self._told = view
            self._on_view(view)

    # --- the task's thread ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Register the node if it is not registered, read the current view of the set, and pass the view to on_view."""
        session_id = self._session.session_id
        if session_id != self._looked_on:
            # This comes before others see this node, and before this node writes a state, which must not be taken for
            # an old one.
            self._begin_era_if_set_back()
            self._revoke_if_set_back(session_id)  # at once, because another node may be elected by the old state
            self._looked_on = session_id
        self._appear(session_id)
        view = self.read()
        if view.state and view.zxid < self._newest:
            now = self._clock()
            since = self._older_since = now if self._older_since is None else self._older_since
            if now - since < self._session.session_timeout:
                raise CoordinationError(f"a server of ZooKeeper shows an old state of broker set {self.broker_id}")
            self._begin_era_if_set_back()
            view = self.read()
        self._older_since = None
        if self._revoke_if_set_back(session_id):
            view = self.read()
        if view.zxid >= self._newest:
            self._newest, self._newest_state = view.zxid, view.state
        self._session.events.post(partial(self._tell, view))

    def _begin_era_if_set_back(self) -> None:
        found = read_set(self._session, self.broker_id)
        if found.zxid < self._newest:
            what = "no state" if found.state is None else f"an older state, of epoch {found.state.epoch},"
            log.error("ZooKeeper was set back: it has %s of broker set %d", what, self.broker_id)
            self._era = self._era[0] + 1, None if found.state is None else found.zxid
            self._newest = found.zxid
            self._lost = self._newest_state

    def _revoke_if_set_back(self, session_id: int) -> bool:
        """If ZooKeeper was set back to an older state, revoke this older state, so that no node is elected on the basis
        of the older state. Return whether a revocation was tried.

        The older state may name the wrong in-sync nodes. A node that has not seen the newer state cannot know that
        ZooKeeper shows an older one, and would stand for election on its basis. So the state in ZooKeeper itself must
        show that it is revoked. If an election or an operator changes the state during this call, the state's version
        changes, and the method writes nothing.
        """
        if self._era[1] is None or self._lost is None:
            return False
        view = self.read()
        state, lost = view.state, self._lost
        if not view.set_back or state is None or not may_revoke(state, lost):
            return False
        write = set_data(self._state_path, format_set_state(state.revoked()), view.version)
        failure = self._nodes.write_atomically(session_id, [write])
        if failure is None:
            log.error(
                "broker set %d has no leader until an operator chooses one: by its older state, of epoch %d, in sync "
                "were %s; by the newest that %s has seen, of epoch %d, %s",
                self.broker_id,
                state.epoch,
                ", ".join(state.in_sync) or "none",
                self.node.name,
                lost.epoch,
                ", ".join(lost.in_sync) or "none",
            )
        elif not isinstance(failure, _FASTER):
            raise CoordinationError(f"cannot change broker set {self.broker_id}: {failure}") from failure
        return True

    def _appear(self, session_id: int) -> None:
        own, *parents = self._nodes.get_many([self._own_path, *self._parents])
        if own == (self._payload, session_id) and all(parents):
            self._session_id, self._deposed = session_id, False
            return
        self._ensure_parents()
        obstacle = self._take_own_node(session_id)
        if isinstance(obstacle, ConfigError):  # only log it: the set continues, and this node must see it
            if not self._deposed:
                log.error("%s", obstacle)
            self._deposed = True
        elif obstacle is not None:
            raise obstacle
        else:
            log.warning("node %s is present again in broker set %d", self.node.name, self.broker_id)
            self._session_id, self._deposed = session_id, False
