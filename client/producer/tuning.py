"""The constants of producing that are no options: unit, reason, and the benchmark to run when one is changed.

The sizes that most runs depend on are options (ProducerConfig).
"""

from __future__ import annotations

# --- gathering and dividing: `python -m bench`, `produce`, `produce-128`, `futures-128`, `blocking-64` ---------------

LEAST_GATHERED = 64
"""Messages that a batch may gather at least; and as many as are queued in front of it, so that a request can leave half
of a large queue to the one behind it."""

UNDIVIDED = 64
"""Up to so many messages go in one request: dividing them would cost more than it gains. Batches that were made as such
are not divided: how much is under way is their sender's choice."""

TOGETHER_SECONDS = 0.05
"""Messages whose deadlines lie so far apart may share the first one's."""

CROWD = 8
"""So many threads that wait for the next request leave the reading to the background thread: handing that from one to
the next would cost each of them more than it saves. `blocking-64`."""

FEW = 16
"""Up to so many gathered messages are encoded, and get their results, one by one: numpy costs more per call than they
do. `partitions-1024`."""

# --- bytes of a request: `batch`, `batch-128` ------------------------------------------------------------------------

TABLE_BYTES = 512
"""Bodies of one size up to here are copied by numpy, which passes over them twice; above, joining costs less."""

JOIN_BELOW_BYTES = 32 * 1024
"""Buffers smaller than this on average are copied into one; larger ones are sent from where they are."""

# --- waits and tries: none is on the way of a message ----------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Between two looks at all messages for those whose time is over; so a future ends at most this much late."""

VIEW_RETRIES = 3
"""Tries of a message that brokers refuse although ZooKeeper lists their topic: the view is stale, or stays wrong."""

CONDITION_SECONDS = 0.5
"""The standard library holds a future's condition for microseconds. It holds all of a `wait` on very many futures for
longer on a busy machine, and any for ever if an interrupt came in between."""

LEFT_LOCKED_SECONDS = 5.0
"""A condition that is locked for so long was left so by an interrupt."""

RESENT_TOGETHER = 100
"""Messages read, and removed once sent, together; as many at most are sent again after a kill -9."""

LAST_WAIT_SECONDS = 1.0
"""close() of the store of undelivered messages waits at most so long for the threads that write and send them."""

# --- numbered requests: no benchmark --------------------------------------------------------------------------------

REPEAT_SECONDS = 12 * 3600.0
"""A request whose outcome is not known is not repeated for longer: brokers forget its number after a day."""

IDLE_SECONDS = 60.0
"""Longest sleep of a requester's thread while no request waits for its reply; the first one wakes it."""
# --- answers to brokers that ask for transactions: no benchmark -------------------------------------------------------

CHECK_WAIT_SECONDS = 4.0
"""One request waits so long for a question. A broker takes a producer for gone that has not asked for 10 s
(`HALVES_SILENT_SECONDS`), and learns of a further topic with the next request."""

CHECK_HALVES = 16
"""Half messages that one answer may bring at most."""

CHECK_TURN_SECONDS = 2.0
"""Checks that take long: so many are asked for that they have been answered after so long."""

LEFT_OPEN = 1 << 16
"""Transactions of a producer whose own check is remembered until they are decided; beyond, their topic's answers."""

CHECK_PAUSE_SECONDS = (0.1, 5.0)
"""Pauses before a broker that cannot be asked is tried again."""

CHECK_LOOK_SECONDS = 5.0
"""How often brokers that are new to a topic are looked for."""

# --- transactions whose thread does not wait: `transactions-pipelined` ------------------------------------------------

OUTCOMES_SECONDS = 0.001
"""An outcome waits at most so long for those of local work that waits for a thread, if nothing is under way; else they
gather anyway."""
