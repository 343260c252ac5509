"""Tuned constants of the shared consumer: unit, reason. Benchmark: `python -m bench.shared`."""

from __future__ import annotations

PREFETCH_SECONDS = 0.2
"""Seconds of work to lease ahead: many round trips to a broker, but few messages withheld from other members. With 0.1
s sixty-four members on one partition do a quarter less, because their requests are small; with 0.3 s little more."""

REFILL_PART = 0.5
"""Share of the messages leased ahead: request more when it is used up, so that requests stay few."""

FIRST_PREFETCH = 1
"""Messages leased ahead by each worker before the time per message is known."""

RATE_WEIGHT = 0.1
"""Weight of the newest message in the mean time per message."""

STALE_PART = 0.5
"""Share of its lease after which a message that nobody took goes back to the broker unhandled."""

IN_VAIN_SECONDS = 0.5
"""Longest pause after an unexpectedly empty answer: the broker does not wait, or announces more."""

KEEP_PART = 0.5
"""Share of a lease after which run() extends it."""

LATE_ACKNOWLEDGED = 1024
"""Number of late acknowledged messages per partition that a member remembers, so that it need not handle them again."""

WITHDRAW_SECONDS = 0.1
"""Seconds after which a closing member withdraws a request again, until the request is answered."""

MAX_SETTLED = 4096
"""Most settlements of one request; the broker accepts more."""

SETTLE_AT = 256
"""Number of settlements of a partition that are sent without waiting for more."""

SETTLE_ALONG = 8
"""Number of settlements of a partition that are sent together with a request for more messages. Fewer wait for others,
because the request may be the first of many for one message each."""

UNBURIED = 1024
"""Number of messages without a stored dead letter whose failures run() remembers: half a megabyte."""
