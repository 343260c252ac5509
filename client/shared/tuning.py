"""Tuned constants of the shared consumer, each with its unit and reason. The constants were measured by the benchmark
`python -m bench.shared`.
"""

from __future__ import annotations

PREFETCH_SECONDS = 0.2
"""A member leases as many messages ahead as its workers handle in this number of seconds. The time is as long as many
round trips to a broker, but short enough that few messages are kept from other members. With 0.1 s instead of 0.2 s,
sixty-four members on one partition handle a quarter fewer messages per second, because their requests are smaller and
so more numerous. With 0.3 s they handle only a few more messages per second than with 0.2 s.
"""

REFILL_PART = 0.5
"""A member wants to lease a certain number of messages ahead. It requests more messages only when at most this share of
that number is left, that is, leased but not taken by a thread. So each request asks for many messages.
"""

FIRST_PREFETCH = 1
"""Number of messages that a member leases ahead for each handler thread, until it has measured how long the handling of
a message takes.
"""

RATE_WEIGHT = 0.1
"""Weight (0 … 1) of the newest message's handling time in the running mean of the handling times, from which the member
computes how many messages to lease ahead.
"""

STALE_PART = 0.5
"""When less than this share of a message's lease time is left and no caller has taken the message, it is released, so
that other members can lease it.
"""

IN_VAIN_SECONDS = 0.5
"""Longest pause in seconds after an unexpectedly empty answer. An empty answer is unexpected if the broker did not wait
as long as requested, or has announced more messages.
"""

KEEP_PART = 0.5
"""run() extends the lease of a message when at most this share of the lease time is left."""

LATE_ACKNOWLEDGED = 1024
"""If a member has acknowledged a message after the message's lease had ended, or must send the acknowledgement again,
it remembers the message, in order not to handle it again. It remembers this number of messages per partition.
"""

WITHDRAW_SECONDS = 0.1
"""A closing member withdraws a request again at this interval in seconds, until the request is answered."""

MAX_SETTLED = 4096
"""Largest number of settlements (acknowledgements, releases and extensions) in one request. The broker would accept
more.
"""

SETTLE_AT = 256
"""When a partition has this number of unsent settlements, they are sent without waiting for more settlements."""

SETTLE_ALONG = 8
"""When a member requests more messages of a partition, it also sends the partition's unsent settlements if there are at
least this number of them. If there are fewer, they wait for further settlements. Otherwise a member that requests one
message at a time would send only a few settlements with each of its many requests.
"""

UNBURIED = 1024
"""Largest number of failures that run() remembers because no broker has stored their dead letters yet. This number of
failures takes about half a megabyte of memory.
"""
