"""The names of the internal topics, which only the broker uses. Clients cannot use these names, because the name of a
topic must not contain `/`.
"""

from __future__ import annotations

__all__ = ["DELAYED_TOPIC", "HALVES_TOPIC", "SEQUENCES_TOPIC", "SHARED_TOPIC"]

SEQUENCES_TOPIC = "/sequences"
"""The internal topic for rows about sends that have a producer's sequence number (sequence_rows.py)."""

DELAYED_TOPIC = "/delayed"
"""The internal topic for delayed messages (delayed_records.py)."""

HALVES_TOPIC = "/halves"
"""The internal topic for half messages, which wait for the outcome of a transaction (delayed_records.py)."""

SHARED_TOPIC = "/shared"
"""The internal topic for leases and acknowledgements of shared consumers (broker/shared/rows.py)."""
