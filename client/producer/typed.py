"""Wrappers for producers and transactions that send values instead of payloads. A serializer turns each value into a
payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, Unpack

from metaq.protocol.errors import ConfigError
from metaq.protocol.record import Buffer

from ..records.message import Message
from ..records.results import SendResult
from ..runtime.durations import Duration
from ..serializers.base import Deserializer, Serializer
from .building import SendOptions, list_of
from .outgoing import OnDelivery

if TYPE_CHECKING:
    from .check_back import Execute, TransactionResult
    from .own_halves import Check
    from .producer import Producer

__all__ = ["TypedProducer", "TypedSend", "TypedSends"]

T = TypeVar("T")


class SendsOne(Protocol):
    """The methods that transactions and all kinds of producers have in common."""

    def send(
        self, topic: str, payload: Buffer, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> SendResult: ...


class Sends(SendsOne, Protocol):
    """The methods that a transaction and a Producer have in common."""

    def send_batch(
        self,
        topic: str,
        payloads: Iterable[Buffer | Message],
        *,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Sequence[SendResult]: ...


class TypedSend(Generic[T]):
    """A wrapper around a producer or a transaction (the sender). Its methods take values instead of payloads: the
    serializer turns each value into a payload, and the serializer's content type is stored in the message.

    Each method does the same as the sender's method of the same name, and also raises the serializer's exceptions. A
    wrapper has no threads or connections and need not be closed, so create one wherever you need it.
    """

    def __init__(self, sender: SendsOne, serializer: Serializer[T]) -> None:
        if isinstance(serializer, type) or not isinstance(serializer, Serializer):
            raise ConfigError("serializer", repr(serializer), "give it a serializer, such as Json()")
        self._sender = sender
        self._serializer = serializer

    def _options(self, options: SendOptions) -> SendOptions:
        options["content_type"] = self._serializer.content_type
        return options

    def send(
        self, topic: str, value: T, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> SendResult:
        """Send one value, as Producer.send sends a payload."""
        return self._sender.send(topic, self._serializer.dumps(value), timeout=timeout, **self._options(options))


class TypedSends(TypedSend[T]):
    """A wrapper for a transaction or a Producer. In addition to TypedSend, it can send several values in one batch."""

    def __init__(self, sender: Sends, serializer: Serializer[T]) -> None:
        super().__init__(sender, serializer)
        self._sends = sender

    def send_batch(
        self, topic: str, values: Iterable[T], *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> Sequence[SendResult]:
        """Send values together, as Producer.send_batch sends payloads."""
        payloads = list(map(self._serializer.dumps, list_of(values, "values")))
        return self._sends.send_batch(topic, payloads, timeout=timeout, **self._options(options))


class TypedProducer(TypedSends[T]):
    """A wrapper for a Producer. In addition to TypedSends, it has the methods that only a Producer has."""

    def __init__(self, producer: Producer, serializer: Serializer[T]) -> None:
        super().__init__(producer, serializer)
        self._producer = producer

    def send_async(
        self, topic: str, value: T, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> Future[SendResult]:
        """Send one value and return a future, as Producer.send_async does for a payload."""
        payload = self._serializer.dumps(value)
        return self._producer.send_async(topic, payload, timeout=timeout, **self._options(options))

    def produce(
        self,
        topic: str,
        value: T,
        *,
        on_delivery: OnDelivery | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        """Send one value without a future, as Producer.produce does for a payload."""
        payload = self._serializer.dumps(value)
        self._producer.produce(topic, payload, on_delivery=on_delivery, timeout=timeout, **self._options(options))

    def request(
        self,
        topic: str,
        value: T,
        *,
        timeout: Duration | None = None,
        deserializer: Deserializer | None = None,
        **options: Unpack[SendOptions],
    ) -> Future[Message]:
        """Send a value as a request, as Producer.request does for a payload. deserializer: decodes the reply's payload
        into the reply's `value`. The default is the serializer of this wrapper.
        """
        payload = self._serializer.dumps(value)
        reads = self._serializer if deserializer is None else deserializer
        return self._producer.request(topic, payload, timeout=timeout, deserializer=reads, **self._options(options))

    def reply(
        self, request: Message, value: T, *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> SendResult:
        """Answer a request with a value, as Producer.reply does with a payload."""
        payload = self._serializer.dumps(value)
        return self._producer.reply(request, payload, timeout=timeout, **self._options(options))

    def send_in_transaction(
        self,
        topic: str,
        value: T,
        *,
        execute: Execute,
        check: Check | None = None,
        group: str | None = None,
        check_after: Duration | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> TransactionResult:
        """Send one value that consumers see only if local work is committed, as Producer.send_in_transaction does for a
        payload.
        """
        return self._producer.send_in_transaction(
            topic,
            self._serializer.dumps(value),
            execute=execute,
            check=check,
            group=group,
            check_after=check_after,
            timeout=timeout,
            **self._options(options),
        )

    def send_in_transaction_async(
        self,
        topic: str,
        value: T,
        *,
        execute: Execute,
        check: Check | None = None,
        group: str | None = None,
        check_after: Duration | None = None,
        timeout: Duration | None = None,
        **options: Unpack[SendOptions],
    ) -> Future[TransactionResult]:
        """Do what `send_in_transaction` does and return a future, as Producer.send_in_transaction_async does."""
        return self._producer.send_in_transaction_async(
            topic,
            self._serializer.dumps(value),
            execute=execute,
            check=check,
            group=group,
            check_after=check_after,
            timeout=timeout,
            **self._options(options),
        )

    def send_batch_async(
        self, topic: str, values: Iterable[T], *, timeout: Duration | None = None, **options: Unpack[SendOptions]
    ) -> Future[Sequence[SendResult]]:
        """Send values together and return a future, as Producer.send_batch_async does for payloads."""
        payloads = list(map(self._serializer.dumps, list_of(values, "values")))
        return self._producer.send_batch_async(topic, payloads, timeout=timeout, **self._options(options))
