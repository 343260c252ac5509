"""Join a consumer to its group, claim partitions for it and let it leave. client/consumer/rebalance.py calls the
methods of this module.

Each function only reads something and returns it, or makes one change, for example a claim. The client decides which
functions to call, and when. membership_state.py keeps track of the consumer's registration and claims, without I/O;
this module reads and writes ZooKeeper. Every write is executed only on the session on which the consumer joined
(session/fencing.py). So a write that the client decided on before this session expired is never executed after the
expiry.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.states import EventType, WatchedEvent

from metaq.protocol.errors import ClientError, ConfigError, CoordinationError, CoordinationUnavailable, SessionLost
from metaq.protocol.limits import check_new_topic, check_zookeeper_group

from ..records.paths import child_of, parent_of
from ..records.payloads import (
    ConsumerFilter,
    format_consumer_filter,
    format_consumer_id,
    format_consumer_zone,
    format_group_zones,
    format_topics,
    parse_consumer_id,
)
from ..runtime.backoff import Backoff
from ..runtime.local_address import address_in_java, local_address
from ..runtime.logs import get_log
from ..session.presence import Presence
from ..session.zk_session import ZkSession
from ..session.znodes import ATOMIC_WRITES, create_ephemeral, delete, set_data
from .group_view import GroupSnapshot, GroupView
from .membership_state import MembershipState, Partition

__all__ = ["GroupMembership", "GroupSnapshot", "broadcast_group", "new_consumer_id", "remove_group", "remove_offsets"]

log = get_log(__name__)

_counter = itertools.count(1)


def new_consumer_id(group: str, now: Callable[[], float] = time.time) -> str:
    """Return a new consumer id in the format of 1.x: `<group>_<ip>-<pid>-<millis>-<n>`."""
    return f"{group}_{local_address()}-{os.getpid()}-{int(now() * 1000)}-{next(_counter)}"


def broadcast_group(group: str, address: str | None = None) -> str:
    """Return the group name that broadcast consumers (consumers that each get every message) use in 1.x:
    `<group>-<ip>`, with `.` and `:` replaced by `-`. All broadcast consumers of one host use the same name.
    """
    return f"{group}-{re.sub('[.:]', '-', address or address_in_java())}"


class GroupMembership:
    """The membership of one consumer in one group, from join() to leave(), even if its ZooKeeper session expires.

    consumer_id: the configured id, called `consumerId` in 1.x, or None to make a new id. With a configured id the name
    of the consumer's znode is `<group>_<consumerId>`. topics: all topics of the consumer, at least one. on_change:
    called on the session's event thread when a new rebalance may be due. A rebalance may be due after these events: a
    consumer, a partition or a broker came or went; a partition that this consumer could not claim earlier has become
    free; the session expired; the consumer has joined again on a new session. on_change must not block for long.
    Several changes at the same time lead to one call. zone: the zone in which the consumer runs, or None if it does not
    assign partitions by zones. If a zone is given, it is registered in the group, and the snapshots contain the zones
    of the other members. takes: a filter for the messages of the consumer's topics, None for all messages. The filter
    is registered in the group. The methods block on ZooKeeper. Any thread except kazoo's may call them.
    """

    def __init__(
        self,
        session: ZkSession,
        group: str,
        consumer_id: str | None,
        topics: Iterable[str],
        on_change: Callable[[], None],
        *,
        zone: str | None = None,
        takes: ConsumerFilter | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.group = check_zookeeper_group(group)
        self._state = MembershipState(dict.fromkeys(map(check_new_topic, topics)))
        if not self.topics:
            raise ConfigError("topics", "", "name at least one topic to subscribe")
        self.consumer_id = f"{group}_{consumer_id}" if consumer_id else new_consumer_id(group)
        self._on_change = on_change
        self._session = session
        self._nodes = session.nodes
        self._paths = session.paths
        self._view = GroupView(session, group, self.topics, self._notify_later, with_zones=zone is not None)
        self._path = self._paths.consumer(group, self.consumer_id)
        self._other_nodes: dict[str, bytes] = {}
        if zone is not None:
            self._other_nodes[self._paths.consumer_zone(group, self.consumer_id)] = format_consumer_zone(zone)
        if takes is not None:
            data = format_consumer_filter(dict.fromkeys(self.topics, takes))
            self._other_nodes[self._paths.consumer_filter(group, self.consumer_id)] = data
        self._presence = Presence(session, f"consumer {self.consumer_id}", self._join_again, backoff, self._expired)

    # --- membership -------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Register the consumer in the group, and read the group for the first time; then on_change is called. If the
        session is replaced later, the consumer is registered again automatically.

        If another session has created the znode of a configured consumer id, this method waits about one session
        timeout: if that session belongs to a dead process, ZooKeeper removes the znode in this time. If the znode still
        exists after the wait, the method raises ConfigError, because the id is in use. (In the same situation a
        consumer of 1.x uses the other consumer's znode, so that two consumers own the same partitions.) Do not call
        this method on the session's event thread. Raises CoordinationUnavailable, SessionLost.
        """
        self._state.is_out = False
        with self._presence.begun():
            self._register()
            self._view.start()
            if not self._view.wait(self._session.session_timeout):
                raise CoordinationUnavailable(
                    f"ZooKeeper does not show group {self.group}: check that it can be reached"
                )

    def leave(self) -> None:
        """Give up all claimed partitions, and then leave the group. Further calls do nothing.

        If there is no connection or the session has ended, this method only logs a warning, because the znodes are
        ephemeral and end with the session.
        """
        self._presence.stop()
        self._view.close()
        session_id, held = self._state.leave()
        if session_id is not None:
            self._presence.leave(partial(self._remove, session_id, held))

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics of the member."""
        return self._state.topics

    @property
    def session_id(self) -> int:
        """Id of the session that has created the consumer's znodes; 0 while the consumer is not registered on the
        current session.

        Pass the session id to OffsetStore.commit as the argument `fence`. Read this property before you claim
        partitions, and keep the value together with the claimed partitions for later commits.
        """
        joined = self._state.session_id
        return joined if joined is not None and self._session.is_current(joined) else 0

    @property
    def session_timeout(self) -> float:
        """The session timeout in seconds, as in ZkSession. The properties last_session_id, set_backs, connections and
        seen_zxid return the attributes of ZkSession with the same names.
        """
        return self._session.session_timeout

    @property
    def last_session_id(self) -> int:
        return self._session.last_session_id

    @property
    def set_backs(self) -> int:
        return self._session.set_backs

    @property
    def connections(self) -> int:
        return self._session.connections

    @property
    def connection(self) -> int | None:
        """The number of the current connection to ZooKeeper, or None while there is no connection. The ZkSession object
        numbers its connections from 1 on.
        """
        return self._session.connections if self._session.connected else None

    @property
    def seen_zxid(self) -> int:
        return self._session.seen_zxid

    def subscribe(self, topic: str) -> None:
        """Subscribe to one more topic, until the membership ends. The topic need not exist yet. on_change is called
        after the subscription.

        The consumer's znode is deleted and created again in one transaction, because members read each znode only once.
        So no reader sees a moment without the znode: it sees the former topics, or the former topics and the new one.
        Raises InvalidName, ConfigError and the errors of join(). After an error call this method again. Otherwise other
        members may not see the new topic until the consumer registers in ZooKeeper the next time.
        """
        is_unfinished, session_id = self._state.subscribe(check_new_topic(topic))
        if not is_unfinished:
            return
        if session_id is not None:
            self._ensure_topics()
            self._replace_own_node(session_id)
        self._view.add_topic(topic)
        self._state.followed(topic)
        self._notify_later()

    def _replace_own_node(self, session_id: int) -> None:
        data = format_topics(self.topics)
        failure = self._nodes.write_atomically(session_id, [delete(self._path), create_ephemeral(self._path, data)])
        if isinstance(failure, NoNodeError):  # somebody has deleted it, and the next snapshot shows this
            log.info("%s registers with its new topics when it joins again", self.consumer_id)
        elif failure is not None:
            raise CoordinationError(
                f"cannot change the topics of consumer {self.consumer_id}: {failure!r}"
            ) from failure

    def rejoin(self) -> None:
        """Register the consumer on the current session now. Call this method after step_out(), or to avoid waiting for
        the automatic registration on a new session. Raises the errors of join().
        """
        self._state.is_out = False
        self._register()

    def step_out(self) -> None:
        """Give up all claimed partitions, and stay out of the group until rejoin(). Until then this object continues to
        watch the group.

        If CoordinationUnavailable is raised, it is unknown whether the consumer is still in the group; the caller can
        call this method again.
        """
        session_id, held = self._state.step_out()
        if session_id is not None:
            try:
                self._remove(session_id, held)
            except SessionLost as error:
                log.info("%s has left its group with its session: %s", self.consumer_id, error)
        self._state.stepped_out(session_id)

    def _register(self) -> None:
        session_id, topics = self._session.session_id, self.topics
        self._ensure_topics()
        self._presence.take_over(partial(self._create_own_nodes, session_id))
        if self._state.registered(session_id, topics):  # subscribe() added topics before the znode existed
            self._ensure_topics()
            self._replace_own_node(session_id)

    def _ensure_topics(self) -> None:
        """Create two sorts of znodes for each of the consumer's topics, if they are missing: the znodes that members of
        the group watch, and the parents of the owner znodes.
        """
        topics = self.topics
        self._nodes.ensure(
            [
                *map(parent_of, self._own_nodes()),
                *(self._paths.topic_sub(topic) for topic in topics),
                *(self._paths.owners(self.group, topic) for topic in topics),
            ]
        )

    def _own_nodes(self) -> dict[str, bytes]:
        return {self._path: format_topics(self.topics), **self._other_nodes}

    def _create_own_nodes(self, session_id: int) -> ConfigError | None:
        """Create all znodes of the consumer in one transaction, so that no member sees the consumer without its zone or
        its filter. A member that saw the consumer without them would assume that the consumer has another assignment
        strategy or no filter.
        """
        nodes = self._own_nodes()
        missing = list(nodes)
        for _ in range(2):
            creations = [create_ephemeral(path, nodes[path]) for path in missing]
            failure = self._nodes.write_atomically(session_id, creations)
            if failure is not None and not isinstance(failure, NodeExistsError):
                raise CoordinationError(f"cannot register consumer {self.consumer_id}: {failure!r}") from failure
            owned = missing if failure is None else self._nodes.owned(session_id, missing)
            missing = [path for path in missing if path not in owned]
            if not missing:
                return None  # if only some exist, somebody has deleted the others
            if not owned:
                break
        return ConfigError(
            "consumer_id", self.consumer_id, "in use by another live consumer: stop it or choose another id"
        )

    def _remove(self, session_id: int, held: Iterable[Partition]) -> None:
        paths = [self._paths.owner(self.group, *each) for each in sorted(held)]
        # The membership is deleted last, because otherwise others would claim partitions that are still owned. The zone
        # is deleted together with it or later.
        self._nodes.delete_owned(session_id, [*paths, *self._own_nodes()])

    # --- what the group looks like ----------------------------------------------------------------------------------

    def snapshot(self) -> GroupSnapshot:
        """Return the members, partitions and brokers of the group, as the watches have shown them. Call this method
        after join().

        Raises SessionLost if this member is not registered, and CoordinationUnavailable if ZooKeeper does not answer.
        """
        snapshot = self._view.snapshot()
        if self._is_in(snapshot):
            return snapshot
        self._view.look_again()  # it may have registered after the last answer to the watch
        snapshot = self._view.snapshot()
        if self._is_in(snapshot):
            return snapshot
        self._state.is_registered = False  # somebody has removed its znode, but it owns its partitions
        self._presence.again()
        raise SessionLost(f"consumer {self.consumer_id} is not registered now, it joins again")

    def agree_on_zones(self, zones: Mapping[int, str], version: int) -> None:
        """Write these zones of brokers to ZooKeeper, so that all members of the group use them for the assignment of
        partitions. zones: the zone of each broker, by broker id. version: the `version` of GroupZones on which the
        caller's decision is based; if the group has agreed on other zones since, nothing is written. The next snapshot
        shows the agreed zones, and on_change of all members is called.

        Raises SessionLost, CoordinationUnavailable.
        """
        path = self._paths.group_zones(self.group)
        failure: KazooException | None = NoNodeError()
        if version >= 0:  # -1 would replace any version
            failure = self._nodes.write_atomically(self._fence(), [set_data(path, format_group_zones(zones), version)])
        if isinstance(failure, NoNodeError):  # it was deleted; the watch reports when it exists again
            self._nodes.ensure([path])
        elif failure is not None and not isinstance(failure, BadVersionError):
            raise CoordinationError(f"cannot write ZooKeeper node {path}: {failure!r}") from failure
        self._view.look_at_zones()

    def _is_in(self, snapshot: GroupSnapshot) -> bool:
        return all(self.consumer_id in each for each in snapshot.consumers.values())

    # --- claims -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> frozenset[Partition]:
        """The partitions whose owner znode may belong to this consumer, because the claim has succeeded, or because the
        answer to the claim did not come.
        """
        return self._state.held

    def claim(self, topic: str, partition: str) -> bool:
        """Claim the partition `<broker>-<partition>` of `topic`. Return True if this consumer owns the partition now,
        and False if another consumer, or an earlier session of this consumer, owns it.

        Raises SessionLost, CoordinationUnavailable. After such an error it is unknown whether this consumer owns the
        partition (see `held`), so the caller must call claim() again or call release().
        """
        return (topic, partition) in self.claim_many([(topic, partition)])

    def claim_many(self, partitions: Iterable[Partition]) -> set[Partition]:
        """Claim several partitions, as claim() does, with about two requests altogether. Return the partitions that
        this consumer owns now. If a partition could not be claimed, on_change is called when it becomes free.

        The method first reads the owner znodes, and tries to create only the missing ones, because ZooKeeper writes
        even a refused request to the transaction log of every server.
        """
        wanted = {self._paths.owner(self.group, *each): each for each in partitions}
        session_id = self._fence()
        self._state.hold(wanted.values())
        nodes = dict(zip(wanted, self._nodes.get_many(list(wanted)), strict=True))
        mine = {path for path, node in nodes.items() if node and node.owner == session_id}
        mine |= self._create_owners(session_id, [path for path, node in nodes.items() if node is None])
        granted = {each for path, each in wanted.items() if path in mine}
        self._state.drop(set(wanted.values()) - granted)
        self._await_end(wanted.keys() - mine)
        return granted

    def _create_owners(self, session_id: int, paths: Sequence[str]) -> set[str]:
        """Create the owner znodes at these paths where they do not exist. Return the paths of the znodes that belong to
        this session.
        """
        data = format_consumer_id(self.consumer_id)
        failures = self._nodes.write(session_id, [create_ephemeral(path, data) for path in paths], NodeExistsError)
        existing = [path for path, failure in zip(paths, failures, strict=True) if failure is not None]
        return set(paths).difference(existing).union(self._nodes.owned(session_id, existing))

    def _await_end(self, paths: Iterable[str]) -> None:
        """Set watches so that on_change is called when one of these owner znodes is deleted. After a reconnection,
        on_change is called even if none of them was deleted, because the watches were lost with the connection.
        """
        for path in self._state.await_end(paths):
            answer = self._session.zk.exists_async(path, watch=partial(self._owner_event, path))
            answer.rawlink(partial(self._owner_looked_at, path))

    def hold_again(self, partitions: Sequence[Partition]) -> None:
        """Read the owner znode of each of these partitions once. Add the partitions that this session owns to `held`.

        If ZooKeeper was restored from an older copy, it may again contain owner znodes that this consumer had deleted.
        No other member could claim the partitions of these znodes, because this consumer's session owns the znodes. So
        this consumer must count these partitions as its own again. Raises SessionLost, CoordinationUnavailable.
        """
        owned = self._nodes.owned(self._fence(), [self._paths.owner(self.group, *each) for each in partitions])
        self._state.hold(each for each in partitions if self._paths.owner(self.group, *each) in owned)

    def release(self, topic: str, partition: str) -> None:
        """Give up the partition `<broker>-<partition>`, if this consumer owns it. Raises SessionLost,
        CoordinationUnavailable.
        """
        self.release_many([(topic, partition)])

    def release_many(self, partitions: Iterable[Partition]) -> None:
        """Give up several partitions, as release() does. The method sends all requests before it waits for the
        answers.
        """
        given_up = list(partitions)
        self._nodes.delete_owned(self._fence(), [self._paths.owner(self.group, *each) for each in given_up])
        self._state.drop(given_up)

    def owner(self, topic: str, partition: str) -> str | None:
        """Return the consumer id of the owner of the partition `<broker>-<partition>`, or None if nobody owns it."""
        path = self._paths.owner(self.group, topic, partition)
        node = self._nodes.get(path)
        return parse_consumer_id(path, node.data) if node else None

    def require_owned(self, partitions: Iterable[Partition], session_id: int) -> None:
        """Check by one request to ZooKeeper that the session `session_id` is alive and owns all of these partitions.

        Raises SessionLost if the session has ended or does not own all of these partitions, and CoordinationUnavailable
        if ZooKeeper does not answer.
        """
        paths = [self._paths.owner(self.group, *each) for each in partitions]
        lost = set(paths).difference(self._nodes.owned(session_id, paths))
        if lost or not self._session.is_current(session_id):
            raise SessionLost(f"consumer {self.consumer_id} does not own {len(lost) or len(paths)} partitions any more")

    def _fence(self) -> int:
        if session_id := self.session_id:
            return session_id
        raise SessionLost(f"consumer {self.consumer_id} is not registered on a ZooKeeper session now")

    # --- event thread -----------------------------------------------------------------------------------------------

    def _expired(self) -> None:
        joined = self._state.session_id
        if joined is not None and not self._session.is_current(joined):
            self._state.session_lost(joined)
        self._notify_later()

    def _notify_later(self) -> None:
        self._session.events.post_once(self._notify)

    def _notify(self) -> None:
        if not self._presence.stopped:
            self._on_change()

    # --- kazoo's callback thread ------------------------------------------------------------------------------------

    def _owner_event(self, path: str, event: WatchedEvent) -> None:
        self._awaited_ended(path, tell=event.type != EventType.NONE)  # NONE: the connection is lost

    def _owner_looked_at(self, path: str, answer: Any) -> None:
        if answer.exception is not None:
            self._awaited_ended(path, tell=False)  # the next claim reads the znode again
        elif answer.value is None:
            self._awaited_ended(path, tell=True)

    def _awaited_ended(self, path: str, tell: bool) -> None:
        self._state.no_longer_awaited(path)
        if tell:
            self._notify_later()

    # --- rejoining --------------------------------------------------------------------------------------------------

    def _join_again(self) -> None:
        if self._presence.stopped or self._session.closed or not self._state.must_register(self.session_id):
            return
        self._session.ensure_chroot()  # it existed when the consumer joined
        self._register()
        if self._presence.stopped:  # this call began before leave(), which did not wait for it
            self._remove(self.session_id, [])
            return
        if self._state.is_out:  # this call began before step_out()
            self.step_out()
            return
        owners = [self._paths.owner(self.group, *each) for each in sorted(self.held)]
        if owners:  # still the same session: the owners may have been deleted, too
            self._create_owners(self._fence(), owners)
        log.warning("consumer %s has joined its group again", self.consumer_id)
        self._notify_later()


def remove_group(session: ZkSession, group: str) -> None:
    """Delete the group's znode and all znodes below it. (1.x never deletes the znodes of a group.) This function blocks
    on ZooKeeper; any thread except kazoo's may call it.

    If the group has up to a thousand znodes, all are deleted in one transaction. If there are more znodes, several
    transactions are needed, and a member that joins meanwhile may still find those offsets that are not deleted yet.
    Raises ClientError if the group has members or partition owners. Also raises SessionLost, CoordinationUnavailable.
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
        raise _in_use(group)  # it has members, and owned partitions
    if ids in everything:  # first: if a member has joined meanwhile, this fails before anything is deleted
        everything.remove(ids)
        everything.insert(0, ids)
    for start in range(0, len(everything), ATOMIC_WRITES):
        chunk = everything[start : start + ATOMIC_WRITES]
        failure = nodes.write_atomically(session.session_id, [delete(path) for path in chunk])
        if isinstance(failure, NotEmptyError):
            raise _in_use(group)
        if failure is not None:
            raise ClientError(f"group {group!r} has changed meanwhile, try again: {failure!r}")


def remove_offsets(session: ZkSession, group: str, partitions: Collection[tuple[str, str]]) -> None:
    """Delete a group's offsets and its marks of begun messages for partitions that no member can own any more, for
    example because their broker was removed. partitions: pairs of topic and partition name.

    Raises SessionLost, CoordinationUnavailable.
    """
    paths = [path(group, *each) for each in partitions for path in (session.paths.offset, session.paths.begun)]
    session.nodes.write(session.session_id, [delete(path) for path in paths], NoNodeError)


def _in_use(group: str) -> ClientError:
    return ClientError(f"group {group!r} has live members, or partitions that one of them owns: stop them first")
