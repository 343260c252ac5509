"""Constants of producing that are not options: unit, reason, and the benchmark to run after a change.

The sizes that most runs depend on are options (ProducerConfig).
"""

from __future__ import annotations

# --- gathering and dividing: `python -m bench`, `produce`, `produce-128`, `futures-128`, `blocking-64` ---------------

LEAST_GATHERED = 64
"""Least number of messages that a batch may gather; and as many as are queued before it, so that a request can leave
half of a large queue to the next one."""

UNDIVIDED = 64
"""Up to so many messages go in one request: dividing them would cost more than it gains. Batches built as such are not
divided: their sender determines how much is in flight."""

TOGETHER_SECONDS = 0.05
"""Messages whose deadlines differ by at most this may share the first one's."""

CROWD = 8
"""If so many threads wait for the next request, the background thread reads: handing the reading from one to the next
would cost each of them more than it saves. `blocking-64`."""

FEW = 16
"""Up to so many gathered messages are encoded, and get their results, one by one: a numpy call costs more.
`partitions-1024`."""

# --- bytes of a request: `batch`, `batch-128` ------------------------------------------------------------------------

TABLE_BYTES = 512
"""Bodies of equal size up to this are copied by numpy, which passes over them twice; above, joining costs less."""

JOIN_BELOW_BYTES = 32 * 1024
"""Buffers smaller than this on average are copied into one; larger ones are sent without a copy."""

# --- waits and tries: none is on the way of a message ----------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Interval between two looks for overdue messages; a future ends at most this much late."""

VIEW_RETRIES = 3
"""Tries of a message that brokers refuse although ZooKeeper lists their topic: the view is stale, or stays wrong."""

CONDITION_SECONDS = 0.5
"""The standard library holds a future's condition for microseconds. It holds all of a `wait` on very many futures for
longer on a busy machine, and any for ever after an interrupt in between."""

LEFT_LOCKED_SECONDS = 5.0
"""A condition that is locked for so long was left locked by an interrupt."""

RESENT_TOGETHER = 100
"""Messages read, and removed once sent, together; at most as many are sent again after a kill -9."""

LAST_WAIT_SECONDS = 1.0
"""close() of the store of undelivered messages waits at most so long for the threads that write and send them."""

# --- numbered requests: no benchmark --------------------------------------------------------------------------------

REPEAT_SECONDS = 12 * 3600.0
"""Longest time for which a request with unknown outcome is repeated: brokers forget its number after a day."""

IDLE_SECONDS = 60.0
"""Longest sleep of a requester's thread while no request waits for its reply; the first one wakes it."""
# --- answers to brokers that ask for transactions: no benchmark -------------------------------------------------------

CHECK_WAIT_SECONDS = 4.0
"""One request waits so long for a question. A broker regards a producer as gone that has not asked for 10 s
(`HALVES_SILENT_SECONDS`), and learns of a further topic with the next request."""

CHECK_HALVES = 16
"""Half messages that one answer may bring at most."""

CHECK_TURN_SECONDS = 2.0
"""With slow checks, only so many are requested that all are answered within this time."""

LEFT_OPEN = 1 << 16
"""Number of transactions whose own check is remembered until they are decided; beyond, their topic's answers."""

CHECK_PAUSE_SECONDS = (0.1, 5.0)
"""Pauses before a broker that did not answer is asked again."""

CHECK_LOOK_SECONDS = 5.0
"""How often the producer looks for brokers that are new to a topic."""

# --- transactions whose thread does not wait: `transactions-pipelined` ------------------------------------------------

OUTCOMES_SECONDS = 0.001
"""How long an outcome waits at most for outcomes of queued local work, if nothing is in flight; otherwise they gather
anyway."""
