"""The shared consumer's constants that were tuned: unit, reason. Benchmark: `python -m bench.shared`."""

from __future__ import annotations

PREFETCH_SECONDS = 0.2
"""So much work is leased ahead: many round trips to a broker, and little that others wait for. With 0.1 s sixty-four
members on one partition do a quarter less, as their requests are small; with 0.3 s little more."""

REFILL_PART = 0.5
"""More is asked for when so much of what is leased ahead is used up: requests stay few."""

FIRST_PREFETCH = 1
"""Messages leased ahead by each worker before anybody knows how long one takes."""

RATE_WEIGHT = 0.1
"""Of the newest message in the mean time that one takes."""

STALE_PART = 0.5
"""A message that has waited here for so much of its lease goes back to the broker, unworked."""

IN_VAIN_SECONDS = 0.5
"""The longest pause behind an answer that brings nothing and should have: the broker does not wait, or says that it has
more."""

KEEP_PART = 0.5
"""run() extends a lease when so much of it has passed."""

LATE_ACKNOWLEDGED = 1024
"""Messages of a partition that were acknowledged late, which a member remembers: it need not work on them again."""

WITHDRAW_SECONDS = 0.1
"""A member that closes tells a broker again after this time that it wants no more, until it has the answer to what it
has asked for."""

MAX_SETTLED = 4096
"""Settlements of one request; the broker takes more."""

SETTLE_AT = 256
"""So many settlements of a partition wait for no others."""

SETTLE_ALONG = 8
"""So many settlements of a partition go with a request for more messages; fewer wait for others, as the request may be
the first of many for one message each."""

UNBURIED = 1024
"""Messages whose dead letter no broker has taken, of which run() remembers why they failed: half a megabyte."""
