"""One row for each kind of message that has an internal log."""

from __future__ import annotations

from ..store.internal_logs import InternalTopic, InternalTopics
from ..store.tuning import DELAYED_SEGMENT_BYTES
from .sequence_rows import cut_torn_writes
from .topics import DELAYED_TOPIC, HALVES_TOPIC, SEQUENCES_TOPIC, SHARED_TOPIC

__all__ = ["KINDS"]

KINDS: InternalTopics = {
    # first: torn writes are cut off before the other logs are read
    SEQUENCES_TOPIC: InternalTopic("metaqsequences", 1 << 30, recovered=cut_torn_writes),
    # a delivery without its mark would be repeated
    DELAYED_TOPIC: InternalTopic("metaqdelayed", DELAYED_SEGMENT_BYTES, with_messages=True),
    HALVES_TOPIC: InternalTopic("metaqhalves", DELAYED_SEGMENT_BYTES, with_messages=True),
    SHARED_TOPIC: InternalTopic("metaqshared", 1 << 30),
}
"""The internal topics with which a broker's store is opened."""
