"""The broker's constants that were tuned: unit, reason, and the benchmark to run when one is changed.

The store has a file of its own (store/tuning.py). Limits that docs/broker.md promises stand beside what they limit.
"""

from __future__ import annotations

# --- connections: `pipelined-128`, `produce-128`, and `latency` ------------------------------------------------------

TURN_SECONDS = 0.005
"""A connection whose requests have taken this long lets the others have their turn."""

ITERATION_SECONDS = 0.01
"""Turns that all connections together are given in one iteration of the reactor, and as much for what comes in."""

COUNTED_SECONDS = 0.001
"""What takes longer counts in an iteration: to count it costs one more."""

FEW_BUSY = 2
"""Connections that may wait for their turns before others with as much to do wait, too."""

BUSY_READS = 8
"""A connection that had more to do than one turn counts as busy for so many further reads."""

LARGE_WORK_BYTES = 128 << 10
"""A request that keeps so much, and takes more than a slice, begins only when there is a place for it."""

MAX_LARGE_WORKS = 16
"""Of these are under way at once: 65,536 messages take some 6 MiB beside their frame while they are stored."""

MAX_LISTINGS = 16
"""Answers that list all there is, and are made in slices, are in the making at once: 3 MB each of 10,000 groups."""

WRITE_BYTES = 64 << 10
"""Answers are handed to the transport in between when they have grown to this; smaller ones are joined."""

READ_REQUESTS = 512
"""Of one read, those that are decoded and served before others have their turn, a quarter as many if they are frames
other than SENDs: some milliseconds. A read may bring fifty thousand. Half as many cost reads of sends 5 % more: each
turn appends what it has."""

HTTP_READ_BYTES = 8 << 10
"""Read at once from an HTTP connection, whose protocol takes a chunk of one byte as slowly as a large one."""

SMALL_READ_BYTES = 64 * 1024
"""Read at once from a quiet connection: malloc serves it from its heap; beyond that each read maps fresh pages."""

LARGE_READ_BYTES = 512 * 1024
"""Read at once from one that has just filled a small read."""

RECEIVE_BYTES = 4 << 20
"""A small request takes a kibibyte of the socket's receive buffer, which grows by the payload only. Thousands of
requests would not get into it, and the fewer are read together, the more each costs."""

PAGE_ROWS = 500
"""Rows of a table that one HTML page has: more are hard to read, and links lead to the others."""

PAGE_LOGS = 512
"""Partitions that `/metrics` looks at before others may be served: a millisecond."""

PAGE_GROUPS = 1000
"""Groups that `/metrics` has rows of: with the longest names a megabyte."""

STATS_LINES = 64
"""Lines of an answer to STATS that are made before others may be served: a millisecond."""

# --- puts and sends: `pipelined`, `pipelined-128`, `partitions-1024`, `partitions-10240` -----------------------------

RUN_LEAST_COST = 100
"""A run of puts is stored as one if it costs at least this much: 1 for each put, and RUN_PARTITION_COST for each
partition. A run has 80 µs of its own, and spares 1 µs a put and 4 µs a partition."""

RUN_PARTITION_COST = 4
"""What each partition of a run counts there."""

RUN_VIEW_BYTES = 1 << 10
"""What goes to a partition is copied if it is smaller: that costs less than a view of it."""

SEND_PARTS = 128
"""Parts of a SEND_MANY that are prepared together."""

PACKED_SLICE_RECORDS = 2048
"""Compressed records of a batch that are looked at before others are served: some 3 ms."""

SEND_WAITING_PARTS = 8
"""The same of one with parts that wait for their time: what is noted of each takes a quarter of a millisecond."""

STEP_PARTITIONS = 64
"""Puts to so many partitions are appended before others are served, some milliseconds: each is a write of its own."""

STEP_NEW_LOGS = 8
"""Partitions whose files are made before others are served: each takes a third of a millisecond."""

STEP_PUTS = 256
"""Of a run whose puts are taken one by one, as many at once."""

SEND_SLICE_SECONDS = 0.003
"""Appending goes on for so long before others may be served: a part is a write of its own."""

WORK_SLICE_SECONDS = 0.003
"""The same of what follows no single request: commits, answers that waited for one sync, a lost connection's
transactions."""

COMMIT_SLICE_RECORDS = 1 << 16
"""Messages of a commit whose index units are made before others are served: 3 ms."""

# --- numbered sends, docs/client.md promises the first two; memory and the next start depend on the others -----------

SEQUENCE_SECONDS = 24 * 3600.0
"""A producer that has not sent to a partition for so long is forgotten there."""

MAX_SEQUENCES = 1 << 17
"""Producers and partitions that are remembered, some 50 MiB; beyond it some go of the address that has most."""

FORGOTTEN_SEQUENCES = 1 << 10
"""Most that go at once, a quarter of what the address has if that is less: some milliseconds."""

FEW_SEQUENCES = 8
"""If no address has more, those that were used longest ago go, whatever their address."""

REPEAT_LATE_SECONDS = 15 * 60.0
"""How long a repeated send may have been on its way, beside the time that its producer says. TCP gives up before."""

SEQUENCES_SWEPT = 1 << 9
"""Looked at between two looks at the clock."""

SEQUENCES_SWEEP_SECONDS = 60.0
"""How often the old ones are looked for, some 10 ms if there are as many as there may be."""

SEQUENCE_LOG_BYTES = 16 << 20
"""An internal log that has grown to this, and to four times what is remembered, is replaced by that."""

SEQUENCE_ROWS = 1 << 10
"""Rows of one record of that."""

# --- delayed messages: `python -m bench.delays`; docs/broker.md promises the first ones ------------------------------

DELAYED_SLEEP_SECONDS = 1.0
"""The wall clock is looked at after so long at the latest, so that a step of it is seen."""

DELAYED_LEAST_SECONDS = 0.0005
"""No timer is set for less."""

DELAYED_TURN_RECORDS = 512
DELAYED_TURN_BYTES = 256 << 10
"""What is delivered before others are served: some 3 ms."""

DELAYED_UNSAFE_SECONDS = 0.002
"""A message that is due and not yet safe is looked at again after so long: a sync takes as long."""

DELAYED_RETRY_SECONDS = (0.1, 5.0)
"""Pauses before a partition that does not take its messages is tried again: the first one, doubled up to the last."""

DELAYED_SLICE_RECORDS = 1 << 10
"""Records of a batch that are prepared before others are served: some 3 ms."""

DELAYED_SLICE_BYTES = 1 << 20
"""Bytes of them that are looked at, for the same reason: they may be property lists."""

DELAYED_UNITS = 1 << 15
"""Index units that are read together: 1 MiB."""

DELAYED_FOLLOWED_UNITS = 1 << 17
"""What a follower reads of them in a second, some 100 ms."""

DELAYED_LOG_BYTES = 128 << 20
"""A log that has grown to this, and to twice what waits, loses its oldest segments."""

DELAYED_CLEANED_BYTES = 1 << 20
"""What is written anew before others are served."""

DELAYED_CLEANING_PAUSE_SECONDS = 0.005
"""Between two such pieces."""

DELAYED_CANCELLED = 1 << 14
"""Cancelled messages that are remembered, so that a repeated cancellation is answered as the first one."""

DELAYED_LOOKED_AT = 1 << 14
"""Messages that one request for a list looks at: those of other topics count, too."""

LISTING_BYTES = 256 << 10
"""Of records that are described, or encoded, for a list in a worker thread before others get the interpreter: a
millisecond."""

LISTING_RECORD_BYTES = 4 << 10
"""What a record counts there beside its own bytes."""

LISTING_PAUSE_SECONDS = 0.00005
"""The pause in which they get it."""

DELAYED_LATENESS = 1 << 13
"""Deliveries of which the lateness is remembered for the metrics."""

# --- half messages: broker/halves -------------------------------------------------------------------------------------

HALVES_MOST_PAUSE_SECONDS = 3600.0
"""Pauses between the checks of a half message double up to this."""

HALVES_LOST_SECONDS = 1.0
"""A half message whose asker has gone is given to another one after so long."""

HALVES_SILENT_SECONDS = 10.0
"""A producer that has not asked for so long is taken for gone: its half messages are given to others of its group. Also
from when the broker begins to lead. Producers ask again after `CHECK_WAIT_SECONDS` (client/producer/tuning.py)."""

HALVES_STEP_SECONDS = 2.0
"""More than this between two looks at the clock: the broker itself stood still, and that does not count for the silence
of producers. Less than HALF_GRACE_SECONDS (protocol/limits.py): nobody is gone by a pause of the broker alone."""

HALVES_TURN_RECORDS = 256
"""Half messages whose first check is due, before others are served: some 4 ms if each has a group of its own. As long
again goes to those who ask."""

HALVES_TURN_BYTES = 1 << 20
"""Of the records that one asker is given at once."""

HALVES_CALLER_GROUPS = 1024
"""Producer groups that one connection may ask for; a producer asks for one."""

HALVES_COUNTED = 1 << 10
"""Producer groups that are counted before others are served: some milliseconds."""

HALVES_DECIDED = 1 << 16
"""Outcomes that are remembered for each internal log, so that a repeated answer is told what was decided."""

# --- pulls: `consume`, `consume-arrow`, `latency` --------------------------------------------------------------------

WAKING_SECONDS = 0.003
"""Pulls that wait are resumed for so long before others are served: there may be 65,536 for one message."""

PULL_SCAN_BYTES = 64 << 20
"""Bytes of records that one step of a filtered pull looks at, by their units only."""

PULL_SCAN_RECORDS = 1 << 16
"""Records of one answer, or looked at in one step of a filtered pull: less than a millisecond."""

PULL_MAX_LOADS = 64
"""Pieces of an index that one pull has loaded before it waits for the disk itself; a search takes a dozen."""

PULL_MAX_RUNS = 4096
"""Runs of neighbouring records that one answer of a filtered pull is put together from."""

WHERE_STEP_BYTES = 2 << 20
"""Bytes of records that one step of a pull with a filter by content reads: `python -m bench.where`."""

WHERE_SLICE_RECORDS = 2048
"""Records that are judged at once, by a filter with one condition: more would gain nothing, fewer cost more each."""

WHERE_LEAST_SLICE = 16
"""The same for a filter with many conditions: 10 ms, if each is a BETWEEN and each value a number of sixty digits."""

WHERE_SLICE_STEPS = 1 << 21
"""Steps that the LIKEs of a filter may take in one slice (`Where.searched`): 9 ms at 4 ns each. A message that could
need more by itself is given without being judged, as its reader judges it again."""

WHERE_TURN_SECONDS = 0.003
"""All filters together work so long in one turn of the reactor, and a slice more at most."""

WHERE_GATHER_SECONDS = 0.02
"""A message that was chosen waits so long for others to share its answer, while there is more to look at."""

WHERE_GAP_BYTES = 16 << 10
"""Bytes that tags have ruled out between two records that are read at once."""

WHERE_STEP_READS = 64
"""Places that one step reads, if tags leave records far from each other."""

TABLE_RECORDS = 16
"""An answer with fewer records has no table of their sizes, which would cost both sides more than it saves."""

SPAN_BYTES = 1 << 20
"""Runs that lie this close together are read at once."""

SEARCH_LOGS_PER_STEP = 64
"""So many partitions' views are made at once on the reactor thread; no scenario searches."""

# --- cold reads: `python -m bench.backlog` ---------------------------------------------------------------------------

MAX_COLD_READS = 4
"""Reads of cold data under way at once."""

MAX_COLD_READERS = 4096
"""Groups and partitions whose places in cold data are remembered; the one that was used longest ago goes first."""

COLD_WINDOWS_BYTES = 256 << 20
"""What all cold readers together may have fetched ahead, as far as the smallest window allows."""

MIN_COLD_WINDOW_BYTES = 512 << 10
"""The smallest window: what one reader fetches ahead in any case."""

LOOK_UP_MAX_LOADS = 3
"""Times that a question has the same piece of an index loaded before it waits for the disk itself."""

PACE_MIN_BYTES_PER_SECOND = 32 << 20
"""What cold readers together get in any case."""

PACE_WRITTEN_FACTOR = 1.0
"""They also get so many times what is being written in any case, so that they keep up."""

PACE_MAX_LATENESS_SECONDS = 0.001
"""Mean time by which the loop may come late to a timer; hot requests wait as long."""

PACE_MAX_WAITING_PART = 0.05
"""Part of the time that the reactor thread may be ready and have no processor: the machine has too few for its work."""

PACE_MAX_BYTES_PER_SECOND = float(8 << 30)
"""The rate of a broker with time to spare: as good as no limit."""

PACE_WINDOW_SECONDS = 0.1
"""The rate is looked at again after so long."""

PACE_TIMER_SECONDS = 0.01
"""The timer whose lateness is measured fires after so long."""

PACE_SLOWER = 0.5
"""The rate is multiplied by this if the loop is late."""

PACE_FASTER = 1.05
"""The rate is multiplied by this if the loop is in time."""

PACE_BURST_SECONDS = 0.01
"""What may be read at once, as time at the rate."""

PACE_MIN_BURST_BYTES = 1 << 20
"""What may be read at once in any case."""

# --- memory: `python -m bench`, the broker's memory at `partitions-10240`; `consume` for large answers ----------------

HEAP_MMAP_BYTES = 32 << 20
"""Buffers from here on are mapped: larger than any of the broker's, and the most that glibc takes."""

HEAP_KEPT_BYTES = 64 << 20
"""Free memory that is kept (docs/decisions/009-one-heap-for-all-threads.md); what is more for 10 s is given back."""

# --- shared consumers: `python -m bench.shared`; docs/broker.md promises the limits ---------------------------------

SHARED_SHARE = 8
"""Every so many-th message that a shared group is handed is the one that has waited longest, whatever its priority."""

SHARED_MAX_HELD = 1 << 16
"""Messages that a group may have leased, or released and not got again, on one partition: some 25 MiB."""

SHARED_MAX_AHEAD = 1_000_000
"""Messages behind these that are looked at ahead, so that urgent ones are found: 12 bytes each."""

SHARED_MAX_AHEAD_ORDERED = 100_000
"""The same for a group that takes the messages of a key in order: 1 KB each if all have other keys, else 110 bytes."""

SHARED_AHEAD_BYTES = 1 << 30
"""Bytes of messages looked at ahead: no more are read for a few urgent ones."""

SHARED_SCARCE = 64
"""Messages of one partition that a group leases, and looks at ahead, when the memory of all groups is spent."""

SHARED_MAX_RANGES = 100_000
"""Ranges of acknowledged messages between others. Beyond it the first messages go first, whatever their priority."""

SHARED_SCAN_BYTES = 1 << 20
"""Bytes that are looked at in one turn of the reactor."""

SHARED_SCAN_RECORDS = 1 << 13
"""The same for messages: a millisecond."""

SHARED_SCAN_ORDERED = 1 << 10
"""The same for a group that takes the messages of a key in order: some milliseconds."""

SHARED_LEASED = 1 << 10
"""Messages that one ACQUIRE is given at most, whatever it asks for: some milliseconds, and as many to read them."""

SHARED_SETTLED = 1 << 10
"""Rows of a SETTLE that are done before others are served: some milliseconds."""

SHARED_EXPIRED = 1 << 11
"""Leases that end, and releases that are over, in one step: some milliseconds."""

SHARED_COUNTED = 1 << 13
"""Leased or released messages that are counted before others are served: a millisecond."""

SHARED_SLICE_SECONDS = 0.003
"""Members are woken, and answered, for so long before others are served."""

SHARED_LOG_BYTES = 16 << 20
"""An internal log that has grown to this, and to four times what it says, is replaced by that."""

SHARED_READ_BYTES = 2 << 20
"""What a follower reads of such a log at once."""

SHARED_LOOKS = 32
"""Groups and partitions that look at new messages before others are served: some milliseconds."""

SHARED_MEMBERS = 4096
"""Members of a group and partition that are remembered."""

SHARED_MEMBER_SECONDS = 60.0
"""A member that has asked for nothing for so long is shown no more."""
