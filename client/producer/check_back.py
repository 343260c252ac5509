"""Run transactions with check-back. The producer sends a half message, does local work, and sends the outcome to the
broker. If the outcome does not come, the broker asks for it.

If the caller waits for the transaction, its thread sends the half message, does the work and sends the outcome itself.
If the caller does not wait, the half message is sent like every asynchronous message. The thread that reads the
broker's answer to the half message hands the transaction to the threads of LocalWork. The LocalWork threads do the work
and send the outcome (ending_halves.py). The thread that reads the broker's answer to the outcome gives the
transaction's future its result.

The local work is not begun if so much time has passed that the broker may have asked another producer of the group
about the transaction (`check_age`). The other producer may have answered that nothing is committed, and then the broker
has rolled the transaction back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import (
    ClientError,
    ConfigError,
    HalfDecided,
    LocalProtocolError,
    MessageNotFound,
    MetaqError,
    TransactionTooLate,
)
from metaq.protocol.half_messages import HalfOutcome, HalfTerms
from metaq.protocol.limits import MAX_CHECK_AFTER_SECONDS, check_zookeeper_group
from metaq.protocol.record import DELAYED_FLAG, HEADER_BYTES, Buffer, payload_bytes

from ..records.message import Message
from ..records.results import SendResult
from ..runtime.durations import Duration, seconds_of
from ..settings.config import check_call_back
from .building import SendOptions, build_half, with_body
from .checking_halves import Checker, outcome_of
from .delays import Timing, refuse_delay
from .ending_halves import Ender, Telling
from .futures import Callbacks, Outcome, SendFuture
from .local_work import LocalWork
from .outgoing import OnDelivery, Outgoing
from .own_halves import Check
from .packing import Packer

__all__ = ["Execute", "HalfTransactions", "TransactionResult", "check_age"]

log = get_log(__name__)

_LEAST_LIMIT_SECONDS = 0.5
"""Until this many seconds after the call of the transaction, the local work may begin even if the broker's first check
comes earlier. This is safe, because brokers first ask the producer of the transaction, and other producers only
HALF_GRACE_SECONDS (3) later. The remaining 2.5 seconds allow for clocks that run at different speeds.
"""

Execute = Callable[[Message], bool | HalfOutcome | None]
"""The type of the user's function execute(message), which does the local work. The function returns True to commit,
False to roll back, and None if it does not know the outcome yet.
"""


class TransactionResult(NamedTuple):
    """The result of a transaction with check-back.

    outcome: COMMITTED, ROLLED_BACK, or UNKNOWN. UNKNOWN means that `execute` did not know the outcome, or that the
    outcome could not be sent to the broker; then the broker asks later. half: the result of the half message. sent: the
    result of the message that consumers see; it is None unless the transaction is committed. cause: the error because
    of which the outcome could not be sent to the broker; it is None if the outcome was sent, or if there was no outcome
    to send.
    """

    outcome: HalfOutcome
    half: SendResult
    sent: SendResult | None = None
    cause: MetaqError | None = None


class HalfSends(Protocol):
    """The methods of a producer's Driver that send half messages."""

    def send_and_wait(self, outgoing: Outgoing) -> SendResult:
        """Send a message and wait; see Driver.send_and_wait."""

    def take_over(
        self,
        topic: str,
        payload: bytes,
        flag: int,
        body: bytes,
        timing: Timing,
        deadline: float,
        on_delivery: OnDelivery,
        options: SendOptions,
    ) -> object:
        """Accept a message that no thread waits for; see Driver.take_over."""

    def half_check_seconds(self, broker: int) -> float | None:
        """Return the seconds until a broker's first check of a half message; see Driver.half_check_seconds."""

    def keep(self, size: int) -> None:
        """Continue to count a message of `size` bytes as buffered although it is sent; see ProducerCore.keep."""

    def let_go(self, messages: int, size: int) -> None:
        """Stop counting messages that `keep` has counted as buffered; see Driver.let_go."""


def check_age(half: SendResult, seconds: float, check_after: float | None) -> TransactionTooLate | None:
    """Return an error if the local work must not begin: the transaction was called `seconds` ago, and the broker may
    already have asked another producer for the outcome. Return None if the local work may begin.

    check_after: seconds until the broker's first check; it is None if the broker does not announce this time.
    """
    if check_after is None or seconds < (limit := max(check_after, _LEAST_LIMIT_SECONDS)):
        return None
    what = f"{half.partition.topic} {half.partition}, half message {half.message_id}"
    return TransactionTooLate(what, seconds, limit)


class _Transaction(Telling):
    """A transaction of send_in_transaction_async, so no thread waits for it. end: the object that sets the result of
    the transaction's future (futures.Outcome). check,
    check_after: the arguments of the call. began: clock time of the call. seconds: time limit for sending the outcome.
    number: the number of the half message in OwnHalves. too_late: the error because of which the local work must not
    begin; it is None if the work may begin. has_caller: false if the call of send_in_transaction_async has raised an
    exception, so that the caller has no future of this transaction.
    """

    __slots__ = (
        "began",
        "body",
        "check",
        "check_after",
        "end",
        "execute",
        "flag",
        "half",
        "has_caller",
        "number",
        "owner",
        "seconds",
        "too_late",
        "topic",
    )

    blocks = False

    def __init__(
        self,
        owner: _Asynchronous,
        execute: Execute,
        check: Check | None,
        check_after: float | None,
        began: float,
        topic: str,
        flag: int,
        body: bytes,
        seconds: float,
        number: int,
    ) -> None:
        super().__init__()
        self.owner = owner
        self.execute = execute
        self.check = check
        self.check_after = check_after
        self.began = began
        self.topic = topic
        self.flag = flag
        self.body = body
        self.seconds = seconds
        self.number = number
        self.too_late: TransactionTooLate | None = None
        self.has_caller = True
        self.end = Outcome()
        self.half: SendResult

    @property
    def is_refused(self) -> bool:
        """Whether the local work must not begin, so that the transaction must be rolled back."""
        return self.too_late is not None or not self.has_caller

    def sent(self, error: Exception | None, half: SendResult | None) -> None:
        """Called when the send of the half message has ended: begin the local work or, if the send has failed, end the
        transaction with `error`. Called on the thread that reads the answer, or on the thread that gives up the
        message.
        """
        if half is None:
            self.owner.not_sent(self)
            self.end.settle(error, None)
            return
        self.half = half
        self.partition, self.half_id = half.partition, half.message_id
        self.owner.work(self)

    def told(self, together: Sequence[_Transaction]) -> None:
        self.owner.told(together)

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the transaction occupies in the producer's buffer after its half message is
        acknowledged, until the transaction ends.
        """
        return HEADER_BYTES + len(self.body)


class _Asynchronous:
    """All transactions of a producer that no thread waits for. Any thread may call the methods. The object holds no
    reference to the producer, so the garbage collector can free a producer that the program has dropped.
    """

    def __init__(
        self,
        sends: HalfSends,
        checker: Checker,
        ender: Ender,
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        self._sends = sends
        self._own = checker.own
        self._ender = ender
        self._clock = clock
        self._work: LocalWork[_Transaction] = LocalWork(threads, self._execute, ender.hurry, clock)
        self._working: dict[_Transaction, None] = {}

    def not_sent(self, transaction: _Transaction) -> None:
        """Record that the half message of a transaction has failed, so that the local work will not be done."""
        self._own.not_sent(transaction.number, transaction.topic, transaction.body)

    def work(self, transaction: _Transaction) -> None:
        """Queue the local work of a transaction, because the broker has stored its half message."""
        self._own.sent(transaction.number, transaction.half_id)
        self._sends.keep(transaction.kept_bytes)
        if not self._work.add(transaction):
            self._drop(transaction)

    def _execute(self, transaction: _Transaction) -> None:
        """Do the local work of a transaction, and send its outcome."""
        half, check_after = transaction.half, transaction.check_after
        if check_after is None:
            check_after = self._sends.half_check_seconds(half.partition.broker)
        transaction.too_late = check_age(half, self._clock() - transaction.began, check_after)
        if transaction.is_refused:
            transaction.outcome = HalfOutcome.ROLLED_BACK
        else:
            self._working[transaction] = None
            try:
                message = _message(half, transaction.flag, transaction.body)
                transaction.outcome = outcome_of(transaction.execute(message), "execute")
            except BaseException as error:  # also SystemExit: it goes to the future
                self._left_open(transaction)
                self._end(transaction, error, None)
                return
            finally:
                del self._working[transaction]
        if transaction.outcome is HalfOutcome.UNKNOWN:
            self._left_open(transaction)
            self._end(transaction, None, TransactionResult(HalfOutcome.UNKNOWN, half))
            return
        transaction.deadline = self._clock() + transaction.seconds
        self._ender.gather(transaction)

    def told(self, transactions: Sequence[_Transaction]) -> None:
        """End these transactions: the broker has either acknowledged a transaction's outcome, or the outcome could not
        be sent to the broker in time.
        """
        self._own.decided([each.half_id for each in transactions if each.reply is not None])
        with Callbacks():
            for each in transactions:
                if each.reply is None:
                    self._left_open(each)
                if each.too_late is not None:
                    each.end.settle(each.too_late, None)
                    continue
                try:
                    result = _result(each.half, each)
                except HalfDecided as error:
                    each.end.settle(error, None)
                else:
                    each.end.settle(None, result)
        self._sends.let_go(len(transactions), sum([each.kept_bytes for each in transactions]))

    def _left_open(self, transaction: _Transaction) -> None:
        """Stop the work on a transaction whose outcome the broker does not know. Note how to answer when the broker
        asks for the outcome; until then the producer does nothing more for this transaction.
        """
        answer = HalfOutcome.ROLLED_BACK if transaction.is_refused else transaction.check
        self._own.left_open(transaction.half_id, answer)

    def _end(self, transaction: _Transaction, error: BaseException | None, result: TransactionResult | None) -> None:
        with Callbacks():
            transaction.end.settle(error, result)
        self._sends.let_go(1, transaction.kept_bytes)

    def _drop(self, transaction: _Transaction) -> None:
        """End the future of a transaction with ClientError, because the producer was closed before the local work
        began.
        """
        closed = ClientError("the producer was closed before the local work of this transaction was begun")
        self._end(transaction, closed, None)

    def close(self, seconds: float) -> None:
        """End all transactions. Local work that has begun may run for `seconds` more. If it is still running then, its
        transaction ends with an UNKNOWN outcome.
        """
        for each in self._work.close(seconds):
            self._drop(each)
        for each in list(self._working):
            with Callbacks():
                closed = ClientError("the producer was closed while the local work was done")
                each.end.settle(None, TransactionResult(HalfOutcome.UNKNOWN, each.half, None, closed))


class HalfTransactions:
    """The part of a producer that runs its transactions with check-back. Any thread may call the methods."""

    def __init__(
        self,
        sends: HalfSends,
        checker: Checker,
        ender: Ender,
        group: str | None,
        threads: int,
        packer: Packer | None,
        clock: Callable[[], float],
    ) -> None:
        """group, threads: the settings producer_group and transaction_threads of ProducerConfig. packer: compresses
        payloads; it is None if payloads are not compressed.
        """
        self.checker = checker
        self._sends = sends
        self._ender = ender
        self._group = group
        self._terms: HalfTerms | None = None  # the last terms: a loop passes the same ones for each message
        self._packer = packer
        self._clock = clock
        self._asynchronous = _Asynchronous(sends, checker, ender, threads, clock)

    def group(self, given: str | None) -> str:
        """Return the producer group for a call: `given`, or the configured group if `given` is None. Raises
        ConfigError, InvalidName, TypeError.
        """
        if given is not None:
            return check_zookeeper_group(given)
        if self._group is None:
            raise ConfigError(
                "group", None, "name the producers that can answer for each other: ProducerConfig(producer_group=...)"
            )
        return self._group

    def run(
        self,
        topic: str,
        payload: Buffer,
        execute: Execute,
        check: Check | None,
        group: str | None,
        check_after: Duration | None,
        seconds: float,
        options: SendOptions,
    ) -> TransactionResult:
        """Run a transaction; see Producer.send_in_transaction. seconds: time limit for sending the half message.
        Sending the outcome has a separate limit of the same length.
        """
        began = self._clock()
        after = None if check_after is None else _check_after(check_after)
        call = "send_in_transaction()"
        payload, flag, body, timing = self._built(call, topic, payload, execute, check, group, after, options)
        outgoing = with_body(topic, payload, flag, body, began + seconds, options)
        outgoing.timing = timing
        own = self.checker.own
        number = own.send()
        half: SendResult | None = None
        answer: Check | HalfOutcome | None = HalfOutcome.ROLLED_BACK  # the answer if the broker asks after this
        telling = Telling()
        try:
            half = self._sends.send_and_wait(outgoing)
            own.sent(number, half.message_id)
            if after is None:
                after = self._sends.half_check_seconds(half.partition.broker)
            too_late = check_age(half, self._clock() - began, after)
            if too_late is None:
                answer = check
                outcome = outcome_of(execute(_message(half, flag, body)), "execute")
                if outcome is HalfOutcome.UNKNOWN:
                    return TransactionResult(outcome, half)
            else:
                outcome = HalfOutcome.ROLLED_BACK
            telling.partition, telling.half_id, telling.outcome = half.partition, half.message_id, outcome
            telling.deadline = self._clock() + seconds
            try:
                self._ender.tell(telling)
            except MetaqError as error:
                telling.error = error
        finally:
            if half is None:
                own.not_sent(number, topic, body)
            else:
                own.sent(number, half.message_id)  # an interrupt may have come before
                if telling.reply is None:
                    own.left_open(half.message_id, answer)
                else:
                    own.decided((half.message_id,))
        if too_late is not None:
            raise too_late
        return _result(half, telling)

    def begin(
        self,
        topic: str,
        payload: Buffer,
        execute: Execute,
        check: Check | None,
        group: str | None,
        check_after: Duration | None,
        seconds: float,
        options: SendOptions,
    ) -> SendFuture[TransactionResult]:
        """Begin a transaction; see Producer.send_in_transaction_async. `run` has the same arguments."""
        began = self._clock()
        after = None if check_after is None else _check_after(check_after)
        call = "send_in_transaction_async()"
        payload, flag, body, timing = self._built(call, topic, payload, execute, check, group, after, options)
        number = self.checker.own.send()
        transaction = _Transaction(self._asynchronous, execute, check, after, began, topic, flag, body, seconds, number)
        try:
            self._sends.take_over(topic, payload, flag, body, timing, began + seconds, transaction.sent, options)
        except BaseException:
            transaction.has_caller = False  # first: if the half message was sent nevertheless, its work does not begin
            self.checker.own.not_sent(number, topic, body)
            raise
        return SendFuture(transaction.end)

    def _built(
        self,
        call: str,
        topic: str,
        payload: Buffer,
        execute: Execute,
        check: Check | None,
        group: str | None,
        check_after: float | None,
        options: SendOptions,
    ) -> tuple[bytes, int, bytes, Timing]:
        """Check the arguments of a call. Return the payload as bytes, the flag and the body of the half message's
        record, and its timing. From this call on, `check` answers brokers' questions about transactions of this group
        and topic.

        call: the name of the called method, for the texts of errors. Raises TypeError, ConfigError, InvalidName,
        LocalProtocolError.
        """
        check_call_back("execute", execute)
        if check is not None:
            check_call_back("check", check)
        after_ms = None if check_after is None else round(check_after * 1000)
        terms = self._terms
        if terms is None or group != terms.group or after_ms != terms.check_after_ms:
            terms = self._terms = HalfTerms(self.group(group), after_ms, self.checker.producer)
        if options:
            refuse_delay(options, call)
        if isinstance(payload, list | tuple):
            raise TypeError(
                f"{call} takes one message, not a batch of {len(payload)}: call it for each, or use transaction() and "
                "send_batch()"
            )
        payload = payload_bytes(payload)
        flag, body = build_half(payload, options, terms, self._packer)
        self.checker.use(terms.group, topic, check)
        return payload, flag, body, Timing.HALF if after_ms is None else Timing.CHECKED_HALF

    def close(self, seconds: float) -> None:
        """End all transactions. If an outcome was not sent, the broker asks other producers of the group for it. Wait
        at most `seconds` for running local work.
        """
        self._asynchronous.close(seconds)
        self._ender.close()


def _message(half: SendResult, flag: int, body: bytes) -> Message:
    """Return the Message that is passed to `execute`."""
    return Message(half.partition, -1, half.message_id, flag & ~DELAYED_FLAG, body)


def _result(half: SendResult, telling: Telling) -> TransactionResult:
    """Return the result of a transaction after the producer has sent its outcome to the broker, or has failed to send
    it. Raises HalfDecided if the broker had decided another outcome before.
    """
    outcome, reply = telling.outcome, telling.reply
    if reply is None:
        log.warning("half message %d is %s, which its broker was not told: %s", half.message_id, outcome, telling.error)
        return TransactionResult(HalfOutcome.UNKNOWN, half, None, telling.error)
    if reply.outcome != outcome:
        if reply.outcome == HalfOutcome.UNKNOWN:
            gone = MessageNotFound(f"{half.partition.topic} {half.partition} has no half message {half.message_id}")
            return TransactionResult(HalfOutcome.UNKNOWN, half, None, gone)
        raise HalfDecided(half.message_id, reply.outcome, outcome)
    if outcome is HalfOutcome.ROLLED_BACK:
        return TransactionResult(outcome, half)
    return TransactionResult(outcome, half, SendResult(reply.message_id, half.partition, reply.offset, half.replicas))


def _check_after(given: Duration) -> float:
    """Return the option `check_after` in seconds. Raises WrongDuration, LocalProtocolError."""
    seconds = seconds_of("check_after", given)
    if not 0 <= seconds <= MAX_CHECK_AFTER_SECONDS:  # also false for NaN
        raise LocalProtocolError(f"check_after={given}: choose 0 to {MAX_CHECK_AFTER_SECONDS} seconds")
    return seconds
