"""One node of a broker set: its role - follower, candidate, leader - and the changes between roles.

Reactor thread; worker threads use ZooKeeper and files. `_decide` looks at the last view of ZooKeeper and at the work
under way, and begins the one step that is due. Every step that ends calls it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from twisted.internet import defer
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import LoopingCall, deferLater
from twisted.python.failure import Failure

from metaq.coordination.records.payloads import parse_broker_url
from metaq.coordination.runtime.backoff import Backoff
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.broker_set import BrokerSet, SetMaster, SetNode, SetState, SetView
from metaq.protocol.errors import (
    CoordinationError,
    CoordinationUnavailable,
    DiskFull,
    MetaqError,
    NotLeader,
    ReplicaDiverged,
    SessionLost,
    StoreError,
)
from metaq.protocol.frames import Frame
from metaq.protocol.pulls import FOLLOWER
from metaq.protocol.replication_stream import MAX_FOLLOWER_MESSAGE_BYTES, Hello, Kind, encode_json, parse_hello

from ..partitions.registration import Registration
from ..reading.parkable import Parkable
from ..requests.gate import Nodes, Verb
from ..runtime.scheduled_calls import repeat
from ..runtime.threads import in_own_thread
from . import tuning
from .connections import StreamProtocol
from .follower import Follower, LeaderGone
from .history import NodeFile, machine_start
from .host import SetHost
from .leader import Leader
from .leading import Leading
from .losses import contents, losses
from .member_state import MemberState
from .node_transactions import SetTransactions
from .rules import accepts, common_epoch, elected, in_time, may_grant, may_stand, promised_until

__all__ = ["SetMember"]

_log = logging.getLogger(__name__)

T = TypeVar("T")


class SetMember:
    """This broker's node of the set `broker.config.broker_id`."""

    def __init__(
        self,
        broker: SetHost,
        name: str,
        zone: str,
        session: ZkSession,
        registration: Registration,
        on_role: Callable[[], None] = lambda: None,
        *,
        before_serving: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """session: `start` starts it, `close` closes it. registration: uses that session. on_role: called when
        `refusal` may have changed. before_serving: awaited after each election before clients are served. Reads the
        node's file: raises StoreError."""
        self.name = name
        self.zone = zone
        self.leader: Leader | None = None
        """Set while this node leads."""
        self.failure: MetaqError | None = None
        """Why this node does not take part until an operator acts."""
        self._broker = broker
        self._reactor: Any = broker.reactor
        self._session = session
        self._registration = registration
        self._on_role = on_role
        self._before_serving = before_serving
        self._file = NodeFile(broker.store.files, broker.store.data_paths[0])
        self._file.read()
        self._boot = machine_start()
        self._timer: LoopingCall | None = None
        self._incomplete = False
        """Whether this node has to catch up because its directories have lost data. Until then its file remembers the
        lost data, because an unmounted disk may come back."""
        self._transactions = SetTransactions(broker, self.refusal, self._disk_failed)
        self._set: BrokerSet | None = None
        self._view: SetView | None = None
        self._follower: Follower | None = None
        self._following: tuple[int, str] | None = None  # the (epoch, leader) that it follows or tries to
        self._ended: list[Deferred[None]] | None = None  # who waits for the end of following; None while idle
        self._urls: dict[str, str] = {}  # last known, by node
        self._gone: tuple[int, str] | None = None  # the leader whose process has ended
        self._granted_until = promised_until(self._reactor.seconds())  # it may have granted before its start
        self._busy = False
        self._standing = False  # from before it checks its promises until its transaction's outcome is known
        self._early: list[Callable[[], None]] = []  # answers to followers that connect while this node stands
        self._stopping = False
        self._gone_for_good = True  # False: that leader has handed over, and follows
        self._established = False
        self._listing: Deferred[Any] | None = None  # a look at which nodes have a znode
        self._unlisted: list[Callable[[], None]] = []  # followers that wait for that look
        self._instances: dict[str, str] = {}  # the data instances of this node's followers
        self._trouble = ""  # why it does not follow now, as far as is known
        self._elections = self._hand_overs = 0
        self._withdrawn: Deferred[None] | None = None  # set when it stops leading

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self, connect_seconds: float) -> None:
        """Connect to ZooKeeper and join the set. Raises CoordinationError, ConfigError, StoreError."""
        for log in self._broker.store.logs():
            log.limit_visibility()
        self._broker.store.retention_enabled = False  # a follower drops what its leader has dropped
        for memory in self._broker.memories:
            memory.follow()
            memory.read_ahead()
        if self._file.copied:
            _log.warning(
                "the data directory is a copy, or was restored: whatever %s was in sync with, it has to catch up",
                self.name,
            )
        if self._file.copied or not self._file.history.epochs:
            await self._in_thread(partial(self._file.remember, self._ends()))
        else:
            self._look_for_losses()
        start = partial(self._session.start, connect_seconds, wait_for_servers=True, create_chroot=True)
        await self._in_thread(start)
        forgetful = bool(self._file.history.epochs) and self._file.boot != self._boot
        if forgetful:
            _log.warning("the machine has restarted: the node stands back until it is known to have everything")
        self._set = BrokerSet(self._session, self._broker.config.broker_id, self._node(forgetful), self._seen)
        await self._in_thread(self._set.start)
        self._timer = repeat(tuning.REMEMBER_SECONDS, self._remember_new, self._reactor, "the look for new partitions")

    def _look_for_losses(self) -> None:
        """Find out what the directories have lost; if anything, take a new instance. Raises StoreError."""
        broker, file = self._broker, self._file
        same_boot = file.boot == self._boot
        lost = losses(broker.store, broker.transactions.directory, file.ends, same_boot=same_boot)
        if lost:
            file.renew()
            self._incomplete = True
            _log.error(
                "%d directories have not what they had when the node stopped (%s): whatever %s was in sync with, it "
                "has to catch up. If a disk is not mounted, or a directory was moved: put it back, and start the node "
                "again",
                len(lost),
                ", ".join(lost[: tuning.NAMED_LOSSES]),
                self.name,
            )

    def _node(self, forgetful: bool) -> SetNode:
        epoch = self._file.epoch if self._file.history.epochs else 0
        return SetNode(self.name, self._broker.url, self.zone, self._file.instance, forgetful, epoch)

    def _ends(self) -> dict[str, int]:
        return contents(self._broker.store, self._broker.transactions.directory)

    def _caught_up(self) -> None:
        """Note that the leader says that this node has everything."""
        self._incomplete = False
        ensureDeferred(self._remember(self._boot)).addErrback(
            lambda failure: _log.error("the node still stands back: %s", failure.getErrorMessage())
        )

    async def _remember(self, boot: str) -> None:
        """Write the node's present ends to its file. boot: the start of the machine in which it had everything."""
        forgetful = self._file.boot != boot
        await self._broker.in_thread(partial(self._file.remember, self._ends(), boot))
        if forgetful:
            assert self._set is not None
            self._set.declare(self._node(forgetful=False))

    def _remember_new(self) -> None:
        """Record partitions in the file that got their first messages after it was written."""
        known = self._file.ends
        if self._has_all and any(end and not known.get(name) for name, end in self._ends().items()):
            ensureDeferred(self._remember(self._file.boot)).addErrback(
                lambda failure: _log.error("new partitions are not remembered: %s", failure.getErrorMessage())
            )

    @property
    def _has_all(self) -> bool:
        """Whether this node holds all data that the set attributes to it."""
        return not self._incomplete and (
            self.leader is not None or (self._follower is not None and self._follower.live)
        )

    async def stop(self) -> None:
        """Hand the leadership over, or leave the in-sync set, and leave the set. Takes some seconds at most."""
        self._stopping = True
        complete = self._has_all
        try:
            if self.leader is not None:
                await self._hand_over(None, leaving=True)
            elif self._follower is not None:
                self._follower.leave("it stops")
                await self._until(lambda: not self._is_in_sync(), tuning.LEAVE_SECONDS)
        except MetaqError as error:
            _log.warning("the node %s leaves its set without a hand-over: %s", self.name, error)
        self._stop_following()
        self._step_down("it stops")
        if self._timer is not None:
            self._timer.stop()
        if complete and self.failure is None:
            try:
                await self._remember(self._file.boot)
            except StoreError as error:
                _log.error("where the partitions end is not remembered: %s", error)
        if self._set is not None:
            await self._in_thread(self._set.close)
        if self._withdrawn is not None:  # until then ZooKeeper lists the successor's topics as its own
            await self._withdrawn.addTimeout(tuning.WITHDRAW_SECONDS, self._reactor).addErrback(self._not_registered)

    async def close(self) -> None:
        """End the ZooKeeper session."""
        await self._in_thread(self._session.close)

    def _in_thread(self, function: Callable[[], T]) -> Deferred[T]:
        return in_own_thread(self._reactor, "broker set", function)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        deadline = self._reactor.seconds() + seconds
        while not condition():
            if self._reactor.seconds() >= deadline:
                return False
            await deferLater(self._reactor, tuning.LOOK_SECONDS)
        return True

    # --- what operators are told --------------------------------------------------------------------------------------

    def look(self) -> MemberState:
        """Return the node's present state."""
        view, follower = self._view, self._follower
        return MemberState(
            None if view is None else view.state,
            frozenset(() if view is None else view.nodes),
            self._file.epoch,
            self._file.history.last,
            self._leader_url(),
            str(self.failure or self._trouble),
            self._busy,
            self._stopping,
            self._established,
            self._following is not None,
            follower is not None and follower.live,
            self._elections,
            self._hand_overs,
            view is not None
            and view.state is not None
            and (view.state.is_revoked or self._is_set_back(view, view.state)),
        )

    def reconfigured(self) -> None:
        """Note that the topics' settings may have changed."""
        if self.leader is not None:
            self.leader.reconfigured()
        if self._follower is not None:
            self._follower.reconfigured()

    def try_again(self) -> None:
        """Connect to the leader anew, even after this node's data were found to differ from the leader's."""
        if isinstance(self.failure, ReplicaDiverged):
            self.failure = None
        self._stop_following()
        self._decide()

    # --- what clients are told ----------------------------------------------------------------------------------------

    def refusal(self) -> NotLeader | None:
        """Why clients are not served now; None if they are."""
        if self.leader is not None and self._established:
            return None
        return NotLeader(self._broker.config.broker_id, self._leader_url())

    def check(self, verb: Verb, request: Any, topic: str | None, peer: object) -> None:
        """The gate's check while `refusal` is not None. Raises NotLeader for requests that this node does not serve."""
        if verb.nodes is Nodes.ALL:
            return
        asked = verb.nodes is Nodes.READERS and type(request) is Frame and request.ext.get(FOLLOWER) == "1"
        if not (asked and self.shows_messages):
            raise self.refusal() or NotLeader(self._broker.config.broker_id)

    def check_pull(self, pull: Parkable) -> None:
        """As `check`, for an admitted pull, each time that it resumes."""
        place = pull.follower_place
        if place is not None and self.shows_messages:
            topic, partition, offset = place
            log = self._broker.partitions.find(topic, partition)
            if offset <= (0 if log is None else log.end_offset):
                return
        raise self.refusal() or NotLeader(self._broker.config.broker_id)

    @property
    def shows_messages(self) -> bool:
        """Whether to serve readers that ask for a follower: this node has all committed data except those on their
        way."""
        follower = self._follower
        if follower is None or follower.connection is None or follower.connection.lost is not None:
            return False
        return follower.shows_all

    def _leader_url(self) -> str:
        state = None if self._view is None else self._view.state
        if state is None or state.leader in ("", self.name):
            return ""
        return self._urls.get(state.leader, "")

    # --- ZooKeeper ----------------------------------------------------------------------------------------------------

    def _seen(self, view: SetView) -> None:
        """Take a view of ZooKeeper. Event thread."""
        self._reactor.callFromThread(self._see, view)

    def _see(self, view: SetView) -> None:
        if self._view is not None and view.order < self._view.order:
            return
        self._view = view
        self._urls |= {node.name: node.url for node in view.nodes.values()}
        self._decide()

    def _is_in_sync(self) -> bool:
        state = None if self._view is None else self._view.state
        return state is not None and state.has_in_sync(self.name, self._file.instance)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Begin the step that is due."""
        view = self._view
        if self._busy or view is None:
            return
        state = view.state
        if isinstance(self.failure, ReplicaDiverged) and state is not None and self._is_alone(state):
            self.failure = None  # an operator has chosen this node's data
        if self.failure is not None:
            return
        if self.leader is not None:
            if state is None or (state.epoch, state.leader) != (self.leader.core.epoch, self.name):
                known = state is not None and not state.is_revoked
                self._step_down(f"epoch {state.epoch} has begun" if state and known else "ZooKeeper was set back")
            elif view.master is None or not self._owns(view):
                self._step_down("its ZooKeeper session has ended")
            else:
                return
        if self._stopping:
            return
        if state is None:
            if self._may_create(view):
                self._run(self._create())
        elif self._may_stand(view, state):
            self._standing = True
            self._run(self._stand(view, state))
        else:
            if view.master is None or state.is_revoked:
                self._say_what_is_waited_for(view, state)
            self._follow(state)

    def _say_what_is_waited_for(self, view: SetView, state: SetState) -> None:
        """Log what the node waits for where only an operator knows which data are right."""
        name, broker_id = self.name, self._broker.config.broker_id
        remedy = f"if they are the ones that are to be kept: `metaq brokers elect {broker_id} --unclean --node {name}`"
        if not accepts(self._file.epoch, state.epoch):
            trouble = (
                f"ZooKeeper has a state of broker set {broker_id} of epoch {state.epoch}, and the data of {name} have "
                f"seen epoch {self._file.epoch}: ZooKeeper was set back; {remedy}"
            )
        elif state.is_revoked:
            trouble = (
                f"ZooKeeper was set back to an older state of broker set {broker_id}, so nobody leads: start all "
                "nodes, and choose the one that led last, which has the most: "
                f"`metaq brokers elect {broker_id} --unclean --node NODE`"
            )
        elif self._is_set_back(view, state):
            trouble = (
                f"ZooKeeper has an older state of broker set {broker_id}, of epoch {state.epoch}: it was set back, and "
                f"who is in sync by it may lack messages; choose a node, and {remedy}"
            )
        elif name in state.in_sync and not self._is_in_sync():
            trouble = (
                f"the data of {name} that were in sync in epoch {state.epoch} are others than these, which are new, "
                f"copied, restored or incomplete: start the node with those; {self._other_remedy(view) or remedy}"
            )
        else:
            return
        if trouble != self._trouble:
            self._trouble = trouble
            _log.error("%s", trouble)

    def _other_remedy(self, view: SetView) -> str:
        """Return another remedy for a node without data, which should not lead; "" for a node with data."""
        if self._file.history.epochs:
            return ""
        others = [each for each in view.nodes.values() if each.epoch and each.name != self.name]
        if not others:
            return "or start a node that has data: this one has none"
        newest = max(others, key=lambda each: each.epoch).name
        command = f"metaq brokers elect {self._broker.config.broker_id} --unclean --node {newest}"
        return f"or, if they are lost, have {newest} lead with what it has: `{command}`"

    def _is_set_back(self, view: SetView, state: SetState) -> bool:
        """Whether ZooKeeper has an older state than a present node has seen: its in-sync nodes may have been dropped
        since. A state without a leader was written by an operator's choice or by a leader that resigned."""
        return view.set_back or (bool(state.leader) and any(each.epoch > state.epoch for each in view.nodes.values()))

    def _is_alone(self, state: SetState) -> bool:
        return list(state.in_sync) == [self.name] and self._is_in_sync()

    def _owns(self, view: SetView) -> bool:
        return view.master is not None and self._set is not None and view.master.owner == self._set.session_id

    def _run(self, work: Any) -> None:
        self._busy = True

        def done(result: object) -> None:
            self._busy = self._standing = False
            early, self._early = self._early, []
            for answer in early:
                answer()
            if isinstance(result, Failure):
                error = result.value
                if not isinstance(error, MetaqError):
                    _log.error("the node %s: %s", self.name, result.getTraceback())
                else:
                    _log.warning("the node %s: %s", self.name, error)
                self._reactor.callLater(tuning.CHANGE_PAUSE_SECONDS, self._decide)
            else:
                self._decide()

        ensureDeferred(work).addBoth(done)

    def _may_stand(self, view: SetView, state: SetState) -> bool:
        assert self._set is not None
        now = self._reactor.seconds()
        gone = self._gone == (state.epoch, state.leader) or state.leader in ("", self.name)
        if not (self._set.present and self._is_in_sync() and (view.master is None or gone)):
            return False
        if not accepts(self._file.epoch, state.epoch) or self._is_set_back(view, state):
            return False
        if in_time(now, self._granted_until):
            self._reactor.callLater(self._granted_until - now + 0.001, self._decide)
        # a node alone in sync has granted nothing, unless a forgotten election of its own has made the epoch
        alone = self._is_alone(state) and self._file.epoch == state.epoch
        run_out = alone or not in_time(now, self._granted_until)
        return may_stand(
            self.name,
            state.in_sync,
            forgetful={name for name in view.in_sync_present if view.nodes[name].forgetful},
            master_present=view.master is not None,
            leader_gone=gone,
            promises_run_out=run_out,
        )

    # --- candidate ----------------------------------------------------------------------------------------------------

    def _may_create(self, view: SetView) -> bool:
        """Whether this node may create the set's state. A node that has been in the set waits for an operator: the lost
        state said who has all acknowledged data. A new node waits for such nodes. The first new node by name begins."""
        if not self._file.history.epochs:
            return not any(node.epoch for node in view.nodes.values()) and min([self.name, *view.nodes]) == self.name
        trouble = (
            f"ZooKeeper has no state of broker set {self._broker.config.broker_id}, which has had epoch "
            f"{self._file.epoch}: choose a node with `metaq brokers elect --unclean`"
        )
        if trouble != self._trouble:  # it may be the trouble of following a leader that has just stepped down
            self._trouble = trouble
            _log.error("%s", trouble)
        return False

    async def _create(self) -> None:
        assert self._set is not None
        await self._in_thread(partial(self._set.create, SetState(0, "", {self.name: self._file.instance})))
        await self._look()

    async def _look(self) -> SetView:
        """Read ZooKeeper until it answers."""
        assert self._set is not None
        pauses = Backoff(0.05, tuning.CHANGE_PAUSE_SECONDS)
        while True:
            try:
                view = await self._in_thread(self._set.read)
            except CoordinationError as error:
                if not isinstance(error, CoordinationUnavailable | SessionLost):
                    _log.error("the broker set cannot be read, trying again: %s", error)
                await deferLater(self._reactor, pauses.next())
                continue
            self._see(view)
            return view

    async def _write(self, version: int, write: Callable[[], int | None], after: SetView | None = None) -> SetView:
        """Replace the state that has this version, and return the set's view once the outcome is known. While it is
        unknown, the request may still arrive, so the same is written again (rules.counted).

        after: the view to return if ZooKeeper confirms the write; it spares a read."""
        pauses = Backoff(0.01, tuning.CHANGE_PAUSE_SECONDS)
        while True:
            try:
                done = await self._in_thread(write)
                if done is not None and after is not None:
                    self._see(after)
                    return after
                return await self._look()
            except CoordinationError as error:
                _log.warning("nobody knows whether the broker set was changed, trying again: %s", error)
            found = await self._look()
            if found.version != version:
                return found
            await deferLater(self._reactor, pauses.next())

    async def _stand(self, view: SetView, state: SetState) -> None:
        assert self._set is not None
        self._stop_following()
        await self._nothing_followed()
        await self._transactions.prepare()  # a node whose disk has failed does not stand
        if len(state.in_sync) > 1 and (failure := self._broker.store.first_failure()) is not None:
            self._distrust(failure)
            return
        _log.info("stands for election after epoch %d", state.epoch)
        gone = {state.leader} if self._gone == (state.epoch, state.leader) and self._gone_for_good else set()
        epoch, names = elected(state.epoch, state.in_sync, self.name, {*view.in_sync_present} - gone)
        in_sync = {name: view.nodes[name].instance for name in names if name != self.name}
        new = replace(state, epoch=epoch, leader=self.name, in_sync={**in_sync, self.name: self._file.instance})
        master = SetMaster(self._broker.url, self._set.session_id, 1)
        # one above the view's, because the state is newer; ZooKeeper's later views of it have at least this zxid
        won = replace(view, state=new, version=view.version + 1, master=master, zxid=view.zxid + 1)
        found = await self._write(view.version, partial(self._set.take_over, new, view.version, view.master), won)
        if found.state != new or not self._owns(found):
            return
        await self._lead(new)

    # --- leader -------------------------------------------------------------------------------------------------------

    async def _lead(self, state: SetState) -> None:
        broker, store = self._broker, self._broker.store
        ends = {name: end for name, (_, end, _) in store.ends().items()}
        history = self._file.history.begin(state.epoch, ends)
        known = None if self._before_serving is None else ensureDeferred(self._before_serving())
        try:
            await broker.in_thread(partial(self._file.write, state.epoch, history, self._ends(), self._boot))
        except StoreError as error:  # else it would stand forever, and keep out nodes that can lead
            self._distrust(error)
            self._resign_soon(state.epoch, frozenset(state.in_sync) - {self.name})
            return
        assert self._set is not None
        self._set.declare(self._node(forgetful=False))
        if known is not None:
            await known
            if self._stopping:
                return
        broker.message_ids.begin_above(store.max_message_id)
        store.retention_enabled = True
        leader = Leader(
            broker,
            Leading(self.name, state.epoch, state.in_sync),
            self._change_in_sync,
            on_established=self._now_established,
            on_failure=self._disk_failed,
        )
        self.leader = leader
        self._established = False
        broker.writing.copies = leader
        try:
            with ExitStack() as visible:  # data count even if it is unknown whether they are committed
                for log in list(store.logs()):
                    visible.enter_context(log.all_visible())
                self._transactions.open(leader)
                for memory in broker.memories:
                    memory.lead()
        except MetaqError as error:
            self._disk_failed(error)
            return
        leader.start()
        self._elections += 1
        self._trouble = ""
        self._incomplete = False
        _log.warning("leads epoch %d; in sync: %s", state.epoch, ", ".join(state.in_sync))
        self._registration.come_back(broker.port, broker.partitions.served_topics()).addErrback(self._not_registered)

    def _now_established(self) -> None:
        self._established = True
        self._on_role()

    def _not_registered(self, failure: Failure) -> None:
        _log.error("the leader's topics are not registered in ZooKeeper: %s", failure.getErrorMessage())

    def _step_down(self, why: str) -> None:
        leader, self.leader = self.leader, None
        if leader is None:
            return
        _log.warning("leads no longer: %s", why)
        self._established = False
        self._on_role()
        self._broker.store.retention_enabled = False
        for memory in self._broker.memories:
            memory.follow()
        self._transactions.close(why)
        leader.stop(NotLeader(self._broker.config.broker_id, self._leader_url()))
        self._broker.parked.wake_all()
        self._withdrawn = self._registration.withdraw().addErrback(self._not_registered)

    def _disk_failed(self, failure: MetaqError) -> None:
        """Give up the lead: nothing on this node can be trusted until it is started again."""
        leader = self.leader
        if self.failure is None and leader is not None:
            self._distrust(failure)
            others = leader.core.in_sync - {self.name}
            self._step_down(str(failure))
            self._resign_soon(leader.core.epoch, others)

    def _distrust(self, failure: MetaqError) -> None:
        self.failure = failure
        if isinstance(failure, DiskFull):
            _log.error("this node leaves its set until there is room: %s", failure)
            self._reactor.callLater(tuning.ROOM_SECONDS, self._look_for_room)
        else:
            _log.error("the disk has failed, so this node leaves its set until it is started again: %s", failure)

    def _look_for_room(self) -> None:
        """Take part again once there is room: a full disk, unlike a failed one, has lost nothing."""
        if not isinstance(self.failure, DiskFull) or self._stopping:
            return
        if self._broker.store.space.lacking(tuning.ROOM_BYTES) is not None:
            self._reactor.callLater(tuning.ROOM_SECONDS, self._look_for_room)
            return
        _log.warning("there is room again: this node takes part")
        self.failure = None
        self._stop_following()
        self._decide()

    def _resign_soon(self, epoch: int, others: frozenset[str]) -> None:
        if others:
            ensureDeferred(self._resign(epoch, others)).addErrback(
                lambda found: _log.error("cannot resign: %s", found.getErrorMessage())
            )

    async def _resign(self, epoch: int, others: frozenset[str]) -> None:
        view = self._view
        assert self._set is not None
        while (
            view is not None and view.state is not None and (view.state.epoch, view.state.leader) == (epoch, self.name)
        ):
            in_sync = {name: view.state.in_sync[name] for name in others if name in view.state.in_sync}
            state = replace(view.state, leader="", in_sync=in_sync)
            view = await self._write(view.version, partial(self._set.release, state, view.version))

    def _change_in_sync(self, wanted: frozenset[str]) -> Deferred[bool]:
        return ensureDeferred(self._write_in_sync(wanted))

    async def _write_in_sync(self, wanted: frozenset[str]) -> bool:
        view, leader = self._view, self.leader
        assert self._set is not None
        if view is None or view.state is None or leader is None:
            return False
        epoch = leader.core.epoch
        if (view.state.epoch, view.state.leader) != (epoch, self.name):
            return False
        known = {**self._instances, **view.state.in_sync}
        state = replace(view.state, in_sync={name: known[name] for name in wanted})
        version = view.version
        found = (await self._write(version, partial(self._set.change, state, version))).state
        return found is not None and (found.epoch, frozenset(found.in_sync)) == (epoch, wanted)

    # --- hand-over ----------------------------------------------------------------------------------------------------

    async def hand_over(self, target: str | None) -> str:
        """Have another node lead, and return its name. Raises NotLeader, CoordinationError."""
        return await self._hand_over(target, leaving=False)

    async def _hand_over(self, target: str | None, *, leaving: bool) -> str:
        leader = self.leader
        if leader is None:
            raise NotLeader(self._broker.config.broker_id, self._leader_url())
        choice = [each.name for each in leader.status() if each.in_sync and each.live]
        if not leaving and (target or "") not in choice and (target or not choice):  # a node may be about to be in sync
            await self._until(lambda: self.leader is not leader or not _joins(leader, target), tuning.JOINING_SECONDS)
            if self.leader is not leader:
                raise NotLeader(self._broker.config.broker_id, self._leader_url())
            choice = [each.name for each in leader.status() if each.in_sync and each.live]
        if target is not None and target not in choice:
            raise CoordinationError(
                f"{target} cannot take over: in sync and connected are {', '.join(choice) or 'none'}"
            )
        if not choice:
            others = ", ".join(each.name for each in leader.status() if each.connected)
            joining = f": {others} lacks data still, see `metaq brokers sets`" if others else ""
            raise CoordinationError(f"no other node is in sync{joining}")
        transactions = self._broker.transactions
        if (leader.draining or transactions.ending is not None) and not leaving:
            raise CoordinationError("a hand-over is under way")
        if not leaving:  # nothing is acknowledged until this node follows, which waits for its disk's sync
            await self._transactions.write_back()
            if self.leader is not leader or leader.draining or transactions.ending is not None:
                raise CoordinationError("another hand-over was faster")
        chosen = target or choice[0]
        transactions.ending = NotLeader(self._broker.config.broker_id)
        try:
            await self._until(lambda: not transactions.has_active, tuning.TRANSACTIONS_SECONDS)
            await self._drain_and_hand_over(leader, chosen, leaving=leaving)
        finally:
            transactions.ending = None
        self._hand_overs += 1
        return chosen

    async def _drain_and_hand_over(self, leader: Leader, chosen: str, *, leaving: bool) -> None:
        """Raises CoordinationError if the hand-over fails."""
        try:
            drained = await leader.drain_to(chosen).addTimeout(tuning.DRAIN_SECONDS, self._reactor)
            if drained:  # transactions committed meanwhile append their messages
                await self._until(lambda: not self._broker.transactions.is_waited_for, tuning.DRAIN_SECONDS)
                drained = await leader.drain_to(chosen).addTimeout(tuning.DRAIN_SECONDS, self._reactor)
        except defer.TimeoutError:
            drained = False
        if drained and self.leader is leader:
            leader.hand_over_to(chosen, leaving=leaving)
            await self._until(lambda: self.leader is not leader, tuning.HAND_OVER_SECONDS)
        if self.leader is leader:
            leader.draining = False
            raise CoordinationError(f"{chosen} has not taken over within its time")

    def _asked_to_lead(self, words: Mapping[str, Any]) -> None:
        """Stand for election: the leader has stopped acknowledging, and this node has all its data."""
        if self._following is None:
            return
        self._granted_until = 0.0
        self._gone = self._following
        self._gone_for_good = bool(words.get("leaving"))
        self._decide()

    # --- follower -----------------------------------------------------------------------------------------------------

    def _grants(self, stream_epoch: int) -> bool:
        """Whether to grant the leader's ping: not if ZooKeeper says that it has lost its place."""
        view = self._view
        if not may_grant(self._file.epoch, stream_epoch, standing=self._standing):
            return False
        if self._gone is not None and self._gone == self._following:
            return False
        if self._session.connected and (view is None or view.master is None):
            return False
        self._granted_until = promised_until(self._reactor.seconds())
        return True

    def _follow(self, state: SetState) -> None:
        wanted = state.epoch, state.leader
        if self._following == wanted or state.leader in ("", self.name):
            return
        self._stop_following()
        self._following = wanted
        self._trouble = ""
        ensureDeferred(self._begin_following(wanted, state.chosen)).addErrback(
            lambda failure: _log.error("following has ended: %s", failure.getTraceback())
        )

    async def _begin_following(self, wanted: tuple[int, str], chosen: int) -> None:
        await self._nothing_followed()
        if self._following != wanted or self._ended is not None:
            return
        self._ended = []
        try:
            await self._keep_following(wanted, chosen)
        finally:
            ended, self._ended = self._ended, None
            for deferred in ended:
                deferred.callback(None)

    async def _nothing_followed(self) -> None:
        """Wait until following has ended: it may be cutting logs or writing the node's file."""
        while self._ended is not None:
            deferred: Deferred[None] = Deferred()
            self._ended.append(deferred)
            await deferred

    async def _keep_following(self, wanted: tuple[int, str], chosen: int) -> None:
        pauses = Backoff(*tuning.RECONNECT_SECONDS)
        told = ""
        while self._following == wanted and not self._stopping:
            url = self._urls.get(wanted[1])
            address = parse_broker_url(wanted[1], url.encode()) if url else None
            if address is not None:
                follower = self._follower = Follower(
                    self._broker,
                    self.name,
                    self._file,
                    self._transactions.mirror,
                    grants=self._grants,
                    on_hand_over=self._asked_to_lead,
                    on_caught_up=self._caught_up,
                )
                try:
                    await follower.run(*address, wanted[0], chosen)
                except LeaderGone:
                    if self._following == wanted:
                        self._gone, self._gone_for_good = wanted, True
                        self._decide()
                except ReplicaDiverged as error:
                    self.failure = error
                    _log.error("%s", error)
                    return
                except MetaqError as error:
                    if str(error) != told and self._following == wanted:
                        self._trouble = told = str(error)
                        _log.warning("does not follow %s now: %s", wanted[1], error)
                except Exception:  # a bug must not stop following for good
                    _log.exception("following %s has failed", wanted[1])
                if isinstance(follower.failure, DiskFull):
                    self._distrust(follower.failure)
                    return
                if follower.failure is not None:
                    self.failure = follower.failure
                    _log.error("the disk has failed: this node follows nobody until it is started again: %s", told)
                    return
                self._broker.parked.wake_all()  # readers that wait here have to ask another node
                if follower.live:
                    pauses.reset()
                    continue
            if self._following == wanted:
                await deferLater(self._reactor, pauses.next())

    def _stop_following(self) -> None:
        self._following = None
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.stop()

    # --- followers of ours --------------------------------------------------------------------------------------------

    def accept(self, frame: Frame, become: Callable[[StreamProtocol], None]) -> None:
        """Handle FOLLOW: the connection becomes a stream. become: hands the connection to that protocol. Raises
        RemoteProtocolError."""
        hello = parse_hello(frame.body)
        connection = StreamProtocol(
            hello.node,
            lambda messages: self._from_follower(hello.node, connection, messages),
            MAX_FOLLOWER_MESSAGE_BYTES,
        )
        become(connection)
        answer = partial(self._answer, connection, hello)
        if self._standing:  # the follower has seen the outcome in ZooKeeper before this node
            self._early.append(answer)
        else:
            answer()

    def _answer(self, connection: StreamProtocol, hello: Hello) -> None:
        """Answer FOLLOW."""
        if self._is_listed(hello):
            self._take_in(connection, hello)
            return
        if self._listing is None:  # one look for all that ask
            look = self._listing = ensureDeferred(self._look())
            look.addTimeout(tuning.LISTED_SECONDS, cast(Any, self._reactor))  # ZooKeeper may be away
            look.addBoth(self._have_listed)
        self._unlisted.append(partial(self._take_in, connection, hello))

    def _have_listed(self, found: object) -> None:
        if isinstance(found, Failure) and not isinstance(found.value, defer.TimeoutError):
            _log.error("the set's nodes cannot be read: %s", found.getTraceback())
        self._listing, unlisted, self._unlisted = None, self._unlisted, []
        for take_in in unlisted:
            take_in()

    def _is_listed(self, hello: Hello) -> bool:
        """Whether the node has a znode with this name and instance. Without this check anybody on the port could become
        a replica, whose word counts for acknowledgements. The answer stays while ZooKeeper is away."""
        node = None if self._view is None else self._view.nodes.get(hello.node)
        return node is not None and node.instance == hello.instance

    def _take_in(self, connection: StreamProtocol, hello: Hello) -> None:
        if connection.lost is not None:
            return
        why, welcome = self._welcome(hello)
        if welcome is None:
            connection.send([encode_json(Kind.REFUSED, {"why": why})])
            cast(Any, connection.transport).loseConnection()
            return
        connection.send([encode_json(Kind.WELCOME, welcome)])
        assert self.leader is not None
        self._instances[hello.node] = hello.instance
        self.leader.serve(hello.node, connection)

    def _welcome(self, hello: Hello) -> tuple[str, dict[str, Any] | None]:
        leader = self.leader
        if leader is None:
            return f"{self.name} does not lead the set now", None
        if hello.set != self._broker.config.broker_id:
            return f"this is broker set {self._broker.config.broker_id}, not {hello.set}", None
        name = hello.node
        if not self._is_listed(hello):
            return f"no znode of the set's nodes has the name {name!r} with the data of the node that asks", None
        if hello.epoch > leader.core.epoch:
            self._reactor.callLater(0, ensureDeferred, self._look())
            return f"epoch {leader.core.epoch} of {self.name} is over", None
        state = None if self._view is None else self._view.state
        if state is None or (name in state.in_sync and not state.has_in_sync(name, hello.instance)):
            return f"the set has not let go of the data that {name} had before", None
        history = self._file.history
        common = common_epoch(history.epochs, hello.epochs)
        ends = {name: end for name, (_, end, _) in self._broker.store.ends().items()}
        return "", {
            "epoch": leader.core.epoch,
            "common": common,
            "history": (history if common is None else history.behind(common)).to_json(),
            "ends": {} if common is None else history.ends_of(common, ends),
            "bytes": sum(ends.values()),
        }

    def _from_follower(self, name: str, connection: StreamProtocol, messages: Sequence[Any]) -> None:
        if self.leader is not None:
            self.leader.received(name, connection, messages)


def _joins(leader: Leader, target: str | None) -> bool:
    """Whether any follower, or `target` if given, is connected, while none of those asked for is in sync and live."""
    asked = [each for each in leader.status() if target in (None, each.name)]
    return any(each.connected for each in asked) and not any(each.in_sync and each.live for each in asked)
