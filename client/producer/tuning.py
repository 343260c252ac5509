"""Constants of the producer that users cannot set. Each is described with its unit and reason, and if there is one,
with the name of the benchmark to run after a change.

The most important sizes are settings in ProducerConfig.
"""

from __future__ import annotations

# --- gathering and dividing: `python -m bench`, `produce`, `produce-128`, `futures-128`, `blocking-64` ---------------

LEAST_GATHERED = 64
"""Number of messages that a batch may always gather. A batch may gather more messages only up to the number of messages
that were queued before it. So one request leaves half of a large queue to the next request.
"""

UNDIVIDED = 64
"""If at most this number of messages are queued, they are sent in one request, because dividing them into several
requests would cost more than it gains. A batch of send_batch is never divided, because its caller determines how much
data is in flight.
"""

TOGETHER_SECONDS = 0.05
"""If the deadlines of messages differ by at most this number of seconds, the messages may share the deadline of the
first message.
"""

CROWD = 8
"""If at least this number of messages, each with a waiting thread, are queued for the next request, the background
thread reads the answers. With so many threads, passing the role of reading from one thread to the next costs each
thread more than it saves. The benchmark is `blocking-64`.
"""

FEW = 16
"""If a request gathers at most this number of messages, they are encoded one by one and get their results one by one,
because a numpy call would cost more. The benchmark is `partitions-1024`.
"""

# --- bytes of a request: `batch`, `batch-128` ------------------------------------------------------------------------

TABLE_BYTES = 512
"""If message bodies have equal lengths of at most this number of bytes, numpy copies them into the request. numpy
passes over the bodies twice. So for larger bodies it costs less to join the headers and bodies one after the other.
"""

JOIN_BELOW_BYTES = 32 * 1024
"""If the average size in bytes of a request's buffers is below this number, the buffers are copied into one buffer.
Larger buffers are sent without a copy.
"""

# --- waits and tries: none is on the way of a message ----------------------------------------------------------------

LOOK_SECONDS = 0.25
"""The producer looks for messages with a passed deadline at this interval in seconds. So a future ends at most this
number of seconds after its deadline.
"""

VIEW_RETRIES = 3
"""Number of attempts to send a message that brokers refuse although ZooKeeper shows that they accept its topic. If
brokers refuse a message like this, the data in ZooKeeper is either out of date for a moment, or permanently wrong.
"""

CONDITION_SECONDS = 0.5
"""Longest wait in seconds for the lock of a future's condition. The standard library usually holds this lock for
microseconds. On a busy machine, a call of concurrent.futures.wait for very many futures holds the locks of all their
conditions for longer. If an interrupt comes while a lock is held, the lock stays held permanently.
"""

LEFT_LOCKED_SECONDS = 5.0
"""If the lock of a future's condition is held for this number of seconds, the producer assumes that an interrupt has
left it locked.
"""

RESENT_TOGETHER = 100
"""Number of messages that are read together from the store of undelivered messages, and removed together once they are
sent. If the process is killed by kill -9, at most this number of messages are sent twice.
"""

LAST_WAIT_SECONDS = 1.0
"""close() of the store of undelivered messages waits at most this number of seconds for the threads that write and send
the messages.
"""

# --- numbered requests: no benchmark --------------------------------------------------------------------------------

REPEAT_SECONDS = 12 * 3600.0
"""A request with unknown outcome is repeated for at most this number of seconds. The limit is below one day, because
brokers forget a request's sequence number after a day.
"""

IDLE_SECONDS = 60.0
"""Longest sleep in seconds of a requester's thread while no request waits for its reply. The first request wakes the
thread.
"""
# --- answers to brokers that ask for transactions: no benchmark -------------------------------------------------------

CHECK_WAIT_SECONDS = 4.0
"""A producer's request for half messages waits at the broker for this number of seconds. The broker answers with half
messages if it wants to know their outcomes. If a producer has sent no such request for 10 s (`HALVES_SILENT_SECONDS`),
the broker regards the producer as gone. If the producer begins to use a further topic, the broker learns of it with the
next request.
"""

CHECK_HALVES = 16
"""Largest number of half messages that a producer requests to check in one request."""

CHECK_TURN_SECONDS = 2.0
"""If the check functions are slow, the producer requests only as many half messages at once as it can check within this
number of seconds.
"""

LEFT_OPEN = 1 << 16
"""Largest number of undecided transactions with their own check function that the producer remembers. For further
transactions, the producer calls the topic's check function.
"""

CHECK_PAUSE_SECONDS = (0.1, 5.0)
"""Shortest and longest pause in seconds before a broker that did not answer is asked again."""

CHECK_LOOK_SECONDS = 5.0
"""The producer looks for brokers that have begun to offer a topic at this interval in seconds."""

# --- transactions whose thread does not wait: `transactions-pipelined` ------------------------------------------------

OUTCOMES_SECONDS = 0.001
"""The outcome of a transaction waits at most this number of seconds for the outcomes of queued local work, so that one
request reports all of them. The outcome waits only if no request is in flight. While a request is in flight, outcomes
gather for the next request in any case.
"""
