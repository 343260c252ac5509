"""A message leased to this member."""

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
    """A Message that this member has for a limited time. A dead letter that was redriven to the group has the
    partition, offset and id of the original message.

    attempts: the number of attempts by any member, including this one. A failed handler counts. So does a member that
    ended, or let the lease expire, while it had only this message (docs/messages.md). lease_until: when the lease ends,
    by time.monotonic(), as known to this member. leased_from, leased_at: the partition and byte position of the leased
    record.
    """

    leased_from: TopicPartition
    leased_at: int

    attempts: int = 1
    lease_until: float = 0.0
    token: int = 0
    """Token of this lease, for the broker."""
    is_settled: bool = False
    """Whether it was acknowledged, released or lost, so that it cannot be settled any more."""
    is_suspect: bool = False
    """Whether an earlier lease of the message ended without a settlement: the message may have killed its worker."""
    handed_at: float = math.inf
    reader: ValueReader | None = None
    """The reader with the consumer's deserializer; it is not pickled."""

    @property
    def value(self) -> Any:
        """The decoded payload, as Message.value."""
        if self.reader is None:
            raise ClientError(
                "this message's consumer has no deserializer: write SharedConsumer(deserializer=…), or "
                "message.decode(…)"
            )
        return self.reader.value_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "reader"}
