"""Do faults to a cluster. Each is a generator that yields the seconds until it continues, and that repairs its
damage."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from tests.kills.brokers import BrokerPlace
from tests.kills.journal import Journal, clock

from .cluster import PARTITIONS, SESSION_SECONDS, TOPICS, Cluster, Member
from .ensemble import Ensemble
from .facts import Done
from .faults import SET_BACKS, Fault, faults, set_backs
from .sessions import end_session

__all__ = ["Injuries"]

_LOOK_SECONDS = 0.1
_END_SECONDS = 60.0
_QUIET_SECONDS = 240.0
"""Most seconds until all members and brokers are in their places."""
_RETURN_SECONDS = 2 * SESSION_SECONDS
"""Seconds from ZooKeeper's return until the sessions of an older copy have expired, and members no longer wait for
others."""

Steps = Generator[float, None, bool]
"""The steps of a fault; the return value says whether it could be done."""

_NEED_ZOOKEEPER = ("session", "broker-session")


class Injuries:
    """Executor of a seed's faults on a cluster. done: the faults that were done; missed: how many found no victim."""

    def __init__(self, cluster: Cluster, notes: Journal) -> None:
        self.done: list[Done] = []
        self.missed = 0
        self._cluster = cluster
        self._notes = notes
        self._busy: set[object] = set()
        self._alone = False  # ZooKeeper is set back; a member that is absent then cannot report its position
        self._left: dict[str, int] = {}  # znodes that killed members left, and the sessions of these
        self._kinds: Mapping[str, tuple[Callable[[], Sequence[Any]], Callable[[Fault, Any], Steps]]] = {
            "broker-kill": (self._serving, self._kill_broker),
            "brokers-in-order": (lambda: [cluster], self._restart_brokers),
            "member-kill": (self._members, self._kill_member),
            "member-freeze": (self._members, self._freeze_member),
            "session": (self._members, self._end_member_session),
            "broker-session": (self._serving, self._end_broker_session),
            "leader-kill": (lambda: [cluster.ensemble], self._kill_leader),
            "majority": (lambda: [cluster.ensemble], self._lose_majority),
            "burst": (lambda: [object()], self._burst),
            "member-leave": (self._members, self._member_leaves),
            "zookeeper-empty": (lambda: [cluster.ensemble], self._empty),
            "zookeeper-older": (lambda: [cluster.ensemble], self._take_an_older_copy),
        }

    def run(self, seed: int, seconds: float) -> None:
        """Do all faults and return when they are repaired; processes that were started again may not serve yet."""
        begin, order = clock(), count()
        tasks: list[tuple[float, int, Generator[float, None, None]]] = []
        for fault in (*faults(seed, seconds), *set_backs(seed, seconds)):
            heappush(tasks, (begin + fault.at, next(order), self._do(fault)))
        while tasks:
            when, _, task = heappop(tasks)
            time.sleep(max(0.0, when - clock()))
            pause = next(task, None)
            if pause is not None:
                heappush(tasks, (clock() + pause, next(order), task))
        time.sleep(max(0.0, begin + seconds - clock()))

    def _do(self, fault: Fault) -> Generator[float, None, None]:
        find, steps = self._kinds[fault.kind]
        if fault.kind in _NEED_ZOOKEEPER:
            yield from _until(lambda: self._cluster.ensemble not in self._busy)
        elif fault.kind in SET_BACKS:
            yield from _until(lambda: self._cluster.ensemble not in self._busy, _QUIET_SECONDS)
        yield from _until(lambda: not self._alone, _QUIET_SECONDS)
        victims = [each for each in find() if each not in self._busy]
        if not victims:
            self.missed += 1
            return
        victim = victims[fault.which % len(victims)]
        name, begin = getattr(victim, "name", fault.kind), clock()
        self._busy.add(victim)
        self._notes.write("begin", fault.kind, name)
        done = yield from steps(fault, victim)
        self._busy.discard(victim)
        self._notes.write("end" if done else "missed", fault.kind, name)
        if done:
            self.done.append(Done(begin, clock(), fault.kind, name))
        else:
            self.missed += 1

    def _serving(self) -> list[BrokerPlace]:
        return [broker for broker in self._cluster.brokers if broker.running]

    def _members(self) -> list[Member]:
        return [member for member in self._cluster.members if member.running]

    # --- brokers ------------------------------------------------------------------------------------------------------

    def _kill_broker(self, fault: Fault, broker: BrokerPlace) -> Steps:
        self._cluster.kill(broker.child)
        yield fault.seconds
        self._cluster.start_broker(broker)
        return True

    def _restart_brokers(self, fault: Fault, cluster: Cluster) -> Steps:
        """Restart all brokers: each is ended as an operator does it, and the next one only when it serves again."""
        for broker in cluster.brokers:
            if broker in self._busy or not broker.serves:
                continue
            self._busy.add(broker)
            cluster.terminate(broker.child)
            yield from _until(lambda broker=broker: not broker.running)  # type: ignore[misc]
            if broker.running:  # ZooKeeper is away; the broker ends nevertheless
                cluster.kill(broker.child)
            yield fault.seconds
            cluster.start_broker(broker)
            yield from _until(lambda broker=broker: broker.serves)  # type: ignore[misc]
            self._busy.discard(broker)
        return True

    def _end_broker_session(self, _fault: Fault, broker: BrokerPlace) -> Steps:
        yield 0.0
        return self._end_session(self._cluster.watcher.paths.master(self._cluster.brokers.index(broker)))

    # --- members ------------------------------------------------------------------------------------------------------

    def _kill_member(self, fault: Fault, member: Member) -> Steps:
        assert member.child is not None
        self._cluster.kill(member.child)
        yield fault.seconds
        yield from _until(lambda: self._notes_left(member))
        self._cluster.start_member(member)
        return True

    def _notes_left(self, member: Member) -> bool:
        """Record the znode that a killed member left in its group; return whether ZooKeeper answered."""
        path = self._cluster.watcher.paths.consumer(member.group, f"{member.group}_{member.consumer_id}")
        session = self._cluster.watcher.owner_of(path)
        if session:
            self._left[path] = session
        return session is not None

    def _owns_left(self) -> bool:
        """Return whether a killed member still counts in its group, or ZooKeeper does not answer."""
        for path, session in list(self._left.items()):
            if self._cluster.watcher.owner_of(path) in (None, session):
                return True
            del self._left[path]
        return False

    def _freeze_member(self, fault: Fault, member: Member) -> Steps:
        assert member.child is not None
        member.child.freeze()
        yield SESSION_SECONDS + fault.seconds
        member.child.thaw()
        return True

    def _end_member_session(self, _fault: Fault, member: Member) -> Steps:
        group = member.group
        yield 0.0
        return self._end_session(self._cluster.watcher.paths.consumer(group, f"{group}_{member.consumer_id}"))

    def _member_leaves(self, fault: Fault, member: Member) -> Steps:
        assert member.child is not None
        self._cluster.terminate(member.child)
        yield from _until(lambda: not member.running)
        self._cluster.kill(member.child)  # ZooKeeper is away, or the member's handler does not return
        yield fault.seconds
        yield from _until(lambda: self._notes_left(member))
        self._cluster.start_member(member)
        return True

    def _burst(self, fault: Fault, _victim: object) -> Steps:
        self._cluster.start_burst(fault.which)
        yield 0.0
        return True

    # --- ZooKeeper ----------------------------------------------------------------------------------------------------

    def _end_session(self, path: str) -> bool:
        session = self._cluster.watcher.owner_of(path)
        servers = [(server.host, server.port) for server in self._cluster.ensemble.servers]
        try:
            ended = end_session(servers, session) if session else False
        except OSError as error:  # the session may be over nevertheless, and its member without it from now on
            self._notes.write("failed", path, session, str(error))
            return True
        self._notes.write("session ended" if ended else "no session", path, session)
        return ended

    def _kill_leader(self, fault: Fault, ensemble: Ensemble) -> Steps:
        leader = ensemble.leader()
        return (yield from self._without(ensemble, [0 if leader is None else leader], fault.seconds))

    def _lose_majority(self, fault: Fault, ensemble: Ensemble) -> Steps:
        left = fault.which % len(ensemble.servers)
        killed = [index for index in range(len(ensemble.servers)) if index != left]
        return (yield from self._without(ensemble, killed, fault.seconds))

    def _empty(self, _fault: Fault, ensemble: Ensemble) -> Steps:
        return (yield from self._set_back(ensemble, None))

    def _take_an_older_copy(self, fault: Fault, ensemble: Ensemble) -> Steps:
        follower = 1 if ensemble.leader() == 0 else 0
        copy = self._cluster.directory / "zookeeper-copy"
        ensemble.kill(follower)
        ensemble.copy(follower, copy)
        ensemble.restart(follower)
        yield fault.seconds
        return (yield from self._set_back(ensemble, copy))

    def _set_back(self, ensemble: Ensemble, copy: Path | None) -> Steps:
        """Set ZooKeeper back when all members are present, and wait until they are present again: only a member that
        lives through it knows its position."""
        self._alone = True
        ready = yield from _until(lambda: self._is_whole(ensemble), _QUIET_SECONDS)
        if ready:
            self._notes.write("set back", None if copy is None else str(copy))
            for index in range(len(ensemble.servers)):
                ensemble.kill(index)
            self._cluster.watcher.set_back()
            ensemble.replace(copy)
            for index in range(len(ensemble.servers)):
                ensemble.restart(index)
            yield from _until(lambda: all(server.mode for server in ensemble.servers), _QUIET_SECONDS)
            yield _RETURN_SECONDS
            yield from _until(lambda: self._is_whole(ensemble), _QUIET_SECONDS)
        self._alone = False
        return ready

    def _is_whole(self, ensemble: Ensemble) -> bool:
        """Return whether all processes run, all members are in their groups, all partitions are owned, and no other
        fault is in progress."""
        cluster = self._cluster
        if self._busy != {ensemble} or any(burst.running for burst in cluster.bursts):
            return False
        if not all(member.running for member in cluster.members) or not all(each.serves for each in cluster.brokers):
            return False
        if self._owns_left():
            return False
        partitions = PARTITIONS * len(TOPICS) * len(cluster.brokers)
        for group, modes in cluster.shape.groups.items():
            if cluster.watcher.members(group) != len(modes) or cluster.watcher.owned(group, TOPICS) != partitions:
                return False
        return True

    def _without(self, ensemble: Ensemble, servers: Sequence[int], seconds: float) -> Steps:
        """Stop these servers for a while, and wait until all servers serve again."""
        for index in servers:
            ensemble.kill(index)
        yield seconds
        for index in servers:
            ensemble.restart(index)
        return (yield from _until(lambda: all(server.mode for server in ensemble.servers)))


def _until(condition: Callable[[], bool], seconds: float = _END_SECONDS) -> Steps:
    """Wait until the condition is true, at most `seconds`; return whether it is."""
    end = clock() + seconds
    while not condition():
        if clock() > end:
            return False
        yield _LOOK_SECONDS
    return True
