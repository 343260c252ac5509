"""Transactions with check-back: a half message, local work, and the outcome, which brokers ask for if it is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from metaq.coordination.logs import get_log
from metaq.protocol.errors import (
    ConfigError,
    HalfDecided,
    LocalProtocolError,
    MessageNotFound,
    MetaqError,
    NoPartition,
    NotLeader,
)
from metaq.protocol.halves import EndHalfReply, HalfOutcome
from metaq.protocol.limits import MAX_CHECK_AFTER_SECONDS, check_group
from metaq.protocol.record import CHECK_AFTER_PROPERTY, DELAYED_FLAG, HALF_PROPERTY, Buffer

from ..connection import Connection
from ..message import Message
from ..questions.asking import Follow
from ..values import SendResult
from .building import SendOptions, build_half
from .checking import Check, Checker, outcome_of
from .delays import refuse_delay
from .ending import Ender
from .outgoing import Outgoing
from .packing import Packer

__all__ = ["Execute", "HalfTransactions", "TransactionResult"]

log = get_log(__name__)

_PAUSE_SECONDS = 0.1

Execute = Callable[[Message], bool | None]
"""execute(message): the local work. True = commit, False = roll back, None = not known yet."""


class TransactionResult(NamedTuple):
    """What became of `send_in_transaction`.

    outcome: COMMITTED, ROLLED_BACK, or UNKNOWN: `execute` could not tell, or the broker could not be told; it asks
    later. half: of the half message. sent: of the message that consumers see; None unless committed. cause: why the
    broker could not be told; None if it was, or there was nothing to tell.
    """

    outcome: HalfOutcome
    half: SendResult
    sent: SendResult | None = None
    cause: MetaqError | None = None


class HalfTransactions:
    """The part of a producer that its transactions with check-back share. Any thread."""

    def __init__(
        self,
        send: Callable[[Outgoing], SendResult],
        connect: Callable[[str, int, float], Connection],
        follow: Follow,
        checker: Checker,
        group: str | None,
        packer: Packer | None,
        request_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """connect(topic, broker id, seconds): as Transactional.connect. group: of ProducerConfig. packer: compresses
        payloads."""
        self.checker = checker
        self._send = send
        self._connect = connect
        self._follow = follow
        self._group = group
        self._packer = packer
        self._request_seconds = request_seconds
        self._clock = clock
        self._sleep = sleep
        self._ender = Ender(clock)

    def group(self, given: str | None) -> str:
        """The producer group. Raises ConfigError, InvalidName, TypeError."""
        group = self._group if given is None else given
        if group is None:
            raise ConfigError(
                "group", None, "name the producers that can answer for each other: ProducerConfig(producer_group=...)"
            )
        return check_group(group)

    def run(
        self,
        topic: str,
        payload: Buffer,
        execute: Execute,
        check: Check | None,
        group: str,
        check_after: float | None,
        deadline: float,
        seconds: float,
        options: SendOptions,
    ) -> TransactionResult:
        """As Producer.send_in_transaction. deadline: of the half message. seconds: for the outcome."""
        refuse_delay(options, "send_in_transaction()")
        if isinstance(payload, list | tuple):
            raise TypeError(
                f"send_in_transaction() takes one message, not a batch of {len(payload)}: call it for each, or use "
                "transaction() and send_batch()"
            )
        own = _properties(group, check_after)
        outgoing = build_half(topic, payload, deadline, options, own, self._packer)
        self.checker.use(group, topic, check)
        half = self._send(outgoing)
        self.checker.begin(half.message_id)
        try:
            flag = outgoing.flag & ~DELAYED_FLAG
            message = Message(half.partition, -1, half.message_id, flag, bytes(outgoing.body))
            outcome = outcome_of(execute(message), "execute")
        finally:
            self.checker.end(half.message_id)
        if outcome is HalfOutcome.UNKNOWN:
            return TransactionResult(outcome, half)
        try:
            reply = self._end(half, outcome, self._clock() + seconds)
        except MetaqError as error:
            log.warning("half message %d is %s, which its broker was not told: %s", half.message_id, outcome, error)
            return TransactionResult(HalfOutcome.UNKNOWN, half, None, error)
        if reply.outcome != outcome:
            if reply.outcome == HalfOutcome.UNKNOWN:
                gone = MessageNotFound(f"{half.partition.topic} {half.partition} has no half message {half.message_id}")
                return TransactionResult(HalfOutcome.UNKNOWN, half, None, gone)
            raise HalfDecided(half.message_id, reply.outcome, outcome)
        sent = None
        if outcome is HalfOutcome.COMMITTED:
            sent = SendResult(reply.message_id, half.partition, reply.offset, half.replicas)
        return TransactionResult(outcome, half, sent)

    def _end(self, half: SendResult, outcome: HalfOutcome, deadline: float) -> EndHalfReply:
        """Until the broker, or who leads its set then, has taken it: it may be told again and again."""
        partition = half.partition
        while True:
            try:
                left = deadline - self._clock()
                connection = self._connect(partition.topic, partition.broker, left)
                wait = min(self._request_seconds, max(0.001, left))
                return self._ender.end(connection, partition, half.message_id, outcome, wait)
            except MetaqError as error:
                if not (error.retriable or isinstance(error, NotLeader | NoPartition)):
                    raise
                pause = self._follow(error) if isinstance(error, NotLeader) else None
                pause = _PAUSE_SECONDS if pause is None else pause
                if self._clock() + pause >= deadline:
                    raise
                self._sleep(pause)


def _properties(group: str, check_after: float | None) -> Mapping[str, str]:
    if check_after is None:
        return {HALF_PROPERTY: group}
    if isinstance(check_after, bool) or not isinstance(check_after, int | float):
        raise TypeError(f"check_after={check_after!r} is no number of seconds but {type(check_after).__name__}")
    if not 0 <= check_after <= MAX_CHECK_AFTER_SECONDS:
        raise LocalProtocolError(f"check_after={check_after}: choose 0 to {MAX_CHECK_AFTER_SECONDS} seconds")
    return {HALF_PROPERTY: group, CHECK_AFTER_PROPERTY: str(round(check_after * 1000))}
