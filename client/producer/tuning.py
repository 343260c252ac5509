"""Constants of the producer that users cannot set. Each description states the unit and the reason, and often the
benchmark to run after a change.

The most important limits are not here, but are settings in ProducerConfig.
"""

from __future__ import annotations

# --- gathering and dividing: `python -m bench`, `produce`, `produce-128`, `futures-128`, `blocking-64` ---------------

LEAST_GATHERED = 64
"""Single messages that are sent while the partition's request is in flight are gathered into a batch of at most this
number of messages. But if more messages than this were already queued when the batch was begun, the batch may have as
many messages as were queued then. So a batch is at most as large as the rest of the queue, and a request can take about
half of a large queue and leave the other half for the next request.
"""

UNDIVIDED = 64
"""If at most this number of messages are queued, they are sent in one request, because dividing them into several
requests would cost more than it gains. A batch of send_batch is never divided, because its caller determines how much
data is in flight.
"""

TOGETHER_SECONDS = 0.05
"""Messages join a batch only if their deadlines are at most this number of seconds after the deadline of the batch's
first message, because all messages of the batch end at that first deadline.
"""

CROWD = 8
"""Usually a thread that waits for a message's answer reads the answer itself. If at least this number of messages are
queued for the next request, each with a waiting thread, a background thread reads the answers for them. With so many
threads, handing the reading from one thread to the next would cost more than it saves. The benchmark is `blocking-64`.
"""

FEW = 16
"""If a batch has at most this number of messages, they are encoded one by one and get their results one by one, because
numpy, which does this for larger batches, would cost more. The benchmark is `partitions-1024`.
"""

# --- bytes of a request: `batch`, `batch-128` ------------------------------------------------------------------------

TABLE_BYTES = 512
"""If all message bodies of a batch have the same length, and this length is at most this number of bytes, numpy copies
the bodies into the request. Larger bodies are joined with their headers without numpy, because numpy copies every body
twice.
"""

JOIN_BELOW_BYTES = 32 * 1024
"""If the average size in bytes of a request's buffers is below this number, the buffers are copied into one buffer.
Larger buffers are sent without a copy.
"""

# --- waits and tries: none is on the way of a message ----------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Interval in seconds at which the producer looks for messages whose deadline has passed. So a future ends at most this
number of seconds after its deadline.
"""

VIEW_RETRIES = 3
"""A message ends with an error after this number of attempts, if brokers refuse it although ZooKeeper says that they
accept its topic. If the data in ZooKeeper are out of date only for a moment, a few attempts are enough; if they are
permanently wrong, more attempts would not help.
"""

CONDITION_SECONDS = 0.5
"""Longest wait in seconds for the lock of a future's condition, on the thread that reads answers. The standard library
usually holds this lock for microseconds. But on a busy machine, a call of concurrent.futures.wait for very many futures
holds the locks of all of them for longer, and if an interrupt hits a thread that holds a lock, the lock stays locked
forever.
"""

LEFT_LOCKED_SECONDS = 5.0
"""If the lock of a future's condition is held for this number of seconds, the producer assumes that an interrupt has
left it locked.
"""

RESENT_TOGETHER = 100
"""Number of messages that are read together from the store of undelivered messages, and removed together once they are
sent. If the process is killed by kill -9 between the sending and the removing, the next process sends at most this
number of messages a second time.
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
"""A producer asks each broker for half messages whose outcomes the broker wants to know. If there are none, this
request waits at the broker for this number of seconds. If a producer has sent no such request for 10 s
(`HALVES_SILENT_SECONDS`), the broker regards the producer as gone. Each request names the producer's topics, so the
broker learns of a new topic within this time, too.
"""

CHECK_HALVES = 16
"""Largest number of half messages that a producer requests to check in one request."""

CHECK_TURN_SECONDS = 2.0
"""If the user's check functions are slow, the producer requests only as many half messages at once as these functions
can check within this number of seconds.
"""

LEFT_OPEN = 1 << 16
"""Largest number of undecided transactions with their own check function that the producer remembers. If there are
more, the producer forgets the oldest ones, and for them calls the topic's check function.
"""

CHECK_PAUSE_SECONDS = (0.1, 5.0)
"""Shortest and longest pause in seconds before a broker that did not answer is asked again."""

CHECK_LOOK_SECONDS = 5.0
"""At intervals of this number of seconds, the producer looks for brokers that have begun to offer a topic."""

# --- transactions whose thread does not wait: `transactions-pipelined` ------------------------------------------------

OUTCOMES_SECONDS = 0.001
"""If no request with outcomes is in flight, the outcome of a transaction is held back for at most this number of
seconds, so that one request can also report the outcomes of transactions whose local work is still queued. While a
request is in flight, this time does not matter: outcomes wait for the end of the request and are sent in the next one.
"""
