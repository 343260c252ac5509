"""The classes whose objects hold messages from the call of a send until the messages have their outcome. An object
holds a single message, the messages of one send_batch(), or single messages that were gathered into one batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, TypeVar

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.arrays import np
from metaq.protocol.delays import pending_ids, wait_of
from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import message_id_list
from metaq.protocol.record import HEADER, HEADER_BYTES, Buffer, checksum, checksums, header_dtype

from ..records.results import BatchResults, SendResult, TopicPartition
from ..runtime.waiting import Waiter
from ..transport.channel import Channel
from . import tuning
from .delays import NOW, DelayedResults, Timing, due_at
from .futures import Callbacks, Outcome
from .undelivered import Losses

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = [
    "ASKED",
    "GatheredBatch",
    "GivenUp",
    "OnDelivery",
    "OnSent",
    "Outgoing",
    "OutgoingBatch",
    "call_back",
    "check_on_delivery",
    "joined",
]

log = get_log(__name__)
_pack = HEADER.pack

ON_DELIVERY_FAILED = "the on_delivery of a send failed"

OnDelivery = Callable[[Exception | None, SendResult | None], object]
"""The type of a user's callback. The producer calls it with (None, result) for a stored message, and with (error, None)
for a failed message, in the argument order of confluent-kafka.
"""
OnSent = Callable[[Exception | None, Any], object]
"""The type of a callback that is called once for all messages of one send call, with (None, result) or (error,
None).
"""

_deciding = threading.Lock()


def _forked() -> None:
    global _deciding
    _deciding = threading.Lock()  # a thread of the parent may have held the previous lock


os.register_at_fork(after_in_child=_forked)


def call_back(on_delivery: OnDelivery, error: Exception | None, result: SendResult | None) -> None:
    """Call a user's on_delivery function, and log an exception that it raises. Runs on a thread that cannot be
    interrupted.
    """
    with Callbacks():
        try:
            on_delivery(error, result)
        except BaseException:  # also SystemExit: it would end this thread's work for others
            log.exception(ON_DELIVERY_FAILED)


_Report = TypeVar("_Report", bound="OnDelivery | Losses")


def check_on_delivery(given: _Report) -> _Report:
    """Return the on_delivery that a user has given, if it is callable or a Losses object (which counts lost messages);
    otherwise raise TypeError. Consecutive messages with the same on_delivery are checked only once.
    """
    if not (callable(given) or isinstance(given, Losses)):
        raise TypeError(f"on_delivery={given!r} is no function but {type(given).__name__}: name one, or leave it out")
    return given


def ASKED(_error: Exception | None, _result: SendResult | None) -> None:  # noqa: N802
    """Does nothing. It is used as on_delivery of a message with a future. Such a message needs no callback, because its
    future reads the result from the Outcome of the message's batch.
    """


class Outgoing(Waiter):
    """A message for which send was called and which has no outcome (result or error) yet. Until the message is queued,
    only the thread that called send may change this object; after that, only the thread that sends the messages of its
    partition.

    size: bytes of the record (header and body). report: the function that is called with the result or error; it is
    None if a thread waits for the outcome instead. driver: the connection from which the waiting thread will read the
    answer; it is None if that thread reads no answer. result, error: one of them is set, once, and before `done`
    becomes true. once: whether the message ends after one failed try. timing: the Timing of all records of this object.
    """

    __slots__ = (
        "attempts",
        "body",
        "cause",
        "checksum",
        "deadline",
        "driver",
        "error",
        "fixed",
        "flag",
        "flights",
        "key",
        "message",
        "once",
        "report",
        "result",
        "size",
        "timing",
        "topic",
    )

    count = 1
    weight = 1
    """The number by which this object counts for max_buffered_messages, the limit for messages without an outcome. A
    batch of send_batch() counts as 1, regardless of its size.
    """
    is_single = True
    """Whether this object holds exactly one message, so that it can be sent in a SEND request."""

    def __init__(self, topic: str, flag: int, checksum: int, body: Buffer, deadline: float) -> None:
        self.done = self.answered = False
        self.mailbox = None
        self._following = None
        self._gone = False
        self.topic = topic
        self.flag = flag
        self.checksum = checksum
        self.body = body
        self.deadline = deadline
        self.size = HEADER_BYTES + len(body)
        self.timing = NOW
        self.attempts = 0
        self.cause: MetaqError | None = None  # why the last try failed
        self.key: str | bytes | None = None
        self.fixed: TopicPartition | None = None
        self.message: Any = None
        self.once = False
        self.driver: Channel | None = None
        # Flights that its thread must send; after an interrupt other threads send them
        self.flights: Sequence[Any] = ()
        self.report: OnSent | None = None
        self.result: Any = None
        self.error: Exception | None = None

    @property
    def storable(self) -> bool:
        """Whether the store for undelivered messages may save this message. A half message must not be saved: it would
        be sent later without its producer's knowledge, and its local work would never be done.
        """
        return not self.timing.is_half

    @property
    def goes_by_key(self) -> bool:
        """Whether the key of the message determines its partition."""
        return self.key is not None and self.fixed is None

    def succeed(self, result: Any) -> None:
        """Set the result and tell the caller, unless the message has already ended because its deadline has passed or
        its caller no longer waits.
        """
        if self.report is not None:
            if self._decide():
                self.result = result
                self.report(None, result)
        elif not self.done:
            self.result = result
            self.finish()

    def fail(self, error: Exception) -> None:
        """Set the error and tell the caller, unless the message has already ended."""
        if self.report is not None:
            if self._decide():
                self.error = error
                self.report(error, None)
        elif not self.done:
            self.error = error
            self.finish()

    def _decide(self) -> bool:
        """Decide which thread ends this message. Return True to the first caller, which must set the result or error
        and report it. Return False to all later callers. Several threads may try at the same time: one has read the
        broker's answer, while another ends the message at its deadline or in close().
        """
        with _deciding:
            decides, self.done = not self.done, True
        return decides

    # --- for the two protocols --------------------------------------------------------------------------------------

    def records(self) -> Iterable[tuple[int, int, Buffer]]:
        """Yield (flag, checksum, body) of each message of this object that has no result yet."""
        return ((self.flag, self.checksum, self.body),)

    def encode_into(self, sizes: list[int], parts: list[Buffer]) -> None:
        """Append the size of each record (bytes) to `sizes`, and the bytes of the records to `parts`, in the form in
        which a broker stores them, but with message id 0.
        """
        sizes.append(self.size)
        parts += (_pack(len(self.body), self.checksum, 0, self.flag), self.body)

    def native_result(self, first_id: int, partition: TopicPartition, offset: int, replicas: int | None = None) -> Any:
        """Return the result of this message, or the results of this batch's messages, which the broker has stored back
        to back from `offset` on. The ids are derived from `first_id`, the id of the first message. replicas: as in
        SendResult.
        """
        if self.timing and not self.timing.is_half:
            return SendResult(first_id, partition, offset, replicas, due_at(first_id))
        return SendResult(first_id, partition, offset, replicas)

    def waits(self) -> list[int]:
        """Return one number for each record of this object; from this number the producer computes the message's id.
        The number is the delivery time in Unix ms or the delay in ms; for half messages see `_waits`. Used only for
        delayed and half messages.
        """
        return _waits(self.timing, [(flag, body) for flag, _, body in self.records()])

    def succeed_text(self, results: list[SendResult]) -> None:
        """Set the results of all messages after a send over the text protocol. `results` has the order in which
        `records` yields the messages.
        """
        self.succeed(results[0])

    def keep(self, results: list[SendResult | None]) -> None:
        """After a send that has partly failed, keep the results of the messages that the broker has stored, so that
        only the messages without a result (None) are sent again. `results` has the order in which `records` yields the
        messages.
        """


GivenUp = tuple[Outgoing, Exception]
"""A message that is not sent again, and the error with which it ends."""


class OutgoingBatch(Outgoing):
    """The messages of one send_batch() or send_batch_async(), kept together in one partition."""

    is_single = False
    storable = False

    __slots__ = ("_encoded", "_lengths", "bodies", "checksums", "count", "flags", "put", "sizes")

    def __init__(
        self,
        topic: str,
        flags: Sequence[int] | int,
        checksums: npt.NDArray[np.uint32],
        bodies: Sequence[Buffer],
        deadline: float,
    ) -> None:
        """flags: one for each body, or one for all. checksums: the checksum of each body, as record.checksum computes
        it.
        """
        super().__init__(topic, 0, 0, b"", deadline)
        self.count = len(bodies)
        self.bodies = bodies
        self.flags = flags
        self.checksums = checksums
        self._lengths = np.fromiter(map(len, bodies), dtype=np.int64, count=self.count)
        self.sizes: npt.NDArray[np.int64] = self._lengths + HEADER_BYTES
        self.size = int(self.sizes.sum())
        self.put: list[SendResult | None] | None = None
        self._encoded: list[Buffer] | None = None

    def pieces(self, count: int) -> Iterator[OutgoingBatch]:
        """Divide this batch, and yield its messages in batches of at most `count` messages."""
        for start in range(0, self.count, count):
            stop = start + count
            flags = self.flags if isinstance(self.flags, int) else self.flags[start:stop]
            yield OutgoingBatch(self.topic, flags, self.checksums[start:stop], self.bodies[start:stop], self.deadline)

    def encode(self) -> None:
        """Build the bytes that `encoded` will return. This is called while the partition's previous request is in
        flight, so that the bytes are ready when the next request can be sent.
        """
        self._encoded = self.encoded()

    def encoded(self) -> list[Buffer]:
        """Return the records in the form in which a broker stores them, but with message id 0. The list has one buffer;
        only if the records are large, it has several buffers, so that no bytes are copied.
        """
        if self._encoded is not None:
            return self._encoded
        length = len(self.bodies[0])
        if 0 < length <= tuning.TABLE_BYTES and (self._lengths == length).all():
            return [self._table(length)]
        headers = map(_pack, self._lengths.tolist(), self.checksums.tolist(), repeat(0), self._each_flag())
        return joined(list(chain.from_iterable(zip(headers, self.bodies, strict=True))), self.size)

    def _table(self, length: int) -> memoryview:
        """Return the encoded records; the body of each record has `length` bytes. numpy fills a two-dimensional table,
        one line for each record, so that no Python code runs for each record.
        """
        records = np.empty((self.count, HEADER_BYTES + length), np.uint8)
        headers = np.ndarray(self.count, header_dtype(), records.data, strides=(HEADER_BYTES + length,))
        headers["length"], headers["checksum"], headers["id"], headers["flag"] = length, self.checksums, 0, self.flags
        records[:, HEADER_BYTES:] = np.frombuffer(b"".join(self.bodies), np.uint8).reshape(self.count, length)
        return records.reshape(-1).data

    def _each_flag(self) -> Sequence[int]:
        return [self.flags] * self.count if isinstance(self.flags, int) else self.flags

    def records(self) -> Iterable[tuple[int, int, Buffer]]:
        everything = zip(self._each_flag(), self.checksums.tolist(), self.bodies, strict=True)
        if self.put is None:
            return everything
        return (record for record, result in zip(everything, self.put, strict=True) if result is None)

    def seal(self) -> None:
        """Close the batch to further messages, and compute the checksums and sizes of its records. Call it before
        encoding; repeated calls are allowed.
        """

    def encode_into(self, sizes: list[int], parts: list[Buffer]) -> None:
        sizes.extend(self.sizes.tolist())
        parts.extend(self.encoded())

    def native_result(self, first_id: int, partition: TopicPartition, offset: int, replicas: int | None = None) -> Any:
        if self.timing:
            if self.timing.is_half:
                ids = pending_ids(first_id, self.waits())
                return [SendResult(half_id, partition, offset, replicas) for half_id in ids]
            return DelayedResults(first_id, partition, self.waits(), replicas)
        return BatchResults(first_id, partition, offset, self.sizes, replicas)

    def waits(self) -> list[int]:
        return _waits(self.timing, list(zip(self._each_flag(), self.bodies, strict=False)))

    def succeed_text(self, results: list[SendResult]) -> None:
        self.keep(list(results))
        self.succeed(self.put)

    def keep(self, results: list[SendResult | None]) -> None:
        if self.put is None:
            self.put = results
            return
        fresh = iter(results)
        self.put = [next(fresh) if result is None else result for result in self.put]


_Runs = Sequence[tuple[int, OnDelivery | Losses]]
_ALL_ASKED: _Runs = ((0, ASKED),)


class GatheredBatch(OutgoingBatch):
    """A batch of messages without a key that were sent one by one and go to the same partition. They are gathered while
    the partition has a request in flight.

    There is no object for each message; message number i is described by item i of `bodies` and of `flags`. `flags` is
    a list, or a single flag that all messages have. `runs` describes the callbacks: for each series of consecutive
    messages with the same on_delivery, it contains the index of the first message, and the on_delivery.
    `ProducerCore.join` appends messages to these lists, while holding the core's lock, until the queue closes the
    batch. The futures of all messages share `outcome`.

    where: the topic or the partition that the callers of the sends have named; see `ProducerCore.join`. most: the
    maximum number of messages. The batch's deadline is the deadline of its first message; at this time, all its
    messages that are not stored yet end with an error. latest: only messages whose own deadline is not after this time
    are added to the batch.
    """

    __slots__ = ("latest", "most", "outcome", "runs", "where")

    def __init__(
        self,
        where: Hashable,
        topic: str,
        flag: int,
        body: Buffer,
        deadline: float,
        on_delivery: OnDelivery | Losses,
    ) -> None:
        Outgoing.__init__(self, topic, flag, 0, body, deadline)
        self.where = where
        self.report = ASKED  # no thread blocks for it; `succeed` and `fail` tell the callers
        self.bodies: list[Buffer] = [body]
        self.flags: list[int] | int = flag
        self.message = self.bodies
        self.latest = deadline + tuning.TOGETHER_SECONDS
        self.most = 1
        self.outcome = Outcome()
        self.runs: _Runs = _ALL_ASKED if on_delivery is ASKED else [(0, check_on_delivery(on_delivery))]
        self.put = None
        self._encoded = None

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.bodies)

    @property
    def weight(self) -> int:  # type: ignore[override]
        return len(self.bodies)

    @property
    def storable(self) -> bool:  # type: ignore[override]
        return not self.timing.is_half

    @property
    def is_single(self) -> bool:  # type: ignore[override]
        return len(self.bodies) == 1

    def put_flag(self, flag: int) -> None:
        """Add the flag of the message that will be appended to `bodies` next. The call is needed only if this or an
        earlier message has another flag than the first one. A repeated call for the same message does no harm.
        """
        count = len(self.bodies)
        if isinstance(self.flags, int):
            self.flags = [self.flags] * count
        self.flags[count:] = [flag]

    def put_report(self, on_delivery: OnDelivery | Losses) -> None:
        """Set the callback for the message that will be appended to `bodies` next, and for the messages after it. The
        caller must call this if the next message has another callback than the previous message. A repeated call for
        the same message does no harm. Raises TypeError.
        """
        run = len(self.bodies), check_on_delivery(on_delivery)
        if not isinstance(self.runs, list):
            self.runs = list(self.runs)
        if self.runs[-1][0] == run[0]:
            self.runs[-1] = run
        else:
            self.runs.append(run)

    def seal(self) -> None:
        if self._encoded is None:
            if not isinstance(self.flags, int):
                del self.flags[len(self.bodies) :]
            self.checksums = checksums(self.bodies)
            self._lengths = np.fromiter(map(len, self.bodies), np.int64, len(self.bodies))
            self.sizes = self._lengths + HEADER_BYTES
            self.encode()

    def records(self) -> Iterable[tuple[int, int, Buffer]]:
        if len(self.bodies) == 1 and self.put is None:
            body = self.bodies[0]
            return ((self._each_flag()[0], checksum(body), body),)
        self.seal()
        return super().records()

    def encode_into(self, sizes: list[int], parts: list[Buffer]) -> None:
        if len(self.bodies) > tuning.FEW:
            self.seal()
            super().encode_into(sizes, parts)
            return
        for flag, body in zip(self._each_flag(), self.bodies, strict=False):  # flags: as in `seal`
            length = len(body)
            sizes.append(HEADER_BYTES + length)
            parts += (_pack(length, checksum(body), 0, flag), body)

    def native_result(
        self, first_id: int, partition: TopicPartition, offset: int, replicas: int | None = None
    ) -> Sequence[SendResult]:
        bodies = self.bodies
        if self.timing or len(bodies) > tuning.FEW:
            return super().native_result(first_id, partition, offset, replicas)  # type: ignore[no-any-return]
        if len(bodies) == 1:
            return (SendResult(first_id, partition, offset, replicas),)
        results = []
        for message_id, body in zip(message_id_list(first_id, len(bodies)), bodies, strict=True):
            results.append(SendResult(message_id, partition, offset, replicas))
            offset += HEADER_BYTES + len(body)
        return results

    def succeed(self, result: Sequence[SendResult]) -> None:
        if self._decide():
            self.result = result
            self.outcome.settle(None, result)
            if self.runs is not _ALL_ASKED:
                self._tell(None, iter(result))

    def fail(self, error: Exception) -> None:
        if self._decide():
            self.error = error
            self.outcome.settle(error, None)
            self._tell(error, repeat(None))

    def _tell(self, error: Exception | None, results: Iterator[SendResult | None]) -> None:
        """Call the callback of each message with the error or its result. If the send failed, count the messages that
        have a Losses object instead of a callback as lost. Runs on a thread that cannot be interrupted.
        """
        ends = [start for start, _ in self.runs[1:]] + [len(self.bodies)]
        with Callbacks():
            for (start, on_delivery), end in zip(self.runs, ends, strict=True):
                if isinstance(on_delivery, Losses):
                    if error is not None:
                        on_delivery.note(self.topic, error, end - start)
                    on_delivery = ASKED
                for result in islice(results, end - start):
                    try:
                        on_delivery(error, result)
                    except BaseException:  # as in call_back
                        log.exception(ON_DELIVERY_FAILED)


def _waits(timing: Timing, records: Sequence[tuple[int, Buffer]]) -> list[int]:
    """Return one number for each record; from these numbers `pending_ids` computes the messages' ids. For a delayed
    message it is the delivery time in Unix ms or the delay in ms. For a half message it is the ms after which the
    broker first asks for the outcome, or 0 if the broker chooses this time. records: flag and body of each record; all
    of them have the given timing.
    """
    if timing is Timing.HALF:
        return [0] * len(records)
    if timing is Timing.CHECKED_HALF:
        from metaq.protocol.half_messages import half_of  # not imported by a producer without half messages

        return [half_of(flag, body).check_after_ms or 0 for flag, body in records]
    return [wait_of(flag, body) for flag, body in records]


def joined(parts: list[Buffer], size: int) -> list[Buffer]:
    """Join the buffers into one buffer and return it in a list. If their average size is at least JOIN_BELOW_BYTES,
    return them unchanged. size: the sum of the buffers' bytes.
    """
    return [b"".join(parts)] if size < tuning.JOIN_BELOW_BYTES * len(parts) else parts
