"""Constants of the producer that are not options. Each has its unit, its reason, and the benchmark to run after a
change.

The most important sizes are options (ProducerConfig).
"""

from __future__ import annotations

# --- gathering and dividing: `python -m bench`, `produce`, `produce-128`, `futures-128`, `blocking-64` ---------------

LEAST_GATHERED = 64
"""A batch may always gather this number of messages. It may gather more only up to the number of messages that were
queued before it, so that one request leaves half of a large queue to the next request.
"""

UNDIVIDED = 64
"""Up to this number, messages are sent in one request: dividing them would cost more than it gains. Batches built by
send_batch are not divided: the caller determines how much is in flight.
"""

TOGETHER_SECONDS = 0.05
"""Messages whose deadlines differ by at most this many seconds may share the deadline of the first one."""

CROWD = 8
"""If at least this number of messages, each with a waiting thread, are queued for the next request, the background
thread reads the answers. With so many threads, passing the reading from one thread to the next costs each of them more
than it saves. `blocking-64`.
"""

FEW = 16
"""Up to this number, gathered messages are encoded one by one and get their results one by one, because a numpy call
would cost more. `partitions-1024`.
"""

# --- bytes of a request: `batch`, `batch-128` ------------------------------------------------------------------------

TABLE_BYTES = 512
"""Largest size in bytes of equally long bodies that numpy copies. numpy passes over the bodies twice, so above this
size joining them costs less.
"""

JOIN_BELOW_BYTES = 32 * 1024
"""Buffers whose average size is below this number are copied into one buffer; larger buffers are sent without a
copy.
"""

# --- waits and tries: none is on the way of a message ----------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Seconds between two looks for overdue messages; a future ends at most this much late."""

VIEW_RETRIES = 3
"""Number of tries to send a message that brokers refuse although ZooKeeper lists their topic. In this case the view of
ZooKeeper is either stale for a moment, or wrong for good.
"""

CONDITION_SECONDS = 0.5
"""Longest wait in seconds for the lock of a future's condition. The standard library usually holds this lock for
microseconds. On a busy machine, a `wait` on very many futures holds the locks of all their conditions for longer. If an
interrupt comes while a lock is held, the lock stays held permanently.
"""

LEFT_LOCKED_SECONDS = 5.0
"""If a condition is locked for this many seconds, it counts as left locked by an interrupt."""

RESENT_TOGETHER = 100
"""Number of messages that are read together from the store of undelivered messages, and removed together once they are
sent. At most this many messages are sent twice after a kill -9.
"""

LAST_WAIT_SECONDS = 1.0
"""Longest time in seconds for which close() of the store of undelivered messages waits for the threads that write and
send the messages.
"""

# --- numbered requests: no benchmark --------------------------------------------------------------------------------

REPEAT_SECONDS = 12 * 3600.0
"""Longest time in seconds for which a request with unknown outcome is repeated. It is below one day, because brokers
forget a request's number after a day.
"""

IDLE_SECONDS = 60.0
"""Longest sleep in seconds of a requester's thread while no request waits for its reply. The first request wakes the
thread.
"""
# --- answers to brokers that ask for transactions: no benchmark -------------------------------------------------------

CHECK_WAIT_SECONDS = 4.0
"""Seconds for which one request waits at the broker for half messages to check. If a producer has sent no such request
for 10 s (`HALVES_SILENT_SECONDS`), the broker regards the producer as gone. The broker learns of a further topic with
the next request.
"""

CHECK_HALVES = 16
"""Largest number of half messages in one answer."""

CHECK_TURN_SECONDS = 2.0
"""If checks are slow, the producer requests only as many half messages as it can check within this many seconds."""

LEFT_OPEN = 1 << 16
"""Number of undecided transactions whose own check function is remembered. For further transactions, the topic's check
function answers.
"""

CHECK_PAUSE_SECONDS = (0.1, 5.0)
"""Shortest and longest pause in seconds before a broker that did not answer is asked again."""

CHECK_LOOK_SECONDS = 5.0
"""Seconds between two looks for brokers that are new to a topic."""

# --- transactions whose thread does not wait: `transactions-pipelined` ------------------------------------------------

OUTCOMES_SECONDS = 0.001
"""Longest time in seconds for which an outcome waits for the outcomes of queued local work if no request is in flight.
While a request is in flight, outcomes gather anyway.
"""
