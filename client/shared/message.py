"""A message that is leased to this member."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from metaq.protocol.errors import ClientError

from ..records.message import Message
from ..records.values import TopicPartition

if TYPE_CHECKING:
    from ..serializers.base import ValueReader

__all__ = ["SharedMessage"]


class SharedMessage(Message):
    """A Message that this member has for some time. One of the dead letters that was sent to its group again is the
    message as it was: partition, offset and id are those of the first time.

    attempts: how often it was worked on, by any member, this time included: a handler that failed counts, and a member
    that ended, or let the lease run out, while it had this message alone (docs/messages.md). lease_until: when the
    lease ends, by time.monotonic(), as far as this member knows. leased_from, leased_at: the partition and the byte
    position in it that the lease is of.
    """

    leased_from: TopicPartition
    leased_at: int

    attempts: int = 1
    lease_until: float = 0.0
    token: int = 0
    """Of this lease, for the broker."""
    is_settled: bool = False
    """Whether it was acknowledged or released, or lost, so that nothing more can be said of it."""
    is_suspect: bool = False
    """Whether a lease of it has ended without a word: it may have killed its worker."""
    handed_at: float = math.inf
    reader: ValueReader | None = None
    """Of the consumer's deserializer; it is not pickled."""

    @property
    def value(self) -> Any:
        """As Message.value."""
        if self.reader is None:
            raise ClientError(
                "this message's consumer has no deserializer: write SharedConsumer(deserializer=…), or "
                "message.decode(…)"
            )
        return self.reader.value_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "reader"}
