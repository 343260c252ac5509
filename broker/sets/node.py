"""Run one node of a broker set: execute the actions that the table in life.py lists for each event. The code runs on
the reactor thread, but worker threads call ZooKeeper and use files.

Whenever the state of this node or of the set has changed, `_decide` asks an Outlook object (outlook.py) which event
happens next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
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

from ..partitions.registration import Registration
from ..reading.parkable import Parkable
from ..requests.gate import Nodes, Verb
from ..runtime.scheduled_calls import repeat
from ..runtime.threads import in_own_thread
from . import tuning
from .admission import Admission
from .connections import StreamProtocol
from .follower import Follower
from .following import FollowedLeader, Office
from .history import NodeFile, machine_start
from .host import SetHost
from .leader import Leader
from .leading import Leading
from .life import CANDIDATES, RESTING, NodeAction, NodeEvent, NodeState, next_state
from .losses import contents, losses
from .member_state import MemberState
from .node_transactions import SetTransactions
from .outlook import Outlook
from .rules import elected, in_time, may_grant, promised_until

__all__ = ["SetMember"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

_UNSEEN = SetView(None, -1)
"""The view of the set that is used until ZooKeeper has been read for the first time."""


class SetMember:
    """Represents this broker process as a node of the broker set `broker.config.broker_id`."""

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
        """Create the object and read the node's file (history.py). Raises StoreError. session: the ZooKeeper session;
        this object's `start` starts the session, and `close` closes it. registration: must use the same session.
        on_role: called when the result of `refusal` may have changed. before_serving: called after this node has won an
        election; the node waits for its end before it serves clients.
        """
        self.name = name
        self.zone = zone
        self.leader: Leader | None = None
        """The Leader object while this node leads, else None."""
        self.failure: MetaqError | None = None
        """Why this node takes no part in its set, or None if it takes part. The value changes to None only when an
        operator has acted or a full disk has free space again.
        """
        self._state = NodeState.IDLE
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
        """Whether the directories have lost data, and this node has not caught up again since. Until it has caught up,
        `history.json` keeps the ends from before the loss. So the next start of the broker compares with these ends
        again: it finds the same loss, or no loss if the data were on an unmounted disk that is mounted again.
        """
        self._transactions = SetTransactions(broker, self.refusal, self._disk_failed)
        self._set: BrokerSet | None = None
        self._view: SetView | None = None
        self._urls: dict[str, str] = {}  # last known, by node
        self._following = FollowedLeader(
            broker.reactor,
            self._follower,
            self._address,
            on_gone=partial(self._leader_gone, for_good=True),
            on_failure=self._distrust,
            on_end=broker.parked.wake_all,  # readers that wait on this node have to ask another node
        )
        self._admission = Admission(
            broker, name, self._file, view=lambda: self._view, leader=lambda: self.leader, look=self._look
        )
        self._gone: Office | None = None  # the leader whose process has ended, or that hands over to this node
        self._gone_for_good = True  # False: that leader has handed over, and follows
        self._granted_until = promised_until(self._reactor.seconds())  # it may have given a grant before its start
        self._won: SetState | None = None  # the state that the last election won by this node has written
        self._stopping = False
        self._trouble = ""  # what an operator has to decide
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
                "the data directory is a copy, or was restored: %s has to catch up before it counts as in sync",
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
            _log.warning("the machine has restarted: no candidate for election until it surely has all data")
        self._set = BrokerSet(self._session, self._broker.config.broker_id, self._node(forgetful), self._seen)
        await self._in_thread(self._set.start)
        self._timer = repeat(tuning.REMEMBER_SECONDS, self._remember_new, self._reactor, "the look for new partitions")

    def _look_for_losses(self) -> None:
        """Find out which data the data directories have lost since this node's file was last written. If data were
        lost, choose a new instance id for this node's data. Raises StoreError.
        """
        broker, file = self._broker, self._file
        same_boot = file.boot == self._boot
        lost = losses(broker.store, broker.transactions.directory, file.ends, same_boot=same_boot)
        if lost:
            file.renew()
            self._incomplete = True
            _log.error(
                "%d directories lack data that they had when the node stopped (%s): %s has to catch up before it "
                "counts as in sync. If a disk is not mounted, or a directory was moved: put it back, and start the node"
                " again",
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
        """Record in the node's file that this node has all committed data. Called when the leader has told this node
        so.
        """
        self._incomplete = False
        ensureDeferred(self._remember(self._boot)).addErrback(
            lambda failure: _log.error("the node is still no candidate for election: %s", failure.getErrorMessage())
        )

    async def _remember(self, boot: str) -> None:
        """Write the present ends of the node's partitions to its file. boot: identifies the start (boot) of the machine
        during which the node was last known to have all data.
        """
        forgetful = self._file.boot != boot
        await self._broker.in_thread(partial(self._file.remember, self._ends(), boot))
        if forgetful:
            assert self._set is not None
            self._set.declare(self._node(forgetful=False))

    def _remember_new(self) -> None:
        """Write the node's file again if a partition that had no messages when the file was last written has messages
        now, so that a loss of this partition can be noticed, too.
        """
        known = self._file.ends
        if self._has_all and any(end and not known.get(name) for name, end in self._ends().items()):
            ensureDeferred(self._remember(self._file.boot)).addErrback(
                lambda failure: _log.error("new partitions are not remembered: %s", failure.getErrorMessage())
            )

    @property
    def _has_all(self) -> bool:
        """Whether this node has all the data that the other nodes assume it to have. It is True if the node leads, or
        follows and has caught up. After a loss of data it is False until the node has caught up.
        """
        return not self._incomplete and (self.leader is not None or self._following.live)

    async def stop(self) -> None:
        """Leave the broker set. If this node is the leader, it first hands the leadership over to another node. If it
        follows, it first asks the leader to remove it from the in-sync set. The call takes some seconds at most.
        """
        self._stopping = True
        complete = self._has_all
        try:
            if self.leader is not None:
                await self._hand_over(None, leaving=True)
            elif self._following.follower is not None:
                self._following.leave("it stops")
                await self._until(lambda: not self._outlook().is_in_sync, tuning.LEAVE_SECONDS)
        except MetaqError as error:
            _log.warning("the node %s leaves its set without a hand-over: %s", self.name, error)
        self._happened(NodeEvent.STOP)
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
        outlook = self._outlook()
        view = outlook.view
        return MemberState(
            view.state,
            frozenset(view.nodes),
            self._file.epoch,
            self._file.history.last,
            self._leader_url(),
            str(self.failure or self._trouble or self._following.trouble),
            self._state in {NodeState.CREATING, *CANDIDATES},
            self._stopping,
            self._state is NodeState.SERVING,
            self._following.office is not None,
            self._following.live,
            self._elections,
            self._hand_overs,
            view.state is not None and (view.state.is_revoked or outlook.is_set_back),
        )

    def reconfigured(self) -> None:
        """Let the Leader and the Follower, if there are any, use the topics' present settings. Called when the settings
        may have changed.
        """
        if self.leader is not None:
            self.leader.reconfigured()
        if self._following.follower is not None:
            self._following.follower.reconfigured()

    def try_again(self) -> None:
        """Connect to the leader again. Do so even if this node had stopped following because its data differ from the
        leader's data.
        """
        if isinstance(self.failure, ReplicaDiverged) and self._state is NodeState.OUT:
            self._happened(NodeEvent.TRUSTED)
            return
        self._following.stop()
        self._decide()

    # --- what clients are told ----------------------------------------------------------------------------------------

    def refusal(self) -> NotLeader | None:
        """Return the error with which clients' requests are refused while this node does not serve clients, or None if
        it serves them.
        """
        if self._state is NodeState.SERVING:
            return None
        return NotLeader(self._broker.config.broker_id, self._leader_url())

    def check(self, verb: Verb, request: Any) -> None:
        """Check whether this node serves a request now. While `refusal` is not None, only some requests are served. The
        gate (the object that every request passes before it is served) calls this method. Raises NotLeader if this node
        does not serve the request.
        """
        if verb.nodes is Nodes.ALL:
            return
        asked = verb.nodes is Nodes.READERS and type(request) is Frame and request.ext.get(FOLLOWER) == "1"
        if not (asked and self.shows_messages):
            raise self.refusal() or NotLeader(self._broker.config.broker_id)

    def check_pull(self, pull: Parkable) -> None:
        """Check whether this node still serves a pull request that was parked after it had passed `check`. Called each
        time the parked pull is continued. Raises NotLeader.
        """
        place = pull.follower_place
        if place is not None and self.shows_messages:
            topic, partition, offset = place
            log = self._broker.partitions.find(topic, partition)
            if offset <= (0 if log is None else log.end_offset):
                return
        raise self.refusal() or NotLeader(self._broker.config.broker_id)

    @property
    def shows_messages(self) -> bool:
        """Whether this node, as a follower, serves pulls whose sender has asked to read from a follower. It is True if
        such pulls return all committed data. Only the newest data, which the leader has just sent or is about to send,
        may be missing.
        """
        follower = self._following.follower
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
        """Pass a new view of the set, which was read from ZooKeeper, to the reactor thread. Called in ZooKeeper's event
        thread.
        """
        self._reactor.callFromThread(self._see, view)

    def _see(self, view: SetView) -> None:
        if self._view is not None and view.order < self._view.order:
            return
        self._view = view
        self._urls |= {node.name: node.url for node in view.nodes.values()}
        self._decide()

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _outlook(self) -> Outlook:
        return Outlook(
            self._broker.config.broker_id,
            self.name,
            self._file.instance,
            self._file.epoch,
            bool(self._file.history.epochs),
            self._view or _UNSEEN,
            self._set is not None and self._set.present,
            0 if self._set is None else self._set.session_id,
            self._gone,
            in_time(self._reactor.seconds(), self._granted_until),
            None if self.leader is None else self.leader.core.epoch,
            isinstance(self.failure, ReplicaDiverged),
            self._stopping,
        )

    def _decide(self) -> None:
        """Ask the Outlook which event of life.py happens now, and handle it."""
        if self._view is None:
            return
        outlook = self._outlook()
        if self._state in RESTING and not self._stopping:
            trouble = outlook.trouble
            if trouble and trouble != self._trouble:
                _log.error("%s", trouble)
            self._trouble = trouble
            if outlook.waits_for_promises:
                self._reactor.callLater(self._granted_until - self._reactor.seconds() + 0.001, self._decide)
        event = outlook.due(self._state)
        if event is not None:
            self._happened(event)

    def _happened(self, event: NodeEvent) -> None:
        """Change the node's state as the table in life.py says for this event, and execute the table's actions."""
        if event is NodeEvent.TRUSTED:
            self.failure = None
        self._state, actions = next_state(self._state, event)
        for action in actions:
            self._do(action)

    def _do(self, action: NodeAction) -> None:
        match action:
            case NodeAction.CREATE:
                self._work(self._create())
            case NodeAction.FOLLOW:
                self._follow()
            case NodeAction.STOP_FOLLOWING:
                self._following.stop()
            case NodeAction.STAND:
                self._admission.hold()
                self._work(self._stand())
            case NodeAction.RECORD:
                self._work(self._record())
            case NodeAction.LEAD:
                self._lead()
            case NodeAction.SERVE:
                self._on_role()
            case NodeAction.STEP_DOWN:
                self._step_down()
            case NodeAction.RESIGN:
                ensureDeferred(self._resign()).addErrback(
                    lambda found: _log.error("cannot resign: %s", found.getErrorMessage())
                )
            case NodeAction.LET_IN:
                self._admission.let_in()
            case NodeAction.DECIDE:
                self._decide()
            case NodeAction.DECIDE_LATER:
                self._reactor.callLater(tuning.CHANGE_PAUSE_SECONDS, self._decide)

    def _work(self, work: Coroutine[Any, Any, NodeEvent]) -> None:
        """Run the coroutine of an action that takes time. When it ends, handle the event that it returns; if it raises
        an exception, handle the event FAILED.
        """

        def done(result: NodeEvent | Failure) -> None:
            if isinstance(result, NodeEvent):
                self._happened(result)
                return
            error = result.value
            if isinstance(error, MetaqError):
                _log.warning("the node %s: %s", self.name, error)
            else:
                _log.error("the node %s: %s", self.name, result.getTraceback())
            self._happened(NodeEvent.FAILED)

        deferred = cast("Deferred[NodeEvent | Failure]", ensureDeferred(work))
        deferred.addBoth(done).addErrback(
            lambda failure: _log.error("the node %s: %s", self.name, failure.getTraceback())
        )

    # --- candidate ----------------------------------------------------------------------------------------------------

    async def _create(self) -> NodeEvent:
        assert self._set is not None
        await self._following.ended()
        if self.failure is not None:
            return NodeEvent.UNFIT
        await self._in_thread(partial(self._set.create, SetState(0, "", {self.name: self._file.instance})))
        await self._look()
        return NodeEvent.CREATED

    async def _look(self) -> SetView:
        """Read the set's view from ZooKeeper, and try again until ZooKeeper answers."""
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
        """Call `write`, which replaces the set's state in ZooKeeper if that state has version `version`. Return the
        view of the set once the outcome of the write is known. If ZooKeeper does not answer, it can still apply the
        request later. So the node repeats the same write until it is answered or until the node reads another version
        (see rules.counted).

        after: the view to return if ZooKeeper confirms the write. If `after` is None, the node reads the view from
        ZooKeeper after the write, and returns it.
        """
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

    async def _stand(self) -> NodeEvent:
        view = self._view
        assert self._set is not None
        assert view is not None
        assert view.state is not None
        state = view.state
        await self._following.ended()
        await self._transactions.prepare()  # a node whose disk has failed does not stand
        if len(state.in_sync) > 1 and self.failure is None and (failure := self._broker.store.first_failure()):
            self._note(failure)
        if self.failure is not None:
            return NodeEvent.UNFIT
        _log.info("stands for election after epoch %d", state.epoch)
        gone = {state.leader} if self._gone == (state.epoch, state.leader) and self._gone_for_good else set()
        epoch, names = elected(state.epoch, state.in_sync, self.name, {*view.in_sync_present} - gone)
        in_sync = {name: view.nodes[name].instance for name in names if name != self.name}
        new = replace(state, epoch=epoch, leader=self.name, in_sync={**in_sync, self.name: self._file.instance})
        master = SetMaster(self._broker.url, self._set.session_id, 1)
        # the version is one above the view's, because the state is newer; later views of this state from ZooKeeper have
        # at least this zxid
        won = replace(view, state=new, version=view.version + 1, master=master, zxid=view.zxid + 1)
        found = await self._write(view.version, partial(self._set.take_over, new, view.version, view.master), won)
        if found.state != new or not replace(self._outlook(), view=found).owns_broker_id:
            return NodeEvent.LOST
        self._won = new
        return NodeEvent.WON

    # --- leader -------------------------------------------------------------------------------------------------------

    async def _record(self) -> NodeEvent:
        """Write to this node's disk that it leads the new epoch, and wait until `before_serving` has ended."""
        state = self._won
        assert self._set is not None
        assert state is not None
        ends = {name: end for name, (_, end, _) in self._broker.store.ends().items()}
        history = self._file.history.begin(state.epoch, ends)
        known = None if self._before_serving is None else ensureDeferred(self._before_serving())
        try:
            write = partial(self._file.write, state.epoch, history, self._ends(), self._boot)
            await self._broker.in_thread(write)
        except StoreError as error:  # otherwise it would stand forever, and no other node could lead
            self._note(error)
            return NodeEvent.DISTRUSTED
        self._set.declare(self._node(forgetful=False))
        if known is not None:
            await known
        return NodeEvent.RECORDED

    def _lead(self) -> None:
        broker, store, state = self._broker, self._broker.store, self._won
        assert state is not None
        broker.message_ids.begin_above(store.max_message_id)
        store.retention_enabled = True
        leader = Leader(
            broker,
            Leading(self.name, state.epoch, state.in_sync),
            self._change_in_sync,
            on_established=partial(self._happened, NodeEvent.COMMITTED),
            on_failure=self._disk_failed,
        )
        self.leader = leader
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
        self._trouble = self._following.trouble = ""
        self._incomplete = False
        _log.warning("leads epoch %d; in sync: %s", state.epoch, ", ".join(state.in_sync))
        self._registration.come_back(broker.port, broker.partitions.served_topics()).addErrback(self._not_registered)

    def _not_registered(self, failure: Failure) -> None:
        _log.error("the leader's topics are not registered in ZooKeeper: %s", failure.getErrorMessage())

    def _step_down(self) -> None:
        why = str(self.failure or self._outlook().deposed_by or "it stops")
        leader, self.leader = self.leader, None
        assert leader is not None
        _log.warning("leads no longer: %s", why)
        self._on_role()
        self._broker.store.retention_enabled = False
        for memory in self._broker.memories:
            memory.follow()
        self._transactions.close(why)
        leader.stop(NotLeader(self._broker.config.broker_id, self._leader_url()))
        self._broker.parked.wake_all()
        self._withdrawn = self._registration.withdraw().addErrback(self._not_registered)

    def _disk_failed(self, failure: MetaqError) -> None:
        """Stop leading because the disk has failed. This node's data cannot be trusted until its next start."""
        if self.leader is not None:
            self._distrust(failure)

    def _distrust(self, failure: MetaqError) -> None:
        self._note(failure)
        self._happened(NodeEvent.DISTRUSTED)

    def _note(self, failure: MetaqError) -> None:
        """Record and log the error because of which this node takes no part in its set."""
        if self.failure is not None:
            return
        self.failure = failure
        if isinstance(failure, DiskFull):
            _log.error("this node leaves its set until there is room: %s", failure)
            self._reactor.callLater(tuning.ROOM_SECONDS, self._look_for_room)
        elif isinstance(failure, ReplicaDiverged):
            _log.error("%s", failure)
        else:
            _log.error("the disk has failed, so this node leaves its set until it is started again: %s", failure)

    def _look_for_room(self) -> None:
        """Check whether a full disk has free space again. If so, let this node take part in its set again. That is safe
        because a full disk, unlike a failed disk, has lost no data.
        """
        if not isinstance(self.failure, DiskFull) or self._stopping:
            return
        if self._state is not NodeState.OUT or self._broker.store.space.lacking(tuning.ROOM_BYTES) is not None:
            self._reactor.callLater(tuning.ROOM_SECONDS, self._look_for_room)
            return
        _log.warning("there is room again: this node takes part")
        self._happened(NodeEvent.TRUSTED)

    async def _resign(self) -> None:
        """If the set's state in ZooKeeper says that this node leads and that other nodes are in sync, write into
        ZooKeeper that no node leads. Try again until the write has succeeded or the state says something else.
        """
        view, won = self._view, self._won
        assert self._set is not None
        assert won is not None
        while view is not None and (state := view.state) is not None:
            others = {name: instance for name, instance in state.in_sync.items() if name != self.name}
            if (state.epoch, state.leader) != (won.epoch, self.name) or not others:
                return
            resigned = replace(state, leader="", in_sync=others)
            view = await self._write(view.version, partial(self._set.release, resigned, view.version))

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
        known = {**self._admission.instances, **view.state.in_sync}
        state = replace(view.state, in_sync={name: known[name] for name in wanted})
        version = view.version
        found = (await self._write(version, partial(self._set.change, state, version))).state
        return found is not None and (found.epoch, frozenset(found.in_sync)) == (epoch, wanted)

    # --- hand-over ----------------------------------------------------------------------------------------------------

    async def hand_over(self, target: str | None) -> str:
        """Hand the leadership over to another node, and return that node's name. target: the name of the node; None
        lets this node choose. Raises NotLeader, CoordinationError.
        """
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
        """Wait until the node `chosen` has all data, and hand the leadership over to it. leaving: whether this node's
        process is about to stop. Raises CoordinationError if the hand-over fails.
        """
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

    # --- follower -----------------------------------------------------------------------------------------------------

    def _follower(self) -> Follower:
        return Follower(
            self._broker,
            self.name,
            self._file,
            self._transactions.mirror,
            grants=self._grants,
            on_hand_over=self._asked_to_lead,
            on_caught_up=self._caught_up,
        )

    def _address(self, name: str) -> tuple[str, int] | None:
        url = self._urls.get(name)
        return parse_broker_url(name, url.encode()) if url else None

    def _follow(self) -> None:
        state = None if self._view is None else self._view.state
        assert state is not None
        self._following.follow((state.epoch, state.leader), state.chosen)

    def _grants(self, stream_epoch: int) -> bool:
        """Return whether to answer a ping of the leader with a grant. If so, record until when the grant is valid.
        stream_epoch: the epoch of this leader. Give no grant if this node is connected to ZooKeeper and has seen no
            leader's znode there.
        """
        view = self._view
        if not may_grant(self._file.epoch, stream_epoch, standing=self._state in CANDIDATES):
            return False
        if self._gone is not None and self._gone == self._following.office:
            return False
        if self._session.connected and (view is None or view.master is None):
            return False
        self._granted_until = promised_until(self._reactor.seconds())
        return True

    def _leader_gone(self, office: Office, *, for_good: bool) -> None:
        """Record that the leader `office` (an epoch and the leader's name) no longer leads. After that, this leader
        does not keep this node from standing for election. for_good: True if the leader's process has ended or is about
        to end; False if the leader hands over to this node and then follows.
        """
        self._gone, self._gone_for_good = office, for_good
        self._decide()

    def _asked_to_lead(self, words: Mapping[str, Any]) -> None:
        """Stand for election, because the leader has asked this node to do so. Before asking, the leader has stopped
        acknowledging messages and has waited until this node has all data.
        """
        if self._following.office is None:
            return
        self._granted_until = 0.0
        self._leader_gone(self._following.office, for_good=bool(words.get("leaving")))

    # --- followers of ours --------------------------------------------------------------------------------------------

    def accept(
        self, frame: Frame, become: Callable[[StreamProtocol], None], certified_hosts: frozenset[str] | None
    ) -> None:
        """Handle FOLLOW as Admission.accept does."""
        self._admission.accept(frame, become, certified_hosts)


def _joins(leader: Leader, target: str | None) -> bool:
    """Return whether a hand-over should wait: a follower is connected, but none is ready to lead yet. A follower is
    ready if it is in sync and receives all new blocks. target: consider only this follower; None considers all.
    """
    asked = [each for each in leader.status() if target in (None, each.name)]
    return any(each.connected for each in asked) and not any(each.in_sync and each.live for each in asked)
