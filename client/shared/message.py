"""A message that is leased to this member of a shared group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from metaq.protocol.errors import ClientError

from ..records.message import Message
from ..records.results import TopicPartition

if TYPE_CHECKING:
    from ..serializers.base import ValueReader

__all__ = ["SharedMessage"]


class SharedMessage(Message):
    """A Message that is leased to this member for a limited time. A dead letter that was redriven to the group has the
    partition, offset and id of the original message.

    attempts: the number of the present attempt to handle the message, counted from 1 over all members. An earlier
    delivery counts as an attempt in two cases: the handler failed, or the lease ended without a settlement while the
    member had leased no other message (docs/messages.md). lease_until: the value of time.monotonic() at which the lease
    ends, as this member computes it. leased_from, leased_at: the partition and offset of the leased record. For a
    retried message or a dead letter, they differ from those of the original message.
    """

    leased_from: TopicPartition
    leased_at: int

    attempts: int = 1
    lease_until: float = 0.0
    token: int = 0
    """The token that identifies this lease at the broker."""
    is_settled: bool = False
    """Whether the message was acknowledged, released or lost, so that it cannot be settled any more."""
    is_suspect: bool = False
    """Whether an earlier lease of the message ended without a settlement, so that the message may have killed its
    worker.
    """
    handed_at: float = math.inf
    reader: ValueReader | None = None
    """The ValueReader that decodes the payload with the consumer's deserializer. The reader is not included when the
    message is pickled.
    """

    @property
    def value(self) -> Any:
        """The payload, decoded by the consumer's deserializer, as in Message.value."""
        if self.reader is None:
            raise ClientError(
                "this message's consumer has no deserializer: write SharedConsumer(deserializer=…), or "
                "message.decode(…)"
            )
        return self.reader.value_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "reader"}
