"""The threads, timers and connections that drive a producer's core."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from metaq.coordination.runtime.interrupts import Bells, begin_elsewhere, may_be_interrupted
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.compression import unpacked_if_fitting
from metaq.protocol.errors import CannotConnect, MetaqError, NoPartition
from metaq.protocol.record import COMPRESSED_FLAG, checksum, payload_bytes

from ..records.results import SendResult, TopicPartition
from ..runtime.timers import Scheduler, TimeLeft, Timers
from ..settings.config import ProducerConfig
from ..transport.channel import Channels
from ..transport.metadata import Metadata
from . import tuning
from .building import SendOptions, with_body
from .core import Actions, ProducerCore
from .delays import Timing, timing_of
from .futures import Outcome, refuse_in_callback
from .outgoing import ASKED, GatheredBatch, OnDelivery, Outgoing, call_back, check_on_delivery
from .queues import Flight, PartitionQueue
from .routing import Router, no_partition
from .sending import Sender, new_producer_id
from .undelivered import Losses

if TYPE_CHECKING:
    from ..records.local_store import LocalMessageStore, StoredMessage
    from .resending import Undelivered

__all__ = ["Driver"]

log = get_log(__name__)

_S = TypeVar("_S", bound=Sender)


class Driver:
    """Drives a producer's core: the driver reports events to the core and executes the actions that the core returns. A
    thread that calls `send_and_wait` sends the message and reads the broker's answer itself (see
    client/transport/connection.py). Timer threads send failed messages again, and end messages at their deadlines. Any
    thread may call the methods.

    store: the store for undelivered messages. It is None if the producer has no store.
    """

    def __init__(
        self,
        config: ProducerConfig,
        metadata: Metadata,
        pool: Channels,
        router: Router,
        store: LocalMessageStore | None,
        clock: Callable[[], float],
        random: Callable[[], float],
        *,
        gathers: bool = True,
    ) -> None:
        """gathers: True lets messages without a key follow the previous one into the same partition, so that they share
        a batch. False makes a selector choose the partition of each message separately.
        """
        self._config = config
        self._metadata = metadata
        self._pool = pool
        self._router = router
        self._clock = clock
        self._gathers = gathers
        self.core = ProducerCore(config, router, clock, random, self._interruptible, pool.follow)
        self._timers = self._scheduler("metaq-producer-retry")
        self._answers = self._scheduler("metaq-producer-answers")
        # not on the retry thread, which may have to connect
        self._deadlines = self._scheduler("metaq-producer-deadlines")
        self._arming = threading.Lock()
        self._wake_armed = self._look_armed = math.inf
        self._freed = Bells()  # wakes threads that wait for room, or for the end of all messages
        self._sender = self._make_sender()
        self._telling: list[Actions] = []
        """One entry for each thread that is currently telling callers how their messages have ended. While there is an
        entry, `flush` goes on waiting, because the core has already removed these messages although their callers are
        not told yet.
        """
        self._changed_topics: set[str] = set()
        self._lost_at_exit: Losses | None = None
        self._undelivered: Undelivered | None = None
        if store is not None:
            from .resending import Undelivered  # not imported without a store

            self._undelivered = Undelivered(store, self._send_again, config.recover_interval_seconds, clock)
        metadata.on_change(self._view_changed)

    # A driver on an event loop replaces these three.

    _interruptible = staticmethod(may_be_interrupted)
    """See ProducerCore."""

    def _scheduler(self, name: str) -> Scheduler:
        """Return a new scheduler for delayed actions; `name` is the name of its thread."""
        return Timers(name, self._clock)

    def _make_sender(self) -> Sender:
        return self._sender_of(Sender)

    def _sender_of(self, kind: type[_S]) -> _S:
        """Return a new Sender of the class `kind` for this driver."""
        config = self._config
        return kind(
            self.core,
            self._metadata,
            self._pool,
            config.connection,
            self._do,
            self._released,
            self._elsewhere,
            self._clock,
            new_producer_id() if config.idempotent else 0,
            packs=config.compression is not None,
            interruptible=self._interruptible,
        )

    def start(self) -> None:
        """Start to send the messages that are in the store for undelivered messages; do nothing if there is no
        store.
        """
        if self._undelivered is not None:
            self._undelivered.begin()

    # --- accepting --------------------------------------------------------------------------------------------------

    def send_stored(self, message: StoredMessage, deadline: float, retry: bool) -> SendResult:
        """Send a stored message; `deadline` is in monotonic seconds. See Producer.send_stored for the other
        arguments.
        """
        from ..records.local_store import StoredMessage  # not imported without a store

        if not isinstance(message, StoredMessage):
            raise TypeError(f"{message!r:.80} is no StoredMessage: give one that a LocalMessageStore has")
        if type(message.body) is not bytes:
            message = message._replace(body=payload_bytes(message.body))
        flag, body = message.flag, message.body
        if flag & COMPRESSED_FLAG and self._config.compression is None:  # its topic may not allow compression
            flag, body = unpacked_if_fitting(body, flag)
        outgoing = Outgoing(message.topic, flag, checksum(body), body, deadline)
        outgoing.key, outgoing.fixed, outgoing.message = message.key, message.partition, message.payload
        outgoing.once = not retry
        outgoing.timing = timing_of(message.flag, body)
        return self.send_and_wait(outgoing)  # type: ignore[no-any-return]

    def begin(self, outgoing: Outgoing) -> None:
        """Accept a message that no thread waits for, and send it. If the producer has a store, and an error that is
        only temporary prevents the send now, the message is saved in the store.
        """
        try:
            try:
                if self._undelivered is not None and outgoing.storable and self._router.is_away(outgoing):
                    raise no_partition(outgoing.topic)  # raised once some broker publishes the topic
                _, flights = self._accept(outgoing)
            except MetaqError as error:
                if self._undelivered is None or not outgoing.storable or not _may_keep(error):
                    raise
                self._undelivered.keep(outgoing, error)
                return
            self._sender.transmit_all(flights)
        except MetaqError:
            raise
        except BaseException:
            begin_elsewhere((self._recover, outgoing))
            raise

    def take_over(
        self,
        topic: str,
        payload: bytes,
        flag: int,
        body: bytes,
        timing: Timing,
        deadline: float,
        on_delivery: OnDelivery | Losses,
        options: SendOptions,
    ) -> tuple[Outcome, int | None]:
        """Accept a single message that no thread waits for, and send it. Return the Outcome in which the message's
        result will appear, and the message's index in the Outcome. The index is None if the Outcome belongs to this
        message alone. If on_delivery is ASKED (the user wants a future), the caller makes a SendFuture from these two
        values.
        flag, body, timing: the values of the message's record.
        """
        outcome, place, outgoing = self.gather(topic, payload, flag, body, timing, deadline, on_delivery, options)
        if outgoing is not None:
            self.begin(outgoing)
        return outcome, place

    def gather(
        self,
        topic: str,
        payload: bytes,
        flag: int,
        body: bytes,
        timing: Timing,
        deadline: float,
        on_delivery: OnDelivery | Losses,
        options: SendOptions,
    ) -> tuple[Outcome, int | None, Outgoing | None]:
        """Add a single message to a batch that accepts further messages, or make an object for the message, which the
        caller must pass to `begin`. Return the message's Outcome and its index in the Outcome, as `take_over` does, and
        the new object; None instead of the object if the message was added to a batch.
        """
        partition = options.get("partition")
        if options.get("key") is None and (self._gathers or partition is not None):
            where: Hashable = topic if partition is None else (topic, partition)
            if timing:
                where = where, timing
            joined = self.core.join(where, flag, body, deadline, on_delivery)
            if joined is not None:
                return *joined, None
            gathered = GatheredBatch(where, topic, flag, body, deadline, on_delivery)
            gathered.fixed, gathered.timing = partition, timing
            return gathered.outcome, 0, gathered
        outgoing = with_body(topic, payload, flag, body, deadline, options)
        outgoing.timing = timing
        outcome = Outcome()
        if on_delivery is ASKED:
            outgoing.report = outcome.settle
        elif isinstance(on_delivery, Losses):
            outgoing.report = partial(on_delivery.report, topic)
        else:
            outgoing.report = partial(call_back, check_on_delivery(on_delivery))
        return outcome, None, outgoing

    def send_and_wait(self, outgoing: Outgoing) -> Any:
        """Send a message or a batch, wait for the broker's answer, and return a SendResult for a message, or a sequence
        of SendResults for the messages of a batch.
        """
        refuse_in_callback("a blocking send")
        try:  # accepting is inside the `try`, because an interrupt may come when a function begins
            queue, flights = self._accept(outgoing)
            for flight in flights:
                self._sender.transmit(flight, outgoing)
        except MetaqError:
            raise
        except BaseException:
            begin_elsewhere((self._recover, outgoing))
            raise
        if not outgoing.done:
            self._wait(outgoing, queue)
        if outgoing.error is not None:
            raise outgoing.error
        return outgoing.result

    def _accept(self, outgoing: Outgoing) -> tuple[PartitionQueue | None, Sequence[Flight]]:
        """Choose the message's partition and add the message to the core. If the core already holds as many messages as
        the limits of the buffer allow, first wait for room, at most until the message's deadline. Raises
        RequestTimedOut (no room until the deadline), ClientError (the producer is closed, or the buffer is full and the
        caller is a callback of a send), NoPartition, and exceptions of a user's selector.
        """
        core = self.core
        partition = self._route(outgoing)
        while (accepted := core.add(outgoing, partition)) is None:
            refuse_in_callback("a send with max_buffered_bytes or max_buffered_messages waiting already")
            if not self._freed.wait_for(partial(core.has_room, outgoing), lambda: outgoing.deadline - self._clock()):
                raise core.no_room()
        if core.due or core.expire_at < self._look_armed:
            self._arm()
        return accepted

    def _recover(self, outgoing: Outgoing) -> None:
        """Called after an interrupt (such as KeyboardInterrupt) has ended a thread while it accepted or sent this
        message: finish this work. Runs on another thread than the interrupted one.
        """
        self._sender.lose_untaken(outgoing.flights)
        self.core.hurry()
        self._arm()

    def _route(self, outgoing: Outgoing) -> TopicPartition | None:
        """Return the partition in whose queue the message is put, chosen by Router.route. Return None if the key of the
        message determines its partition: the core itself then chooses the partition, so that messages with the same key
        keep their order.

        If no broker publishes the topic now, but this producer has sent to it before, the message is queued for the
        partition used before, at most until its deadline. In this case the topic's only broker may be restarting, or
        the broker's ZooKeeper session may just have ended.
        """
        if outgoing.key is not None and outgoing.goes_by_key:
            known = not outgoing.once and self.core.partition_of(outgoing.topic) is not None
            if not known and not self._router.partitions_for_keys(outgoing.topic):
                raise self._router.explained(outgoing, no_partition(outgoing.topic))
            return None
        if outgoing.fixed is None and isinstance(outgoing, GatheredBatch):
            sticky = self.core.sticks_to(outgoing.where)
            if sticky is not None:
                return sticky
        try:
            return self._router.route(outgoing)
        except NoPartition as error:
            last = self.core.partition_of(outgoing.topic)
            if last is None:
                raise self._router.explained(outgoing, error) from None
            if outgoing.once or not self._router.is_away(outgoing):
                raise
        return outgoing.fixed or last

    def _wait(self, outgoing: Outgoing, queue: PartitionQueue | None) -> None:
        connection = outgoing.driver  # the connection of its flight; its broker may have another one by now
        if connection is None and queue is not None and queue.queued_records < tuning.CROWD:
            # From here on a request for this message on this connection needs no background reader.
            connection = outgoing.driver = queue.broker.connection
        if connection is not None:
            connection.drive(outgoing, outgoing.deadline)
            outgoing.driver = None
        else:
            outgoing.park_until_done(outgoing.deadline, self._clock)
        if not outgoing.done:
            outgoing.error = self.core.overdue(outgoing)
            outgoing.done = True  # other threads with this message drop it from now on

    # --- the end ----------------------------------------------------------------------------------------------------

    def flush(self, deadline: float) -> bool:
        """Wait until every message is delivered or has failed, and the messages that are to be saved are written to the
        store. Return False if the deadline passes first.
        """
        if not self._wait_for_all(deadline):
            return False
        if self._undelivered is not None:
            self._undelivered.write()
        return True

    @property
    def rests(self) -> bool:
        """Whether no message waits to be delivered or to be written to the store. Reading this takes no lock."""
        keeps = self._undelivered is not None and self._undelivered.is_writing
        return not (self.core.buffered_messages or self._telling or keeps)

    def _wait_for_all(self, deadline: float) -> bool:
        self.core.hurry()
        self._arm()  # lingering messages are not sent on this thread, because that may have to connect
        return self._freed.wait_for(self._has_told_all, lambda: deadline - self._clock())

    def _has_told_all(self) -> bool:
        return self.core.is_empty() and not self._telling  # in this order, see `_do`

    def end(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until all accepted messages are delivered or have failed. Then accept no more
        messages, and end the remaining ones with an error. `end`, `end_at_exit` and `close` are called only on threads
        that cannot be interrupted.
        """
        deadline = self._clock() + timeout
        try:
            if self._undelivered is not None:
                self._undelivered.stop_sending(timeout)
            self._wait_for_all(deadline)
        finally:
            self.core.stop_trying()
            # Callbacks run on this thread. On another thread, a blocking callback would keep later messages from the
            # count of losses, and from the store, which ends soon.
            self._do(self.core.close())
            self._ring()

    def end_at_exit(self, timeout: float) -> Mapping[tuple[str, str], int]:
        """Do the same as `end`. This method is called when the process ends. Return the number of lost messages by
        topic and reason.
        """
        self._lost_at_exit = Losses()
        self.end(timeout)
        if self._undelivered is not None:
            self._undelivered.close()
        return self._lost_at_exit.take()

    def close(self, left: TimeLeft) -> None:
        """Stop the driver's threads, and close the connections and the store. Call it after `end`."""
        self._deadlines.close(min(1.0, left.part(0.2)))
        self._timers.close(min(1.0, left.part(0.2)))
        self._answers.close(min(1.0, left.part(0.2)))
        self._pool.close(left.part(0.5))
        if self._undelivered is not None:
            self._undelivered.close(left.part(0.5))

    # --- executing the core's actions -------------------------------------------------------------------------------

    def _do(self, actions: Actions) -> None:
        """Execute actions that the core has returned: send its flights, and tell the callers of failed messages the
        errors. Runs on a thread that cannot be interrupted.
        """
        self._sender.transmit_all(actions.flights)
        self._telling.append(actions)  # before an outcome is decided, because that may empty the core
        try:
            for outgoing, error in actions.late:
                if not self._keeps(outgoing):  # otherwise it may still be acknowledged, and would be sent twice
                    self._tell(self._fail, outgoing, error)
            for outgoing, error in actions.ended:
                self._tell(self._give_up, outgoing, error)
        finally:
            self._telling.pop()
        if actions.ended:
            self._sender.transmit_all(self.core.forget(actions.ended))
        if actions.ended or actions.late:
            self._ring()
        self._arm()

    def _tell(self, tell: Callable[[Outgoing, Exception], None], outgoing: Outgoing, error: Exception) -> None:
        try:
            tell(outgoing, error)
        except Exception:  # for example of a log handler: tell the other callers nevertheless
            log.exception("telling what a message ended with failed")

    def _arm(self) -> None:
        """Set the timers that call `wake` and `expire` to the times that the core has requested (`wake_at`,
        `expire_at`).
        """
        with self._arming:
            when = self.core.wake_at
            if when < self._wake_armed:
                self._timers.call_later(
                    max(0.0, when - self._clock()), self._wake
                )  # first: an unneeded call does no harm
                self._wake_armed = when
            when = self.core.expire_at
            if when < self._look_armed:
                self._deadlines.call_later(max(0.0, when - self._clock()), self._expire)
                self._look_armed = when

    def _wake(self) -> None:
        """Call the core's `wake`, which returns what is to be sent now, and execute the returned actions. Runs on the
        timer thread for retries.
        """
        with self._arming:
            self._wake_armed = math.inf
        self._do(self.core.wake(self._clock()))

    def _expire(self) -> None:
        """End the messages whose deadline has passed, even those that wait for a retry or are in flight. Runs on the
        thread that watches deadlines.
        """
        with self._arming:
            self._look_armed = math.inf
        self._do(self.core.expire(self._clock()))

    def _view_changed(self, topic: str) -> None:
        """Called when a topic's view has changed: the topic's partitions, or the brokers that are registered in
        ZooKeeper (also those without the topic). Let the retry thread send the topic's waiting messages again, and tell
        the connection pool which brokers are registered. Any thread may call this.
        """
        self._changed_topics.add(topic)
        self._timers.call_later(0.0, self._try_changed)
        self._pool.listed(self._metadata.view(topic).endpoints)
        if self._undelivered is not None:
            self._undelivered.send_soon()

    def _try_changed(self) -> None:
        """Send the waiting messages of the topics whose view has changed. Runs on the timer thread for retries."""
        topics: set[str] = set()
        while self._changed_topics:
            topics.add(self._changed_topics.pop())
        if topics:
            self._do(self.core.view_changed(topics))

    def _released(self) -> None:
        """Wake the threads that wait for room in the buffer, and those that wait until all messages have ended. A
        repeated call does no harm.
        """
        if self._freed.waiting:
            self._freed.ring()

    def _ring(self) -> None:
        """Do the same as `_released`, also for a thread that is only about to wait."""
        self._freed.ring()

    def half_check_seconds(self, broker: int) -> float | None:
        """Return the number of seconds between the storing of a half message and this broker's first question about its
        outcome. Return None if the number is unknown. See Sender.half_checks.
        """
        return self._sender.half_checks.get(broker)

    def keep(self, size: int) -> None:
        """Let a message of `size` bytes count for the limits of the buffer although it was sent; see
        ProducerCore.keep.
        """
        self.core.keep(size)

    def let_go(self, messages: int, size: int) -> None:
        """Stop counting messages that `keep` has counted for the limits of the buffer (ProducerCore.let_go). messages:
        the number of these messages. size: the sum of their bytes. Wake the threads that wait for room in the buffer.
        """
        self.core.let_go(messages, size)
        self._released()

    def _elsewhere(self, action: Callable[[], None]) -> None:
        """Run the action on a thread of the driver that no signal can interrupt. Used for actions that must not stop in
        the middle.
        """
        self._answers.call_later(0.0, action)

    def _give_up(self, outgoing: Outgoing, error: Exception) -> None:
        """End a message that will not be sent any more. If possible, save it in the store for undelivered messages;
        otherwise report the error to its caller.
        """
        keeps = self._keeps(outgoing) and not outgoing.done
        if self._undelivered is not None and keeps and isinstance(error, MetaqError) and _may_keep(error):
            self._undelivered.keep(outgoing, error)
        else:
            self._fail(outgoing, error)

    def _fail(self, outgoing: Outgoing, error: Exception) -> None:
        if self._lost_at_exit is not None and not outgoing.done:
            self._lost_at_exit.note(outgoing.topic, outgoing.cause or error, outgoing.count)
        outgoing.fail(error)

    def _keeps(self, outgoing: Outgoing) -> bool:
        """Whether the message may be saved in the store for undelivered messages: there is a store, the message is
        storable, and no thread waits for it.
        """
        return self._undelivered is not None and outgoing.storable and outgoing.report is not None

    def _send_again(self, message: StoredMessage) -> SendResult:
        return self.send_stored(message, self._clock() + self._config.delivery_timeout_seconds, retry=False)


def _may_keep(error: MetaqError) -> bool:
    """Return whether a message that this error has prevented may be sent later from the store for undelivered messages:
    after the end of a failure, or after somebody has mended the settings of a connection.
    """
    return error.retriable or isinstance(error, CannotConnect)
