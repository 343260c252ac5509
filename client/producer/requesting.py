"""Send requests (messages that ask for a reply), and read the replies.

The property `metaq.reply-to` of a request states where its reply goes, in the form `topic broker-partition inbox`. The
reply must be sent to this partition of the reply topic, with the inbox as its tag. Each producer has an inbox of its
own. The property `metaq.correlation` is the request's number, which is unique within the inbox; the reply has the same
property. Before the first request is sent, the requester begins to read the reply partition from its end. It reads only
messages with the tag of its inbox. It uses the classes with which a Consumer reads (fetching/core.py,
fetching/fetcher.py), so it goes on reading after the broker restarts or another node becomes the leader. Unlike a
Consumer, the requester joins no group and stores nothing in ZooKeeper.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from isal.isal_zlib import crc32

from metaq.coordination.runtime.interrupts import Aside, BackgroundThread
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import ClientError, ConfigError, MetaqError, NoPartition, RequestTimedOut
from metaq.protocol.own_topics import INBOX_CHARACTERS
from metaq.protocol.pulls import READER_GROUP
from metaq.protocol.record import CORRELATION, REPLY_TO, Buffer, payload_bytes

from ..records.message import Message, ValueMessage
from ..records.results import TopicPartition
from ..runtime.timers import END_SECONDS, Timers
from ..serializers.base import ValueReader
from ..settings.config import ProducerConfig
from ..transport.connection import Endpoint
from ..transport.metadata import UNKNOWN, Metadata
from ..transport.pool import ConnectionPool
from . import tuning
from .building import OwnOptions, SendOptions, build_body
from .futures import SendFuture
from .outgoing import Outgoing
from .packing import Packer
from .routing import no_partition

__all__ = ["ReplyTo", "Requester", "reply_options"]

log = get_log(__name__)

_TAKEN = 1000
"""Maximum number of fetched replies that the background thread hands to their futures before it looks for passed
deadlines.
"""
_RETRY_SECONDS = 1.0
"""Longest pause in seconds before the requester tries again to read from a broker that it could not reach. The pause is
short because the requests that wait for replies have deadlines.
"""
_CHOSEN_BY_THE_REQUEST = ("tag", "key", "partition")


class ReplyTo(NamedTuple):
    """The destination of the reply to a request. inbox: the tag that the reply must have."""

    partition: TopicPartition
    inbox: str

    def __str__(self) -> str:
        return f"{self.partition.topic} {self.partition} {self.inbox}"

    @classmethod
    def parse(cls, text: str) -> ReplyTo:
        """Parse the value of the property `metaq.reply-to`. Raises ValueError."""
        topic, place, inbox = text.split(" ")
        return cls(TopicPartition.parse(topic, place), inbox)


def reply_options(request: Message, options: SendOptions) -> tuple[ReplyTo, OwnOptions]:
    """Return the destination of the reply to `request`, and the options for sending the reply. Raises ClientError (the
    message is no request), ConfigError, TypeError.
    """
    if not hasattr(request, "attributes"):
        raise TypeError(f"{request!r:.80} is no Message: give the request that a consumer has handed out")
    own = request.attributes.reserved
    try:
        to, correlation = ReplyTo.parse(own[REPLY_TO]), own[CORRELATION]
    except (KeyError, ValueError):
        raise ClientError(f"{request!r} asks for no reply: Producer.request() sends messages that do") from None
    for name in _CHOSEN_BY_THE_REQUEST:
        if options.get(name) is not None:
            raise ConfigError(name, options.get(name), "leave it out: the request says where its reply goes")
    return to, {**options, "tag": to.inbox, "partition": to.partition, "reserved": {CORRELATION: correlation}}


class _Request(Outgoing):
    """An outgoing request. A request is never saved in a store of undelivered messages, because nobody would wait for
    the reply any more when the request is sent from the store.
    """

    __slots__ = ()
    storable = False


class _Pending(NamedTuple):
    future: SendFuture[Message]
    deadline: float
    topic: str
    reader: ValueReader | None


class Requester:
    """Sends the requests of one producer and receives the replies. Any thread may call the methods.

    late: number of replies that came after their request had ended, including second copies of a reply.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: Metadata,
        begin: Callable[[Outgoing], None],
        packer: Packer | None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """begin: a function that begins to send a message and does not wait for the outcome (Driver.begin). random: a
        function that returns a number in [0, 1), with which the partition for replies is chosen.
        """
        from ..fetching.core import ConsumerCore  # not imported by a producer without requests
        from ..fetching.fetcher import Fetcher
        from ..settings.consumer_config import ConsumerConfig

        self.late = 0
        self._config = config
        self._metadata = metadata
        self._begin = begin
        self._packer = packer
        self._clock = clock
        self._random = random
        self._inbox = os.urandom(INBOX_CHARACTERS // 2).hex()
        self._numbers = itertools.count(1)
        self._pending: dict[str, _Pending] = {}
        self._home: TopicPartition | None = None
        self._opening = Aside("metaq-requests-open")
        self._lock = threading.Lock()  # guards `_opened`
        self._closed = False
        reading = ConsumerConfig(connection=config.connection, damage="skip", error_max_seconds=_RETRY_SECONDS)
        self._pool = ConnectionPool(config.connection)
        self._timers = Timers("metaq-requests")
        self._core = ConsumerCore(READER_GROUP, reading, tags=frozenset((self._inbox,)), follow=self._pool.follow)
        self._fetcher = Fetcher(self._core, self._pool, self._endpoint_of, self._timers)
        self._thread: BackgroundThread | None = None
        metadata.on_change(self._view_changed)

    # --- requests ---------------------------------------------------------------------------------------------------

    def request(
        self, topic: str, payload: Buffer, deadline: float, options: SendOptions, reader: ValueReader | None = None
    ) -> SendFuture[Message]:
        """Send a request, and return a future of the reply. Blocks only if a partition for the replies must be chosen
        first (for the first request, or because the broker of the last partition is gone): until the requester is
        connected to the partition's broker. reader: decodes the reply's value. Raises the same errors as
        Producer.request.
        """
        home = self._home
        if home is None or home.broker not in self._metadata.view(home.topic).endpoints:
            home = self._opening.do(self._opened, deadline)
        correlation = str(next(self._numbers))
        reserved = {REPLY_TO: str(ReplyTo(home, self._inbox)), CORRELATION: correlation}
        own: OwnOptions = {**options, "reserved": reserved}
        flag, body = build_body(payload_bytes(payload), own, self._packer)
        outgoing = _Request(topic, flag, crc32(body) & 0x7FFFFFFF, body, deadline)
        outgoing.message, outgoing.key, outgoing.fixed = payload, options.get("key"), options.get("partition")
        outgoing.report = partial(self._sent, correlation)
        future: SendFuture[Message] = SendFuture()
        self._pending[correlation] = _Pending(future, deadline, topic, reader)
        if len(self._pending) == 1:
            self._fetcher.wake()  # so that its thread watches the deadline from now on
        if self._closed:
            self._fail_all(ClientError("this producer is closed"))
        try:
            self._begin(outgoing)
        except BaseException:
            self._pending.pop(correlation, None)
            raise
        return future

    def _sent(self, correlation: str, error: Exception | None, _result: object) -> None:
        """Called when the request with the number `correlation` is stored or could not be sent. If it could not be
        sent, end the request's future with `error`.
        """
        if error is not None and (pending := self._pending.pop(correlation, None)) is not None:
            pending.future.outcome.settle(error, None)

    # --- where replies are read -------------------------------------------------------------------------------------

    def _opened(self, deadline: float) -> TopicPartition:
        """Return the partition to which the reply to the next request must go. If the requester does not read this
        partition yet, begin to read it first. Only one thread at a time runs this method, and this thread cannot be
        interrupted.
        """
        from ..questions.partition_bounds import max_offset

        with self._lock:
            if self._closed:
                raise ClientError("this producer is closed")
            topic = self._config.reply_topic
            view = self._metadata.view(topic)
            if self._home is not None and self._home.broker in view.endpoints:
                return self._home
            if not view.partitions:
                if self._home is not None:  # its only broker may be restarting
                    return self._home
                raise no_partition(topic)
            chosen = view.partitions[int(self._random() * len(view.partitions))]
            if chosen.partition == UNKNOWN:
                raise NoPartition(
                    f"without ZooKeeper nobody knows the partitions of topic {topic!r} that replies go to: name their "
                    f"number in Producer.direct(partitions={{{topic!r}: 1}})"
                )
            if chosen not in self._core.owned:
                seconds = max(0.0, deadline - self._clock())
                connection = self._pool.connection(view.endpoints[chosen.broker], seconds)
                begin = max_offset(connection, chosen, max(0.001, deadline - self._clock()))
                self._core.claim([chosen], [begin], announced=True)
                self._fetcher.serve_soon()
            if self._thread is None:
                self._thread = BackgroundThread(self._run, "metaq-requests")
            self._home = chosen
            return chosen

    def _endpoint_of(self, partition: TopicPartition) -> Endpoint | None:
        return self._metadata.view(partition.topic).endpoints.get(partition.broker)

    def _view_changed(self, topic: str) -> None:
        if not self._closed and self._thread is not None:
            self._pool.listed(self._metadata.view(topic).endpoints)

    # --- the background thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        core, fetcher = self._core, self._fetcher
        look = 0.0
        while not self._closed:
            try:
                core.acknowledge()
                fetcher.listen()
                replies = core.take(_TAKEN)
                core.under_way = False
                fetcher.serve()
                for reply in replies:
                    self._take(reply)
                now = self._clock()
                if self._pending and now >= look:
                    look = now + tuning.LOOK_SECONDS
                    self._expire(now)
                if not replies:
                    if (refusal := core.take_refusal()) is not None:
                        self._fail_all(refusal)
                    fetcher.wait(max(0.0, look - now) if self._pending else tuning.IDLE_SECONDS)
            except Exception:  # a bug, or a log handler's error: answer the other requests nevertheless
                log.exception("taking replies failed")
                time.sleep(tuning.LOOK_SECONDS)

    def _take(self, reply: Message) -> None:
        pending = self._pending.pop(reply.attributes.reserved.get(CORRELATION, ""), None)
        if pending is None:
            self.late += 1
            log.info("a reply that nobody waits for is dropped: %s %s", reply.partition, reply.offset)
        else:
            reader = pending.reader
            pending.future.outcome.settle(None, reply if reader is None else ValueMessage.of(reply, reader))

    def _expire(self, now: float) -> None:
        for correlation, pending in list(self._pending.items()):
            if pending.deadline <= now and self._pending.pop(correlation, None) is not None:
                error = RequestTimedOut(f"no reply to a request to topic {pending.topic!r} came in time")
                pending.future.outcome.settle(error, None)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _fail_all(self, error: MetaqError) -> None:
        while self._pending:
            try:
                _, pending = self._pending.popitem()
            except KeyError:
                return
            pending.future.outcome.settle(error, None)

    def close(self, timeout: float = END_SECONDS) -> None:
        """End pending requests with ClientError, stop the thread and close the connections. Call it on a thread that
        cannot be interrupted. Idempotent.
        """
        self._closed = True
        self._fetcher.wake()
        self._fail_all(ClientError("the producer was closed before the reply came"))
        thread = self._thread
        if thread is not None and not thread.is_current:
            thread.join(timeout / 2)
        self._core.lose(list(self._core.owned.values()))
        self._timers.close(timeout / 4)
        self._pool.close(timeout / 4)

    def close_elsewhere(self) -> None:
        """Close a forked process's copies of the sockets."""
        self._pool.close()
