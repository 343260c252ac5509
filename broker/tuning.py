"""The broker's tuned constants: unit, reason, and the benchmark to run when one is changed.

The store has its own file (store/tuning.py). Limits that docs/broker.md promises are beside the code that they limit.
"""

from __future__ import annotations

# --- connections: `pipelined-128`, `produce-128`, and `latency` ------------------------------------------------------

TURN_SECONDS = 0.005
"""A connection whose requests have taken this long gives the others their turn."""

ITERATION_SECONDS = 0.01
"""The time for the turns of all connections in one iteration of the reactor, and the same again for incoming data."""

COUNTED_SECONDS = 0.001
"""Work on incoming data that takes longer counts in an iteration; counting costs one more iteration."""

MOST_EVENTS = 512
"""Descriptors that one iteration of the reactor serves: the end of a connection costs 22 µs."""

FEW_BUSY = 2
"""How many connections may wait for their turns before others with as much to do have to wait, too."""

BUSY_READS = 8
"""A connection that had more to do than one turn counts as busy for so many more reads."""

LARGE_WORK_BYTES = 128 << 10
"""A request that keeps so much memory, and takes more than a slice, begins only when there is a place for it."""

MAX_LARGE_WORKS = 16
"""The number of places: 65,536 messages take some 6 MiB beside their frame while they are stored."""

MAX_LISTINGS = 16
"""How many listing answers, which are made in slices, may be made at once: 3 MB each with 10,000 groups."""

WRITE_BYTES = 64 << 10
"""Gathered answers go to the transport when they have grown to this; smaller ones are joined."""

READ_REQUESTS = 512
"""How many requests of one read are decoded and served before others have their turn, a quarter of that for frames
other than SENDs: some milliseconds. A read may bring 50,000. With half as many, reads of sends cost 5 % more, because
each turn appends what it has."""

HTTP_READ_BYTES = 8 << 10
"""How much is read at once from an HTTP connection, whose protocol takes as long for a chunk of one byte as for a large
one."""

SMALL_READ_BYTES = 64 * 1024
"""How much is read at once from a quiet connection: malloc takes it from its heap; a larger read maps fresh pages."""

LARGE_READ_BYTES = 512 * 1024
"""How much is read at once from a connection that has just filled a small read."""

RECEIVE_BYTES = 4 << 20
"""The socket's receive buffer. A small request takes a kibibyte of it, but it grows only by the payload. Otherwise
thousands of requests would not fit, and the fewer are read together, the more each costs."""

PAGE_ROWS = 500
"""How many rows of a table one HTML page has: more are hard to read, and links lead to the others."""

PAGE_LOGS = 512
"""How many partitions `/metrics` looks at before others are served: 1 ms."""

PAGE_GROUPS = 1000
"""For how many groups `/metrics` has rows: 1 MB with the longest names."""

STATS_NAMED = 100
"""How many read-only partitions, late partitions or groups an item of `stats` names."""

STATS_LINES = 64
"""How many lines of an answer to STATS are made before others are served: 1 ms."""

# --- puts and sends: `pipelined`, `pipelined-128`, `partitions-1024`, `partitions-10240` -----------------------------

RUN_LEAST_COST = 100
"""A run of puts is stored as one if it costs at least this much: 1 for each put, and RUN_PARTITION_COST for each
partition. A run itself takes 80 µs, and spares 1 µs a put and 4 µs a partition."""

RUN_PARTITION_COST = 4
"""The cost of each partition of a run."""

RUN_VIEW_BYTES = 1 << 10
"""A run's data for a partition are copied if they are smaller: a copy costs less than a view then."""

SEND_PARTS = 128
"""How many parts of a SEND_MANY are decoded and checked in one step; other requests run between the steps."""

PACKED_SLICE_RECORDS = 2048
"""How many compressed records of a batch are checked before others are served: some 3 ms."""

SEND_WAITING_PARTS = 8
"""As SEND_PARTS, for a SEND_MANY with delayed parts: the bookkeeping of each takes a quarter of a millisecond."""

STEP_PARTITIONS = 64
"""How many partitions get puts before others are served: some milliseconds, because each append is a write."""

STEP_NEW_LOGS = 8
"""How many partitions get files before others are served: each takes a third of a millisecond."""

STEP_PUTS = 256
"""How many puts of a run are handled at once if they are taken one by one."""

SEND_SLICE_SECONDS = 0.003
"""How long a SEND_MANY appends before others are served: each part is a write."""

WORK_SLICE_SECONDS = 0.003
"""The same for work that belongs to no single request: commits, answers that waited for one sync, a lost connection's
transactions."""

COMMIT_SLICE_RECORDS = 1 << 16
"""For how many messages of a commit index units are made before others are served: 3 ms."""

# --- numbered sends, docs/client.md promises the first two; memory and the next start depend on the others -----------

SEQUENCE_SECONDS = 24 * 3600.0
"""A producer that has not sent to a partition for so long is forgotten there."""

MAX_SEQUENCES = 1 << 17
"""How many pairs of producer and partition are remembered, some 50 MiB. Above it some of the address with most go."""

FORGOTTEN_SEQUENCES = 1 << 10
"""How many go at once, or a quarter of the address's if that is less: some milliseconds."""

FEW_SEQUENCES = 8
"""If no address has more, the least recently used ones of all addresses go."""

REPEAT_LATE_SECONDS = 15 * 60.0
"""How long a repeated send may have been on its way, in addition to its producer's time. TCP gives up earlier."""

SEQUENCES_SWEPT = 1 << 9
"""How many are looked at between two looks at the clock."""

SEQUENCES_SWEEP_SECONDS = 60.0
"""The time between two searches for old ones; a search takes some 10 ms with MAX_SEQUENCES."""

COMPACTION_PAUSE_SECONDS = 60.0
"""An internal log that could not be made shorter is tried again after this time."""

SEQUENCE_LOG_BYTES = 16 << 20
"""An internal log that has grown to this, and to four times the remembered state, is replaced by that state."""

SEQUENCE_ROWS = 1 << 10
"""How many rows one record of that state has."""

# --- delayed messages: `python -m bench.delays`; docs/broker.md promises the first ones ------------------------------

DELAYED_SLEEP_SECONDS = 1.0
"""The longest time between two looks at the wall clock, so that a step of it is seen."""

DELAYED_LEAST_SECONDS = 0.0005
"""The shortest time for which a timer is set."""

DELAYED_TURN_RECORDS = 512
DELAYED_TURN_BYTES = 256 << 10
"""How much is delivered before others are served: some 3 ms."""

DELAYED_UNSAFE_SECONDS = 0.002
"""When to look again at a message that is due but not safe yet: a sync takes as long."""

DELAYED_RETRY_SECONDS = (0.1, 5.0)
"""The first and the longest pause before a retry for a partition that does not take its messages; pauses double."""

DELAYED_JOINED_BYTES = 1 << 16
"""Up to this size a few delayed messages are joined in one buffer, so that the garbage collector has less to follow."""

DELAYED_SLICE_RECORDS = 1 << 10
"""How many records of a batch are prepared before others are served: some 3 ms."""

DELAYED_SLICE_BYTES = 1 << 20
"""How many bytes of them are looked at before others are served: they may be property lists."""

DELAYED_UNITS = 1 << 15
"""How many index units are read together: 1 MiB."""

DELAYED_FOLLOWED_UNITS = 1 << 17
"""How many index units a follower reads in a second: some 100 ms."""

DELAYED_LOG_BYTES = 128 << 20
"""A log that has grown to this, and to twice its waiting records, loses its oldest segments."""

DELAYED_CLEANED_BYTES = 1 << 20
"""How much is written anew before others are served."""

DELAYED_CLEANING_PAUSE_SECONDS = 0.005
"""The pause between two such pieces."""

DELAYED_CANCELLED = 1 << 14
"""How many cancelled messages are remembered, so that a repeated cancellation gets the first one's answer."""

DELAYED_LOOKED_AT = 1 << 14
"""How many messages one request for a list looks at, including messages of other topics."""

LISTING_BYTES = 256 << 10
"""How many bytes of records a worker thread describes or encodes for a list before other threads get the interpreter:
1 ms."""

LISTING_RECORD_BYTES = 4 << 10
"""How much a record counts there in addition to its own bytes."""

LISTING_PAUSE_SECONDS = 0.00005
"""The pause in which other threads get the interpreter."""

DELAYED_LATENESS = 1 << 13
"""For how many deliveries the metrics remember the lateness."""

# --- half messages: broker/halves -------------------------------------------------------------------------------------

HALVES_MOST_PAUSE_SECONDS = 3600.0
"""The longest pause between the checks of a half message; pauses double up to this."""

HALVES_LOST_SECONDS = 1.0
"""When a half message is given to another producer after the connection of the asked one was lost."""

HALVES_SILENT_SECONDS = 10.0
"""A producer that has not asked for so long counts as gone: its half messages go to others of its group. The time also
runs from the broker's begin to lead. Producers ask again after `CHECK_WAIT_SECONDS` (client/producer/tuning.py)."""

HALVES_STEP_SECONDS = 2.0
"""If more time has passed between two looks at the clock, the broker stood still, and the time does not count as the
producers' silence. Less than HALF_GRACE_SECONDS (protocol/limits.py), so that a mere pause of the broker makes no
producer count as gone."""

HALVES_TURN_RECORDS = 256
"""How many half messages whose first check is due are handled before others are served: some 4 ms if each has its own
group. The asking producers get as much time again."""

HALVES_TURN_BYTES = 1 << 20
"""How many bytes of records one asking producer gets at once."""

HALVES_CALLER_GROUPS = 1024
"""For how many producer groups one connection may ask; a producer asks for one."""

HALVES_COUNTED = 1 << 10
"""How many producer groups are counted before others are served: some milliseconds."""

HALVES_DECIDED = 1 << 16
"""How many outcomes each internal log remembers, so that a repeated request gets the decided outcome."""

# --- pulls: `consume`, `consume-arrow`, `latency` --------------------------------------------------------------------

WAKING_SECONDS = 0.003
"""How long waiting pulls are resumed before others are served: 65,536 may wait for one message."""

PULL_SCAN_BYTES = 64 << 20
"""How many bytes of records one step of a filtered pull looks at, only by their units."""

PULL_SCAN_RECORDS = 1 << 16
"""How many records one answer has, or one step of a filtered pull looks at: less than a millisecond."""

PULL_MAX_LOADS = 64
"""How many pieces of an index one pull has loaded before it waits for the disk itself; a search needs a dozen."""

PULL_MAX_RUNS = 4096
"""How many runs of neighbouring records one answer of a filtered pull has."""

WHERE_STEP_BYTES = 2 << 20
"""How many bytes of records one step of a pull with a filter by content reads: `python -m bench.where`."""

WHERE_SLICE_RECORDS = 2048
"""How many records a filter with one condition judges at once: more gain nothing, fewer cost more each."""

WHERE_LEAST_SLICE = 16
"""The same for a filter with many conditions: 10 ms if each is a BETWEEN and each value a number of sixty digits."""

WHERE_SLICE_STEPS = 1 << 21
"""How many steps the LIKEs of a filter may take in one slice (`Where.searched`): 9 ms at 4 ns each. A single message
that could need more is given unjudged, because its reader judges it again."""

WHERE_TURN_SECONDS = 0.003
"""How long all filters together work in one turn of the reactor; at most one slice longer."""

WHERE_GATHER_SECONDS = 0.02
"""How long a chosen message waits for others in its answer, while there are more to look at."""

WHERE_GAP_BYTES = 16 << 10
"""The largest gap, ruled out by tags, between two records that are read at once."""

WHERE_STEP_READS = 64
"""How many places one step reads if the records with the wanted tags are far from each other."""

TABLE_RECORDS = 16
"""An answer with fewer records has no table of their sizes, which would cost both sides more than it saves."""

SPAN_BYTES = 1 << 20
"""Records within a span of this size are read at once."""

SEARCH_LOGS_PER_STEP = 64
"""How many partitions' views are made at once on the reactor thread; no benchmark searches."""

# --- cold reads: `python -m bench.backlog` ---------------------------------------------------------------------------

MAX_COLD_READS = 4
"""How many reads of cold data are under way at once."""

MAX_COLD_READERS = 4096
"""How many groups' places in cold data of partitions are remembered; the least recently used goes first."""

COLD_WINDOWS_BYTES = 256 << 20
"""How much all cold readers together may fetch ahead, unless the smallest window is larger."""

MIN_COLD_WINDOW_BYTES = 512 << 10
"""The smallest window: one reader always fetches so much ahead."""

LOOK_UP_MAX_LOADS = 3
"""How often a question has the same piece of an index loaded before it waits for the disk itself."""

PACE_MIN_BYTES_PER_SECOND = 32 << 20
"""The rate that cold readers together always get."""

PACE_WRITTEN_FACTOR = 1.0
"""They always get this multiple of the rate of writes, too, so that they keep up."""

PACE_MAX_LATENESS_SECONDS = 0.001
"""The mean time by which the loop may be late for a timer; hot requests wait as long."""

PACE_MAX_WAITING_PART = 0.05
"""The part of the time that the reactor thread may be ready without a processor; above it the machine has too few
processors for its work."""

PACE_MAX_BYTES_PER_SECOND = float(8 << 30)
"""The highest rate, of a broker with time to spare: practically no limit."""

PACE_WINDOW_SECONDS = 0.1
"""The time between two adjustments of the rate."""

PACE_TIMER_SECONDS = 0.01
"""The period of the timer whose lateness is measured."""

PACE_SLOWER = 0.5
"""The rate is multiplied by this if the loop is late."""

PACE_FASTER = 1.05
"""The rate is multiplied by this if the loop is in time."""

PACE_BURST_SECONDS = 0.01
"""How much may be read at once, as time at the rate."""

PACE_MIN_BURST_BYTES = 1 << 20
"""How many bytes may be read at once, however low the rate is."""

# --- memory: `python -m bench`, the broker's memory at `partitions-10240`; `consume` for large answers ----------------

HEAP_MMAP_BYTES = 32 << 20
"""Buffers of this size and more are mapped: larger than any of the broker's, and the maximum of glibc."""

HEAP_KEPT_BYTES = 64 << 20
"""How much free memory is kept (docs/decisions/009-one-heap-for-all-threads.md); more is given back after 10 s."""

# --- shared consumers: `python -m bench.shared`; docs/broker.md promises the limits ---------------------------------

SHARED_SHARE = 8
"""One in so many messages that a shared group gets is the oldest one, regardless of priority."""

SHARED_MAX_HELD = 1 << 16
"""How many messages of one partition a group may have leased, or released and not leased again: some 25 MiB."""

SHARED_MAX_AHEAD = 1_000_000
"""How many messages behind these are looked at ahead, so that urgent ones are found: 12 bytes each."""

SHARED_MAX_AHEAD_ORDERED = 100_000
"""The same for a group that takes the messages of a key in order: 1 KB each if all keys differ, else 110 bytes."""

SHARED_AHEAD_BYTES = 1 << 30
"""How many bytes of messages are looked at ahead: no more are read to find a few urgent ones."""

SHARED_SCARCE = 64
"""How many messages of one partition a group leases, and looks at ahead, when the memory of all groups is used up."""

SHARED_MAX_RANGES = 100_000
"""How many separate ranges of acknowledged messages there may be. Above it the oldest messages go first, regardless of
priority."""

SHARED_SCAN_BYTES = 1 << 20
"""How many bytes are looked at in one turn of the reactor."""

SHARED_SCAN_RECORDS = 1 << 13
"""The same for messages: 1 ms."""

SHARED_SCAN_ORDERED = 1 << 10
"""The same for a group that takes the messages of a key in order: some milliseconds."""

SHARED_LEASED = 1 << 10
"""The most messages of one ACQUIRE, even if it asks for more: some milliseconds, and as many to read them."""

SHARED_SETTLED = 1 << 10
"""How many rows of a SETTLE are done before others are served: some milliseconds."""

SHARED_EXPIRED = 1 << 11
"""How many expired leases and due releases one step handles: some milliseconds."""

SHARED_COUNTED = 1 << 13
"""How many leased or released messages are counted before others are served: 1 ms."""

SHARED_SLICE_SECONDS = 0.003
"""How long members are woken and answered before others are served."""

SHARED_LOG_BYTES = 16 << 20
"""An internal log that has grown to this, and to four times its state, is replaced by that state."""

SHARED_READ_BYTES = 2 << 20
"""How much of such a log a follower reads at once."""

SHARED_LOOKS = 32
"""How many groups' queues look at new messages before others are served: some milliseconds."""

SHARED_MEMBERS = 4096
"""How many members of a group and partition are remembered."""

SHARED_MEMBER_SECONDS = 60.0
"""A member that has not asked for so long is no longer shown."""
