"""FakeBroker is a broker in memory that listens on a port. FakeCluster is a cluster of such brokers without
ZooKeeper.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Self

from metaq.client.producer import Producer
from metaq.client.records.decoding import Records, decode_walking
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import TopicView, with_own_partitions
from metaq.protocol.limits import check_zookeeper_topic
from metaq.protocol.record import Buffer, payload_bytes
from metaq.protocol.requests import RequestReader, one_by_one
from metaq.protocol.text import Quit

from .fake_answers import Answers, Connected

__all__ = ["FakeBroker", "FakeCluster"]


class _Session(Connected):
    """A connection that the broker has accepted."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock
        self.reader = RequestReader()


class FakeBroker(Answers):
    """A broker for tests, which runs in a thread of this process. The broker runs from the beginning to the end of a
    `with` block: `with FakeBroker(…) as broker`. A test can change every attribute below while the broker runs.

    speaks_frames: False means that it answers like a Java broker, which knows only the text protocol. takes_many: False
    means that it does not know SEND_MANY, like the first versions. takes_delays: False means that it does not know
    delayed messages.
    takes_halves: False means that it does not know half messages. takes_where: False means that it cannot filter by
    content, like earlier versions. knows_compressed: False means that it does not know compressed messages, like
    earlier versions, and so stores them as any other message, for every topic. accept_compressed: topics with
    acceptCompressed=true in server.ini; other topics accept no compressed messages, and 1.x clients get no messages of
    the listed topics.
    silent: True means that it reads requests and never answers, like a hung broker. refuse: a function that is called
    with each request; if it returns a number, the request is refused with this status (text protocol) or response code
    (frame).
    leader: if it is not None, the broker behaves like a follower in a broker set, and refuses every frame except
    HEARTBEAT and SET_STATUS. The value of `leader` is the leader's URL, or "" if no leader is known. role: the role
    that the broker reports in SET_STATUS, by default `leader` or `follower`. replicas: the number of nodes that the
    broker reports to a sender as having its message; 0 means that it reports no number.
    max_transfer_bytes: maximum size of the broker's answer to a `get`, like maxTransferSize. sends, pulls, connections:
    how many sends, pulls and connections the broker has received so far. transactions: the open transactions.
    delays.waiting: delayed messages that wait for their delivery time; the argument `clock` tells the broker the
    current time. halves.waiting: half messages that wait for their outcome. halves.decided: the outcomes of decided
    half messages by id.
    """

    def __init__(
        self,
        topics: Mapping[str, int],
        broker_id: int = 0,
        *,
        speaks_frames: bool = True,
        accept_compressed: Collection[str] = (),
        port: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(topics, broker_id, speaks_frames=speaks_frames, clock=clock)
        self.accept_compressed = accept_compressed
        self.connections = 0
        self.handled: dict[tuple[str, TopicPartition], int] = {}
        """For each group and partition, the offset before which `handle_all` has handled all messages."""
        self._reserved = socket.socket()  # bound but never listening: reserves the port
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", port))
        self._listener = socket.create_server(self._reserved.getsockname())
        self._listener.setblocking(False)
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_receive, self._wake_send = socket.socketpair()
        self._selector.register(self._wake_receive, selectors.EVENT_READ)
        self._sessions: dict[socket.socket, _Session] = {}
        self._calls: list[Callable[[], None]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"fake-broker-{broker_id}", daemon=True)

    # --- for tests (any thread) -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._reserved.close()

    def stop(self) -> None:
        """Close every connection and refuse new ones, as if the broker's process had been killed. Further calls have no
        effect.

        The port stays reserved until the end of the broker's `with` block, so that no other process can listen on it
        and answer the clients.
        """
        self._stopped = True
        self._wake()
        self._thread.join(5)

    def drop_connections(self) -> None:
        """Close every connection but keep listening."""

        def drop_all() -> None:
            for session in list(self._sessions.values()):
                self._drop(session)

        self.run_there(drop_all)

    def append(self, topic: str, partition: int, *payloads: Buffer, flag: int = 0) -> list[int]:
        """Store messages in a partition directly, without a producer; return their offsets. Pulls that wait for these
        messages are answered.
        """
        offsets: list[int] = []
        log = self.log(topic, partition)
        self.run_there(
            lambda: offsets.extend(log.append(body, self._new_id(), flag) for body in map(payload_bytes, payloads))
        )
        return offsets

    def deliver_delayed(self) -> bool:
        """Store all delayed messages in their partitions now, regardless of their delivery times. Pulls that wait for
        these messages are answered. Return False if no delayed message waits.
        """
        waited = bool(self.delays.waiting)
        self.run_there(lambda: self._deliver(everything=True))
        return waited

    def stored(self, topic: str) -> list[Message]:
        """Return the stored messages of a topic, partition by partition."""
        numbers = sorted(partition for name, partition in list(self.logs) if name == topic)
        return [
            message for number in numbers for message in self._messages(TopicPartition(topic, self.broker_id, number))
        ]

    def _messages(self, partition: TopicPartition) -> Iterable[Message]:
        data: list[bytes] = []
        log = self.log(partition.topic, partition.partition)
        first = log.first
        self.run_there(lambda: data.append(log.slice(first, log.end - first)))
        (records,) = data
        return decode_walking(Records(records, 0, len(records), first, None), partition).messages

    def sender(self) -> Producer:
        """Return a Producer that sends to this broker."""
        return Producer(metadata=FakeCluster([self]))

    def ask_for_halves(self) -> None:
        """Ask for the outcomes of all waiting half messages now. The producers that have sent CHECK_HALVES requests get
        these half messages in the answers.
        """
        self.run_there(self.halves.make_due)

    def append_damaged(self, topic: str, partition: int, payload: Buffer) -> None:
        """Store a message whose last byte is changed, so that its checksum does not match. Pulls that wait for messages
        of the partition are answered.
        """
        log = self.log(topic, partition)

        def store() -> None:
            log.append(payload, self._new_id(), 0)
            log.data[-1] ^= 1

        self.run_there(store)

    def bodies(self, topic: str, partition: int) -> list[bytes]:
        """Return the bodies of all messages stored in a partition, in the order of their offsets."""
        return self.log(topic, partition).bodies()

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, self.broker_id, p) for topic, n in self.topics.items() for p in range(n)]

    # --- its thread -------------------------------------------------------------------------------------------------

    def run_there(self, call: Callable[[], object]) -> None:
        """Run `call` on the broker's thread, which owns the logs, and wait until it has returned."""
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._calls.append(run)
        self._wake()
        if not done.wait(5):
            raise TimeoutError("the fake broker does not run")

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # already stopped
            self._wake_send.send(b"!")

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._turn()
        finally:
            for session in list(self._sessions.values()):
                session.sock.close()
            self._listener.close()
            self._wake_receive.close()
            self._wake_send.close()
            self._selector.close()

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_receive:
                self._wake_receive.recv(4096)
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._sessions:
                self._serve(self._sessions[key.fileobj], events)
        while self._calls:
            self._calls.pop(0)()
        for caller in self._answer_parked():
            assert isinstance(caller, _Session)
            self._flush(caller)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sessions[sock] = _Session(sock)
        self._selector.register(sock, selectors.EVENT_READ)
        self.connections += 1

    def _drop(self, session: _Session) -> None:
        if self._sessions.pop(session.sock, None) is not None:
            self._selector.unregister(session.sock)
            session.sock.close()
            self._drop_caller(session)

    def _serve(self, session: _Session, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                data = session.sock.recv(1 << 20)
                if not data:
                    self._drop(session)
                    return
                for request in one_by_one(session.reader.receive(data)):
                    if isinstance(request, Quit):
                        self._drop(session)
                        return
                    self._take(session, request)
                if session.reader.failure is not None:
                    self._drop(session)
                    return
            self._flush(session)
        except OSError:  # the peer is gone
            self._drop(session)

    def _flush(self, session: _Session) -> None:
        try:
            if session.out:
                with contextlib.suppress(BlockingIOError):
                    sent = session.sock.send(session.out)
                    del session.out[:sent]
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if session.out else 0)
            self._selector.modify(session.sock, wanted)
        except OSError:  # the peer is gone
            self._drop(session)


class FakeCluster:
    """A cluster of FakeBrokers without ZooKeeper. The object has the list of registered brokers, which clients
    otherwise read from ZooKeeper. Pass it to a producer as `metadata`. Any thread may use it.
    """

    def __init__(self, brokers: Iterable[FakeBroker] = ()) -> None:
        self._brokers = {broker.broker_id: broker for broker in brokers}
        self._listeners: list[Callable[[str], None]] = []
        self.sets: set[int] = set()
        """The broker ids that this cluster reports to clients as ids of broker sets, not of single brokers."""

    def register(self, broker: FakeBroker) -> None:
        """Add a broker to the registered brokers. Call this method again after the broker was started again."""
        self._brokers[broker.broker_id] = broker
        self._changed(broker)

    def unregister(self, broker: FakeBroker) -> None:
        """Remove the registration of a broker."""
        del self._brokers[broker.broker_id]
        self._changed(broker)

    def _changed(self, broker: FakeBroker) -> None:
        for listener in self._listeners:
            for topic in broker.topics:
                listener(topic)

    def view(self, topic: str) -> TopicView:
        check_zookeeper_topic(topic)
        brokers = [self._brokers[number] for number in sorted(self._brokers)]
        partitions = (each for broker in brokers for each in broker.partitions if each.topic == topic)
        endpoints = {broker.broker_id: broker.endpoint for broker in brokers}
        return TopicView(with_own_partitions(topic, sorted(partitions), endpoints), endpoints)

    def topics(self) -> Collection[str]:
        return {topic for broker in self._brokers.values() for topic in broker.topics}

    def is_set(self, broker_id: int) -> bool:
        return broker_id in self.sets

    def on_change(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def close(self, timeout: float = 10.0) -> None:
        """Do nothing: a FakeCluster has no open connections or threads."""
