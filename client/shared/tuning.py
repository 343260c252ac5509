"""Tuned constants of the shared consumer, each with its unit and reason. Benchmark: `python -m bench.shared`."""

from __future__ import annotations

PREFETCH_SECONDS = 0.2
"""Seconds of work to lease ahead. This is as long as many round trips to a broker, but keeps few messages from other
members. With 0.1 s, sixty-four members on one partition handle a quarter fewer messages, because their requests are
small; with 0.3 s they handle only a few more.
"""

REFILL_PART = 0.5
"""More messages are requested when at most this share of the messages leased ahead is left. So there are few
requests.
"""

FIRST_PREFETCH = 1
"""Number of messages leased ahead for each worker before the time per message is known."""

RATE_WEIGHT = 0.1
"""Weight of the newest message in the running mean of the time per message."""

STALE_PART = 0.5
"""A message that nobody has taken goes back to the broker when less than this share of its lease is left."""

IN_VAIN_SECONDS = 0.5
"""Longest pause in seconds after an unexpectedly empty answer: the broker did not wait as requested, or it announces
more messages.
"""

KEEP_PART = 0.5
"""run() extends a lease when at most this share of the lease is left."""

LATE_ACKNOWLEDGED = 1024
"""Number of late acknowledged messages per partition that a member remembers, so that it does not handle them again."""

WITHDRAW_SECONDS = 0.1
"""Interval in seconds at which a closing member withdraws a request again, until the request is answered."""

MAX_SETTLED = 4096
"""Largest number of settlements in one request. The broker would accept more."""

SETTLE_AT = 256
"""When a partition has this number of settlements, they are sent without waiting for more."""

SETTLE_ALONG = 8
"""If a partition has at least this number of settlements, they are sent together with a request for more messages.
Fewer settlements wait for others, because the request may be the first of many requests for one message each.
"""

UNBURIED = 1024
"""Number of messages whose failures run() remembers because their dead letters are not stored yet. They take half a
megabyte.
"""
