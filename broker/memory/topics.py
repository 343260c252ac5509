"""The names of the internal topics. No client can name one: a topic of messages has no `/`."""

from __future__ import annotations

__all__ = ["DELAYED_TOPIC", "HALVES_TOPIC", "SEQUENCES_TOPIC", "SHARED_TOPIC"]

SEQUENCES_TOPIC = "/sequences"
"""Rows of numbered sends (sequence_rows.py)."""

DELAYED_TOPIC = "/delayed"
"""Delayed messages (delayed_records.py)."""

HALVES_TOPIC = "/halves"
"""Half messages, which wait for the outcome of a transaction (delayed_records.py)."""

SHARED_TOPIC = "/shared"
"""Leases and acknowledgements of shared consumers (broker/shared/rows.py)."""
