"""Decide which followers that connect to this node are admitted as replicas. The code runs on the reactor thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

from twisted.internet import defer
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from metaq.coordination.sets.set_view import SetView
from metaq.protocol.frames import Frame
from metaq.protocol.replication_stream import MAX_FOLLOWER_MESSAGE_BYTES, Hello, Kind, encode_json, parse_hello

from . import tuning
from .connections import StreamProtocol
from .history import NodeFile
from .host import SetHost
from .leader import Leader
from .rules import common_epoch

__all__ = ["Admission"]

_log = logging.getLogger(__name__)


class Admission:
    """Answers FOLLOW requests. With a FOLLOW request, another node of the set asks this node for a connection over
    which it can copy this node's data.
    """

    def __init__(
        self,
        broker: SetHost,
        name: str,
        file: NodeFile,
        *,
        view: Callable[[], SetView | None],
        leader: Callable[[], Leader | None],
        look: Callable[[], Coroutine[Any, Any, SetView]],
    ) -> None:
        """name: this node's name. file: the file with this node's knowledge of the broker set. view: returns the last
        known state of the set in ZooKeeper. leader: returns this node's Leader object while this node leads, else None.
        look: reads the set's state from ZooKeeper; afterwards `view` returns this new state.
        """
        self.instances: dict[str, str] = {}
        """A dict from the name of each admitted follower to the instance id of its data."""
        self._broker = broker
        self._reactor: Any = broker.reactor
        self._name = name
        self._file = file
        self._view = view
        self._leader = leader
        self._look = look
        self._early: list[Callable[[], None]] | None = None  # answers that wait for an election; None without one
        self._listing: Deferred[Any] | None = None  # a read of the nodes that have a znode
        self._unlisted: list[Callable[[], None]] = []  # followers that wait for that read

    def hold(self) -> None:
        """From now on, do not answer followers that connect, until `let_in` is called. Called when this node stands for
        election. After this node was elected, a follower may learn this from ZooKeeper earlier than this node itself,
        and connect. Without `hold`, this node would refuse the follower, because it does not know yet that it leads.
        """
        self._early = []

    def let_in(self) -> None:
        """End the effect of `hold`. First answer the followers that have connected since `hold` and wait for an answer.
        From now on, answer each follower as soon as it connects.
        """
        early, self._early = self._early, None
        for answer in early or ():
            answer()

    def accept(
        self, frame: Frame, become: Callable[[StreamProtocol], None], certified_hosts: frozenset[str] | None
    ) -> None:
        """Handle FOLLOW: turn the connection into a replication stream. become(protocol): hands the connection over to
        this Twisted protocol. certified_hosts: the hosts that the connection's certificate names, or None if the
        connection needs no certificate. Raises RemoteProtocolError.
        """
        hello = parse_hello(frame.body)
        connection = StreamProtocol(
            hello.node,
            lambda messages: self._received(hello.node, connection, messages),
            MAX_FOLLOWER_MESSAGE_BYTES,
        )
        become(connection)
        answer = partial(self._answer, connection, hello, certified_hosts)
        if self._early is not None:
            self._early.append(answer)
        else:
            answer()

    def _answer(self, connection: StreamProtocol, hello: Hello, certified_hosts: frozenset[str] | None) -> None:
        if self._is_listed(hello):
            self._take_in(connection, hello, certified_hosts)
            return
        if self._listing is None:  # one read of ZooKeeper for all followers
            look = self._listing = ensureDeferred(self._look())
            look.addTimeout(tuning.LISTED_SECONDS, cast(Any, self._reactor))  # ZooKeeper may be away
            look.addBoth(self._have_listed)
        self._unlisted.append(partial(self._take_in, connection, hello, certified_hosts))

    def _have_listed(self, found: object) -> None:
        if isinstance(found, Failure) and not isinstance(found.value, defer.TimeoutError):
            _log.error("the set's nodes cannot be read: %s", found.getTraceback())
        self._listing, unlisted, self._unlisted = None, self._unlisted, []
        for take_in in unlisted:
            take_in()

    def _is_listed(self, hello: Hello) -> bool:
        """Return whether ZooKeeper has a znode with the name and the instance of the follower that asks. Without this
        check, any client that can connect to the port could become a replica, and its acknowledgements would count. The
        check uses the last known view, so it also works while ZooKeeper cannot be reached.
        """
        view = self._view()
        node = None if view is None else view.nodes.get(hello.node)
        return node is not None and node.instance == hello.instance

    def _take_in(self, connection: StreamProtocol, hello: Hello, certified_hosts: frozenset[str] | None) -> None:
        leader = self._leader()
        if connection.lost is not None:
            return
        why = self._stranger(hello, certified_hosts)
        if not why:
            why = f"{self._name} does not lead the set now" if leader is None else self._refusal(leader, hello)
        if leader is None or why:
            connection.send([encode_json(Kind.REFUSED, {"why": why})])
            cast(Any, connection.transport).loseConnection()
            return
        connection.send([encode_json(Kind.WELCOME, self._welcome(leader, hello))])
        self.instances[hello.node] = hello.instance
        leader.serve(hello.node, connection)

    def _stranger(self, hello: Hello, certified_hosts: frozenset[str] | None) -> str:
        """Check whether the connection's certificate names the host of the node that asks to follow. If not, return the
        reason for the refusal. Return "" if it does, or if no certificate is needed.
        """
        view = self._view()
        node = None if view is None else view.nodes.get(hello.node)
        if certified_hosts is None or node is None:  # `_refusal` refuses a node that has no znode
            return ""
        host = node.address[0].lower()
        return "" if host in certified_hosts else f"the certificate does not name {host}, the host of {hello.node}"

    def _refusal(self, leader: Leader, hello: Hello) -> str:
        """Return the reason why the follower that sent `hello` is refused, or "" if it is admitted."""
        if hello.set != self._broker.config.broker_id:
            return f"this is broker set {self._broker.config.broker_id}, not {hello.set}"
        name = hello.node
        if not self._is_listed(hello):
            return f"no znode of the set's nodes has the name {name!r} with the data of the node that asks"
        if hello.epoch > leader.core.epoch:
            self._reactor.callLater(0, ensureDeferred, self._look())
            return f"epoch {leader.core.epoch} of {self._name} is over"
        view = self._view()
        state = None if view is None else view.state
        if state is None or (name in state.in_sync and not state.has_in_sync(name, hello.instance)):
            return f"the set still counts the data that {name} had before"
        return ""

    def _welcome(self, leader: Leader, hello: Hello) -> dict[str, Any]:
        history = self._file.history
        common = common_epoch(history.epochs, hello.epochs)
        ends = {name: end for name, (_, end, _) in self._broker.store.ends().items()}
        return {
            "epoch": leader.core.epoch,
            "common": common,
            "history": (history if common is None else history.behind(common)).to_json(),
            "ends": {} if common is None else history.ends_of(common, ends),
            "bytes": sum(ends.values()),
        }

    def _received(self, name: str, connection: StreamProtocol, messages: Sequence[Any]) -> None:
        leader = self._leader()
        if leader is not None:
            leader.received(name, connection, messages)
