"""Constants of producing that are not options, each with its unit, the reason, and the benchmark to run after a change.

The sizes that most runs depend on are options (ProducerConfig).
"""

from __future__ import annotations

# --- gathering and dividing: `python -m bench`, `produce`, `produce-128`, `futures-128`, `blocking-64` ---------------

LEAST_GATHERED = 64
"""Least limit for the number of messages that a batch may gather. Otherwise the limit is the number of messages queued
before it, so that a request can leave half of a large queue to the next one."""

UNDIVIDED = 64
"""Up to this number, messages are sent in one request: dividing them would cost more than it gains. Batches built by
send_batch are not divided: their sender determines how much is in flight."""

TOGETHER_SECONDS = 0.05
"""Messages whose deadlines differ by at most this many seconds may share the deadline of the first one."""

CROWD = 8
"""Number of threads that wait for the next request from which on the background thread reads: handing the reading from
one thread to the next would cost each of them more than it saves. `blocking-64`."""

FEW = 16
"""Up to this number, gathered messages are encoded, and get their results, one by one: a numpy call costs more.
`partitions-1024`."""

# --- bytes of a request: `batch`, `batch-128` ------------------------------------------------------------------------

TABLE_BYTES = 512
"""Largest size of equal bodies that numpy copies; numpy passes over them twice, so above this size joining costs
less."""

JOIN_BELOW_BYTES = 32 * 1024
"""Buffers smaller than this on average are copied into one; larger ones are sent without a copy."""

# --- waits and tries: none is on the way of a message ----------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Seconds between two looks for overdue messages; a future ends at most this much late."""

VIEW_RETRIES = 3
"""Number of tries of a message that brokers refuse although ZooKeeper lists their topic: the view is stale, or stays
wrong."""

CONDITION_SECONDS = 0.5
"""Longest wait in seconds for a future's condition. The standard library holds one for microseconds; it holds all
conditions of a `wait` on very many futures for longer on a busy machine, and any one permanently after an interrupt
while it holds it."""

LEFT_LOCKED_SECONDS = 5.0
"""Seconds after which a locked condition counts as left locked by an interrupt."""

RESENT_TOGETHER = 100
"""Number of messages that are read together, and removed together once they are sent; at most this many are sent twice
after a kill -9."""

LAST_WAIT_SECONDS = 1.0
"""Longest wait in seconds of close() of the store of undelivered messages for the threads that write and send them."""

# --- numbered requests: no benchmark --------------------------------------------------------------------------------

REPEAT_SECONDS = 12 * 3600.0
"""Longest time for which a request with unknown outcome is repeated: brokers forget its number after a day."""

IDLE_SECONDS = 60.0
"""Longest sleep in seconds of a requester's thread while no request waits for its reply; the first one wakes it."""
# --- answers to brokers that ask for transactions: no benchmark -------------------------------------------------------

CHECK_WAIT_SECONDS = 4.0
"""Seconds that one request waits for a question. A broker regards a producer as gone that has not asked for 10 s
(`HALVES_SILENT_SECONDS`). It learns of a further topic with the next request."""

CHECK_HALVES = 16
"""Most half messages in one answer."""

CHECK_TURN_SECONDS = 2.0
"""With slow checks, only as many half messages are requested as are answered within this many seconds."""

LEFT_OPEN = 1 << 16
"""Number of transactions whose own check is remembered until they are decided; for further ones, the topic's check
answers."""

CHECK_PAUSE_SECONDS = (0.1, 5.0)
"""Shortest and longest pause in seconds before a broker that did not answer is asked again."""

CHECK_LOOK_SECONDS = 5.0
"""Seconds between two looks for brokers that are new to a topic."""

# --- transactions whose thread does not wait: `transactions-pipelined` ------------------------------------------------

OUTCOMES_SECONDS = 0.001
"""Longest wait in seconds of an outcome for outcomes of queued local work, if nothing is in flight; during a request
they gather anyway."""
