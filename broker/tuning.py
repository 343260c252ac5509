"""The broker's tuned constants. Each has its unit and reason, and the heading of its section names the benchmarks to
run when it is changed.

The store has its own file (store/tuning.py). Limits that docs/broker.md promises are beside the code that they limit.
"""

from __future__ import annotations

# --- connections: `pipelined-128`, `produce-128`, and `latency` ------------------------------------------------------

TURN_SECONDS = 0.005
"""When the requests of one connection have taken this long, the other connections have their turn."""

ITERATION_SECONDS = 0.01
"""The time in one iteration of the reactor for the turns of all connections. Incoming data may take the same time
again.
"""

COUNTED_SECONDS = 0.001
"""Work on incoming data is counted in an iteration only if it takes longer than this, because counting costs one more
iteration.
"""

MOST_EVENTS = 512
"""Maximum number of file descriptors that one iteration of the reactor serves. For example, the end of a connection
costs 22 µs.
"""

FEW_BUSY = 2
"""If at least this many busy connections wait for their turns, other busy connections have to wait, too."""

BUSY_READS = 8
"""A connection that had more work than one turn allows counts as busy for this many more reads."""

LARGE_WORK_BYTES = 128 << 10
"""A request that holds this many bytes of memory, and takes more than one slice, begins only when one of
MAX_LARGE_WORKS places is free.
"""

MAX_LARGE_WORKS = 16
"""How many such requests may be in progress at once. A request with 65,536 messages takes some 6 MiB in addition to its
frame while the messages are stored.
"""

MAX_LISTINGS = 16
"""How many answers with a listing may be in progress at once. They are built in slices, and each takes 3 MB with 10,000
groups.
"""

WRITE_BYTES = 64 << 10
"""Gathered answers go to the transport when they have this many bytes; smaller answers are joined."""

READ_REQUESTS = 512
"""How many requests of one read are decoded and served before other connections have their turn. It is a quarter of
this for frames other than SENDs. This takes some milliseconds. One read may bring 50,000 requests. With half as many
per turn, reads of sends cost 5 % more, because each turn appends its own messages.
"""

HTTP_READ_BYTES = 8 << 10
"""How many bytes are read at once from an HTTP connection. The HTTP code takes as long for a chunk of one byte as for a
large chunk.
"""

SMALL_READ_BYTES = 64 * 1024
"""How many bytes are read at once from a quiet connection. For this size malloc uses its heap; for a larger read it
maps fresh pages.
"""

LARGE_READ_BYTES = 512 * 1024
"""How many bytes are read at once from a connection that has just filled a small read."""

RECEIVE_BYTES = 4 << 20
"""Bytes of the socket's receive buffer. A small request takes a kibibyte of the buffer, but the buffer grows only by
the payload. With a smaller buffer thousands of requests would not fit, and each request costs more if fewer requests
are read together.
"""

PAGE_ROWS = 500
"""How many rows of a table one HTML page shows. More rows are hard to read; links lead to the others."""

PAGE_LOGS = 512
"""How many partitions `/metrics` examines before other requests are served: 1 ms."""

PAGE_GROUPS = 1000
"""Maximum number of groups for which `/metrics` has rows. With the longest names the rows take 1 MB."""

STATS_NAMED = 100
"""Maximum number of read-only partitions, late partitions or groups that an item of `stats` names."""

STATS_LINES = 64
"""How many lines of an answer to STATS are built before other requests are served: 1 ms."""

# --- puts and sends: `pipelined`, `pipelined-128`, `partitions-1024`, `partitions-10240` -----------------------------

RUN_LEAST_COST = 100
"""A run of puts is stored in one step if its cost is at least this: 1 for each put, and RUN_PARTITION_COST for each
partition. The step itself takes 80 µs, and saves 1 µs for each put and 4 µs for each partition.
"""

RUN_PARTITION_COST = 4
"""The cost of each partition of a run."""

RUN_VIEW_BYTES = 1 << 10
"""The data of a run is copied if it has fewer bytes than this for each partition. Then a copy costs less than a
view.
"""

SEND_PARTS = 128
"""How many parts of a SEND_MANY are decoded and checked in one step. Other requests are served between the steps."""

PACKED_SLICE_RECORDS = 2048
"""How many compressed records of a batch are checked before other requests are served: some 3 ms."""

SEND_WAITING_PARTS = 8
"""The same as SEND_PARTS for a SEND_MANY with delayed parts. The bookkeeping of each delayed part takes a quarter of a
millisecond.
"""

STEP_PARTITIONS = 64
"""To how many partitions puts are appended before other requests are served: some milliseconds, because each append is
a write.
"""

STEP_NEW_LOGS = 8
"""For how many partitions files are created before other requests are served. Each partition takes a third of a
millisecond.
"""

STEP_PUTS = 256
"""How many puts of a run are handled in one step if the puts of the run have to be checked one by one."""

SEND_SLICE_SECONDS = 0.003
"""How long a SEND_MANY appends before other requests are served. Each of its parts is a write."""

WORK_SLICE_SECONDS = 0.003
"""The same for work that belongs to no single request: commits, answers that waited for one sync, a lost connection's
transactions."""

COMMIT_SLICE_RECORDS = 1 << 16
"""For how many messages of a commit index units are built before other requests are served: 3 ms."""

# --- numbered sends, docs/client.md promises the first two; memory and the next start depend on the others -----------

SEQUENCE_SECONDS = 24 * 3600.0
"""If a producer has not sent to a partition for this time, its entry for the partition is forgotten."""

MAX_SEQUENCES = 1 << 17
"""How many pairs of producer and partition are remembered; they take some 50 MiB. Above this number, some pairs of the
address that has the most are forgotten.
"""

FORGOTTEN_SEQUENCES = 1 << 10
"""How many pairs are forgotten at once, or a quarter of the address's pairs if that is less: some milliseconds."""

FEW_SEQUENCES = 8
"""If no address has more pairs than this, the least recently used pairs of all addresses are forgotten."""

REPEAT_LATE_SECONDS = 15 * 60.0
"""How long a repeated send may have been on its way, in addition to the time that its producer states. TCP gives up
earlier.
"""

SEQUENCES_SWEPT = 1 << 9
"""How many pairs a search for old ones examines before it reads the clock again."""

SEQUENCES_SWEEP_SECONDS = 60.0
"""The time between two searches for old pairs; a search takes some 10 ms with MAX_SEQUENCES."""

COMPACTION_PAUSE_SECONDS = 60.0
"""If an internal log could not be shortened, this is tried again after this time."""

SEQUENCE_LOG_BYTES = 16 << 20
"""When an internal log has grown to this many bytes, and to four times the remembered state, that state replaces it."""

SEQUENCE_ROWS = 1 << 10
"""Maximum number of rows in one record of that state."""

# --- delayed messages: `python -m bench.delays`; docs/broker.md promises the first ones ------------------------------

DELAYED_SLEEP_SECONDS = 1.0
"""The longest time between two looks at the wall clock, so that a step of the clock is noticed."""

DELAYED_LEAST_SECONDS = 0.0005
"""The shortest time for which a timer is set."""

DELAYED_TURN_RECORDS = 512
DELAYED_TURN_BYTES = 256 << 10
"""How many delayed messages, and how many bytes, are delivered before other requests are served: some 3 ms."""

DELAYED_UNSAFE_SECONDS = 0.002
"""The time after which a message that is due but not yet safe is looked at again. A sync takes about this time."""

DELAYED_RETRY_SECONDS = (0.1, 5.0)
"""The first and the longest pause before messages are delivered again to a partition that has not accepted them. The
pauses double.
"""

DELAYED_JOINED_BYTES = 1 << 16
"""A few delayed messages are joined in one buffer if they have at most this many bytes, so that the garbage collector
has fewer objects to follow.
"""

DELAYED_SLICE_RECORDS = 1 << 10
"""How many delayed records of a batch are prepared before other requests are served: some 3 ms."""

DELAYED_SLICE_BYTES = 1 << 20
"""How many bytes of these records are examined before other requests are served. The bytes may be property lists."""

DELAYED_UNITS = 1 << 15
"""How many index units are read at once: 1 MiB."""

DELAYED_FOLLOWED_UNITS = 1 << 17
"""How many index units a follower reads each second; they take some 100 ms."""

DELAYED_LOG_BYTES = 128 << 20
"""When a log of delayed messages has grown to this many bytes, and to twice its waiting records, its oldest segments
are removed.
"""

DELAYED_CLEANED_BYTES = 1 << 20
"""How many bytes of waiting messages from the oldest segment are written again before other requests are served."""

DELAYED_CLEANING_PAUSE_SECONDS = 0.005
"""The pause in seconds between two pieces of this work."""

DELAYED_CANCELLED = 1 << 14
"""How many cancelled messages are remembered, so that a repeated cancellation gets the answer of the first one."""

DELAYED_LOOKED_AT = 1 << 14
"""How many messages one request for a list examines, including messages of other topics."""

LISTING_BYTES = 256 << 10
"""How many bytes of records a worker thread describes or encodes for a list before other threads get the interpreter:
1 ms."""

LISTING_RECORD_BYTES = 4 << 10
"""How many bytes each record counts towards LISTING_BYTES in addition to its own bytes."""

LISTING_PAUSE_SECONDS = 0.00005
"""The pause in seconds in which other threads get the interpreter."""

DELAYED_LATENESS = 1 << 13
"""Number of deliveries whose lateness the metrics remember."""

# --- half messages: broker/halves -------------------------------------------------------------------------------------

HALVES_MOST_PAUSE_SECONDS = 3600.0
"""The longest pause between the checks of a half message; pauses double up to this."""

HALVES_LOST_SECONDS = 1.0
"""When the connection of a producer that was asked about a half message is lost, another producer is asked after this
time.
"""

HALVES_SILENT_SECONDS = 10.0
"""A producer that has not asked for checks for this time counts as gone, and its half messages go to other producers of
its group. The time also runs from the moment when the broker begins to lead. Producers ask again after
`CHECK_WAIT_SECONDS` (client/producer/tuning.py).
"""

HALVES_STEP_SECONDS = 2.0
"""If more time than this has passed between two looks at the clock, the broker itself was paused, and the time does not
count as silence of the producers. The value is less than HALF_GRACE_SECONDS (protocol/limits.py), so that a mere pause
of the broker does not make a producer count as gone.
"""

HALVES_TURN_RECORDS = 256
"""How many half messages whose first check is due are handled before other requests are served: some 4 ms if each has
its own group. The answers to asking producers may take as much time again.
"""

HALVES_TURN_BYTES = 1 << 20
"""How many bytes of records one asking producer gets at once."""

HALVES_CALLER_GROUPS = 1024
"""For how many producer groups one connection may ask; a producer asks for only one group."""

HALVES_COUNTED = 1 << 10
"""How many producer groups are counted before other requests are served: some milliseconds."""

HALVES_DECIDED = 1 << 16
"""How many outcomes each internal log remembers, so that a repeated request gets the decided outcome."""

# --- pulls: `consume`, `consume-arrow`, `latency` --------------------------------------------------------------------

WAKING_SECONDS = 0.003
"""How long waiting pulls are resumed before other requests are served. Up to 65,536 pulls may wait for one message."""

PULL_SCAN_BYTES = 64 << 20
"""How many bytes of records one step of a filtered pull examines. It reads only the index units of the records."""

PULL_SCAN_RECORDS = 1 << 16
"""Maximum number of records in one answer, and of records that one step of a filtered pull examines: less than a
millisecond.
"""

PULL_MAX_LOADS = 64
"""How many pieces of an index may be loaded in the background for one pull. After that the pull reads from the disk
directly, because the pieces leave the page cache again and again. A search needs a dozen pieces.
"""

PULL_MAX_RUNS = 4096
"""Maximum number of runs of neighbouring records in one answer of a filtered pull."""

WHERE_STEP_BYTES = 2 << 20
"""How many bytes of records one step of a pull with a filter by content reads: `python -m bench.where`."""

WHERE_SLICE_RECORDS = 2048
"""How many records a filter with one condition checks at once. More records gain nothing; with fewer, each record costs
more.
"""

WHERE_LEAST_SLICE = 16
"""The same for a filter with many conditions: 10 ms if each condition is a BETWEEN and each value is a number of sixty
digits.
"""

WHERE_SLICE_STEPS = 1 << 21
"""How many steps the LIKEs of a filter may take in one slice (`Where.searched`): 9 ms at 4 ns for each step. A single
message that could need more steps is delivered unchecked, because its reader checks it again.
"""

WHERE_TURN_SECONDS = 0.003
"""How long all filters together work in one turn of the reactor. They may take at most one slice longer."""

WHERE_GATHER_SECONDS = 0.02
"""How long a matching message waits for other matching messages for its answer, while there are more messages to
examine.
"""

WHERE_GAP_BYTES = 16 << 10
"""The largest gap in bytes between two records that are read together. The records in the gap are excluded by their
tags.
"""

WHERE_STEP_READS = 64
"""How many separate places one step reads if the records with the wanted tags are far from each other."""

TABLE_RECORDS = 16
"""An answer with fewer records than this has no table of their sizes, because the table would cost both sides more than
it saves.
"""

SPAN_BYTES = 1 << 20
"""Records within a span of this many bytes are read at once."""

SEARCH_LOGS_PER_STEP = 64
"""For how many partitions a search creates views in one step on the reactor thread. No benchmark measures searches."""

# --- cold reads: `python -m bench.backlog` ---------------------------------------------------------------------------

MAX_COLD_READS = 4
"""How many reads of cold data are under way at once."""

MAX_COLD_READERS = 4096
"""For how many pairs of partition and group the position in cold data is remembered. The least recently used one is
forgotten first.
"""

COLD_WINDOWS_BYTES = 256 << 20
"""How many bytes all cold readers together may fetch ahead. Each reader gets an equal share as its window, but at least
MIN_COLD_WINDOW_BYTES.
"""

MIN_COLD_WINDOW_BYTES = 512 << 10
"""The smallest window: each cold reader may always fetch this many bytes ahead."""

LOOK_UP_MAX_LOADS = 3
"""How often the same piece of an index may be loaded in the background for one lookup. After that the lookup reads from
the disk directly.
"""

PACE_MIN_BYTES_PER_SECOND = 32 << 20
"""The minimum rate that all cold readers together always get."""

PACE_WRITTEN_FACTOR = 1.0
"""All cold readers together also always get this multiple of the rate of writes, so that they keep up."""

PACE_MAX_LATENESS_SECONDS = 0.001
"""The mean time by which the reactor may be late for a timer. Requests that need no cold data wait as long."""

PACE_MAX_WAITING_PART = 0.05
"""The maximum fraction of the time in which the reactor thread may be ready to run but have no processor. Above it, the
machine has too few processors for its work.
"""

PACE_MAX_BYTES_PER_SECOND = float(8 << 30)
"""The highest rate, for a broker with time to spare. It is practically no limit."""

PACE_WINDOW_SECONDS = 0.1
"""The time between two adjustments of the rate."""

PACE_TIMER_SECONDS = 0.01
"""The period of the timer whose lateness is measured."""

PACE_SLOWER = 0.5
"""The rate is multiplied by this if the reactor is late."""

PACE_FASTER = 1.05
"""The rate is multiplied by this if the reactor is in time."""

PACE_BURST_SECONDS = 0.01
"""How much may be read at once: the bytes that the rate allows in this time."""

PACE_MIN_BURST_BYTES = 1 << 20
"""How many bytes may be read at once, however low the rate is."""

# --- memory: `python -m bench`, the broker's memory at `partitions-10240`; `consume` for large answers ----------------

HEAP_MMAP_BYTES = 32 << 20
"""Buffers of at least this size are mapped by malloc. It is larger than any buffer of the broker, and the maximum of
glibc.
"""

HEAP_KEPT_BYTES = 64 << 20
"""How many bytes of free memory are kept (docs/decisions/009-one-heap-for-all-threads.md). More is returned to the
system after 10 s.
"""

# --- shared consumers: `python -m bench.shared`; docs/broker.md promises the limits ---------------------------------

SHARED_SHARE = 8
"""Of this many messages that a shared group gets, one is the oldest message, regardless of priority."""

SHARED_MAX_HELD = 1 << 16
"""How many messages of one partition a group may hold: those that are leased, or were released and not leased again.
They take some 25 MiB.
"""

SHARED_MAX_AHEAD = 1_000_000
"""How many messages after the held ones are examined ahead, so that urgent messages are found. Each takes 12 bytes."""

SHARED_MAX_AHEAD_ORDERED = 100_000
"""The same for a group that takes the messages of a key in order. Each message takes 1 KB if all keys differ, otherwise
110 bytes.
"""

SHARED_AHEAD_BYTES = 1 << 30
"""How many bytes of messages are examined ahead. No more bytes are read in order to find a few urgent messages."""

SHARED_SCARCE = 64
"""How many messages of one partition a group leases, and how many it examines ahead, when the memory for all groups is
used up.
"""

SHARED_MAX_RANGES = 100_000
"""Maximum number of separate ranges of acknowledged messages. Above it, the oldest messages are leased first,
regardless of priority.
"""

SHARED_SCAN_BYTES = 1 << 20
"""How many bytes of messages are examined in one turn of the reactor."""

SHARED_SCAN_RECORDS = 1 << 13
"""How many messages are examined in one turn of the reactor: 1 ms."""

SHARED_SCAN_ORDERED = 1 << 10
"""The same for a group that takes the messages of a key in order: some milliseconds."""

SHARED_LEASED = 1 << 10
"""Maximum number of messages for one ACQUIRE, even if it asks for more. Leasing them takes some milliseconds, and
reading them takes as long.
"""

SHARED_SETTLED = 1 << 10
"""How many rows of a SETTLE are processed before other requests are served: some milliseconds."""

SHARED_EXPIRED = 1 << 11
"""How many expired leases and due releases one step handles: some milliseconds."""

SHARED_COUNTED = 1 << 13
"""How many leased or released messages are counted before other requests are served: 1 ms."""

SHARED_SLICE_SECONDS = 0.003
"""How long members are woken and answered before other requests are served."""

SHARED_LOG_BYTES = 16 << 20
"""When an internal log has grown to this many bytes, and to four times its state, that state replaces it."""

SHARED_READ_BYTES = 2 << 20
"""How many bytes of the internal log of a shared group a follower reads at once."""

SHARED_LOOKS = 32
"""How many groups' queues examine new messages before other requests are served: some milliseconds."""

SHARED_MEMBERS = 4096
"""Maximum number of members that are remembered for one group and partition."""

SHARED_MEMBER_SECONDS = 60.0
"""A member that has not sent a request for this time is no longer shown."""
