"""Tuned constants of the shared consumer: unit, reason. Benchmark: `python -m bench.shared`."""

from __future__ import annotations

PREFETCH_SECONDS = 0.2
"""Seconds of work to lease ahead: many round trips to a broker, but little that others wait for. With 0.1 s sixty-four
members on one partition do a quarter less, because their requests are small; with 0.3 s little more."""

REFILL_PART = 0.5
"""Request more when this part of the messages leased ahead is used up: requests stay few."""

FIRST_PREFETCH = 1
"""Messages leased ahead by each worker before the time per message is known."""

RATE_WEIGHT = 0.1
"""Weight of the newest message in the mean time per message."""

STALE_PART = 0.5
"""A message that has waited here for this part of its lease goes back to the broker unhandled."""

IN_VAIN_SECONDS = 0.5
"""Longest pause after an unexpectedly empty answer: the broker does not wait, or announces more."""

KEEP_PART = 0.5
"""run() extends a lease when this part of it has passed."""

LATE_ACKNOWLEDGED = 1024
"""Number of late acknowledged messages per partition that a member remembers, so that it need not handle them again."""

WITHDRAW_SECONDS = 0.1
"""After this time a closing member tells a broker again that it wants no more, until its request is answered."""

MAX_SETTLED = 4096
"""Settlements of one request; the broker accepts more."""

SETTLE_AT = 256
"""So many settlements of a partition are sent without waiting for others."""

SETTLE_ALONG = 8
"""So many settlements of a partition go along with a request for more messages; fewer wait for others, because the
request may be the first of many for one message each."""

UNBURIED = 1024
"""Number of messages without a stored dead letter of which run() remembers the failure: half a megabyte."""
