"""The constants of the broker that were chosen by benchmarks. The text of each constant gives its unit and reason. The
heading above a group of constants names the benchmarks that must be run when one of them is changed.

The store's constants are in a file of their own (store/tuning.py). Limits that docs/broker.md promises are defined next
to the code that they limit.
"""

from __future__ import annotations

# --- connections: `pipelined-128`, `produce-128`, and `latency` ------------------------------------------------------

TURN_SECONDS = 0.005
"""After the broker has served requests of one connection for this many seconds, it serves the other connections before
it continues with this one.
"""

HANDSHAKE_TURN_SECONDS = 0.004
"""Seconds for which TLS handshakes of all connections together may work in one iteration of the reactor. They may
exceed this time by one step of a handshake, which takes about half a millisecond.
"""

ITERATION_SECONDS = 0.01
"""In one iteration of the reactor, the turns of all connections together may take this many seconds. The processing of
incoming data may take as many seconds in addition.
"""

COUNTED_SECONDS = 0.001
"""An iteration of the reactor gets a time limit (ITERATION_SECONDS) for incoming data only after the work on one
connection's data has taken at least this many seconds. Shorter work sets no limit, because a limit needs an additional
iteration of the reactor.
"""

KEEPALIVE_SECONDS = 15
"""After this many seconds without data from a client, the kernel asks (TCP keepalive) whether the client still exists,
and then asks again after each third of this time. After three questions without an answer, the kernel ends the
connection. While a connection waits for memory, the broker does not read from it, so without the kernel's questions the
broker would not notice that the client is gone.
"""

MOST_EVENTS = 512
"""Maximum number of file descriptors that one iteration of the reactor serves. So even if 512 connections end at once,
which takes 22 µs each, one iteration takes 11 ms.
"""

FEW_BUSY = 2
"""A busy connection is served as soon as its data arrive if the reactor's iteration has time left and fewer than this
many turns of busy connections are waiting. Otherwise the connection must wait for a turn, too. A connection is busy if
it has lately had work for more than one turn.
"""

BUSY_READS = 8
"""After a connection had more work than one turn allows, it counts as busy for this many of its next reads.
"""

LARGE_WORK_BYTES = 128 << 10
"""A request counts as large if it holds at least this many bytes of memory and cannot be processed in one turn. A large
request begins only when fewer than MAX_LARGE_WORKS large requests are in progress.
"""

MAX_LARGE_WORKS = 16
"""Maximum number of requests with LARGE_WORK_BYTES or more that may be in progress at once. A request with 65,536
messages takes some 6 MiB in addition to its frame while the messages are stored.
"""

MAX_LISTINGS = 16
"""Maximum number of answers with a listing that may be in progress at once. An answer with a listing is built in
several steps, and takes 3 MB if it lists 10,000 groups.
"""

WRITE_BYTES = 64 << 10
"""Answers to a connection are collected, and written to the transport when they have this many bytes together. If the
collected answers must be written before they have so many bytes, they are first joined into one buffer.
"""

READ_REQUESTS = 512
"""Maximum number of requests from one read of a connection that are decoded and served before other connections have
their turn; so many requests take some milliseconds. If the requests are frames other than SENDs, the limit is a quarter
of this number. A single read may bring 50,000 requests. The messages of one turn are appended together. With half this
number there would be twice as many turns, and sends would cost 5 % more.
"""

HTTP_READ_BYTES = 8 << 10
"""Maximum number of bytes that are read at once from an HTTP connection. The number is small because a client may send
its request in HTTP chunks of one byte, and the HTTP code takes as long for each of them as for a large chunk.
"""

SMALL_READ_BYTES = 64 * 1024
"""Maximum number of bytes that are read at once from a connection with little traffic. The buffer for a read of this
size comes from the heap of malloc; for a larger buffer, malloc would map new pages, which costs more.
"""

LARGE_READ_BYTES = 512 * 1024
"""Maximum number of bytes that are read at once from a connection, if the last read from it has filled
SMALL_READ_BYTES.
"""

RECEIVE_BYTES = 4 << 20
"""Size in bytes of the receive buffer of a socket whose client sends much at once. Each small request takes a kibibyte
of the buffer, but when the kernel itself chooses the size of a buffer, it counts only the bytes of the requests. Then
thousands of small requests do not fit into the buffer; so fewer requests are read together, and each request costs
more.
"""

RECEIVES_MUCH_BYTES = 16 * 1024
"""A read of at least this many bytes shows that a client sends much at once."""

MAX_LARGE_BUFFERS = 32
"""Maximum number of sockets with a receive buffer of RECEIVE_BYTES. For other sockets, the kernel chooses the size; it
is much smaller as long as the broker does not read from the connection. The memory of these buffers belongs to the
kernel, so the broker's limits on memory do not count it. If all connections had such buffers, a few hundred connections
from which the broker does not read would use up all memory that the machine has for TCP.
"""

PAGE_ROWS = 500
"""Maximum number of rows of a table that one HTML page shows. A page with more rows would be hard to read. Links on the
page lead to the other rows.
"""

PAGE_LOGS = 512
"""Maximum number of partitions that `/metrics` examines before other requests are served; this takes 1 ms."""

PAGE_GROUPS = 1000
"""Maximum number of groups that `/metrics` lists. If the groups have the longest names, their rows take 1 MB."""

STATS_NAMED = 100
"""Maximum number of read-only partitions, late partitions or groups that an item of `stats` names."""

STATS_LINES = 64
"""Maximum number of lines of an answer to STATS that are built before other requests are served; this takes 1 ms."""

# --- puts and sends: `pipelined`, `pipelined-128`, `partitions-1024`, `partitions-10240` -----------------------------

RUN_LEAST_COST = 100
"""A run is many puts that came together. Its puts are stored in one step, instead of one by one, if the cost of the run
is at least this number. The cost is 1 for each put plus RUN_PARTITION_COST for each partition. To store a run in one
step takes 80 µs in addition, but saves 1 µs for each put and 4 µs for each partition.
"""

RUN_PARTITION_COST = 4
"""The cost that each partition of a run counts towards RUN_LEAST_COST; each put counts 1."""

RUN_VIEW_BYTES = 1 << 10
"""If a run has fewer bytes per partition than this, the data for each partition is copied. For so few bytes a copy
costs less than a memoryview.
"""

SEND_PARTS = 128
"""Maximum number of parts of a SEND_MANY (the messages for one partition each) that are decoded and checked in one
step. Other requests are served between the steps.
"""

PACKED_SLICE_RECORDS = 2048
"""Maximum number of compressed records of a batch that are checked before other requests are served; this takes some 3
ms.
"""

SEND_WAITING_PARTS = 8
"""Replaces SEND_PARTS for a SEND_MANY whose parts contain delayed messages. The bookkeeping for each such part takes a
quarter of a millisecond.
"""

STEP_PARTITIONS = 64
"""Maximum number of partitions to which puts are appended before other requests are served. The appends take some
milliseconds, because each append writes to a file.
"""

STEP_NEW_LOGS = 8
"""Maximum number of partitions for which files are created before other requests are served. Each partition takes a
third of a millisecond.
"""

STEP_PUTS = 256
"""If the puts of a run (puts that came together) have to be checked one by one, at most this many are handled in one
step.
"""

SEND_SLICE_SECONDS = 0.003
"""Seconds for which the broker appends the parts of a SEND_MANY (the records for one partition each) before it serves
other requests. Each part needs a write to a file of its own.
"""

WORK_SLICE_SECONDS = 0.003
"""Some work is not done while one request is served, such as appending a commit's messages, sending the answers that
waited for one sync, or rolling back the transactions of a lost connection. The broker does such work for this many
seconds before it serves other requests.
"""

COMMIT_SLICE_RECORDS = 1 << 16
"""Maximum number of messages of a commit whose index units are built before other requests are served; this takes 3
ms.
"""

# --- numbered sends, docs/client.md promises the first two; memory and the next start depend on the others -----------

SEQUENCE_SECONDS = 24 * 3600.0
"""If a producer has not sent to a partition for this many seconds, the broker forgets the producer's last sequence
number for that partition.
"""

MAX_SEQUENCES = 1 << 17
"""Maximum number of pairs of producer and partition whose last sequence number is remembered. So many pairs take some
50 MiB. If there would be more pairs, the broker forgets some pairs of the client address that has the most pairs.
"""

FORGOTTEN_SEQUENCES = 1 << 10
"""When there are too many pairs of producer and partition, the broker forgets this many at once; this takes some
milliseconds. If the client address with the most pairs has fewer than four times this number, the broker forgets a
quarter of that address's pairs.
"""

FEW_SEQUENCES = 8
"""When there are too many pairs of producer and partition, but no client address has more than this number, the broker
forgets the least recently used pairs of all addresses together.
"""

REPEAT_LATE_SECONDS = 15 * 60.0
"""A repeated send states how long ago its producer first sent it. The broker assumes that the repeated send was on its
way to the broker for at most this many seconds, because TCP gives up a transmission that takes longer.
"""

SEQUENCES_SWEPT = 1 << 9
"""A search for old pairs of producer and partition reads the clock after each group of this many pairs; if it has
worked for long enough, it lets other requests be served before it goes on.
"""

SEQUENCES_SWEEP_SECONDS = 60.0
"""Seconds between two searches for pairs of producer and partition that are older than SEQUENCE_SECONDS; a search takes
some 10 ms if MAX_SEQUENCES pairs are remembered.
"""

COMPACTION_PAUSE_SECONDS = 60.0
"""If an internal log could not be rewritten in a shorter form, the broker tries again after this many seconds."""

SEQUENCE_LOG_BYTES = 16 << 20
"""The internal log of sequence numbers is rewritten when it has grown to this many bytes and to four times the size of
the remembered state. The rewritten log contains only the remembered state.
"""

SEQUENCE_ROWS = 1 << 10
"""Maximum number of rows in one record, when the remembered state is written to an internal log."""

# --- delayed messages: `python -m bench.delays`; docs/broker.md promises the first ones ------------------------------

DELAYED_SLEEP_SECONDS = 1.0
"""Maximum seconds between two readings of the wall clock, so that the broker soon notices when somebody has set the
clock.
"""

DELAYED_LEAST_SECONDS = 0.0005
"""A timer for delayed messages is never set for less than this many seconds."""

DELAYED_TURN_RECORDS = 512
DELAYED_TURN_BYTES = 256 << 10
"""DELAYED_TURN_RECORDS and DELAYED_TURN_BYTES: the maximum number of delayed messages, and of their bytes, that are
delivered before other requests are served; this takes some 3 ms.
"""

DELAYED_UNSAFE_SECONDS = 0.002
"""If a delayed message is due but not yet safe on the disk, the broker checks it again after this many seconds. A sync
of the disk takes about the same time.
"""

DELAYED_RETRY_SECONDS = (0.1, 5.0)
"""If a partition has not accepted delayed messages that are due, the broker tries again after the first of these
pauses, in seconds. Each further pause is twice as long as the one before, up to the second value.
"""

DELAYED_JOINED_BYTES = 1 << 16
"""If the delayed messages of one send have at most this many bytes together, the broker copies them into one buffer. So
Python's garbage collector has fewer objects to examine.
"""

DELAYED_SLICE_RECORDS = 1 << 10
"""Maximum number of delayed records of a batch that are prepared before other requests are served; this takes some 3
ms.
"""

DELAYED_SLICE_BYTES = 1 << 20
"""Maximum number of bytes of delayed records that are examined before other requests are served. The limit is for the
worst case, in which all bytes are property lists that must be searched.
"""

DELAYED_UNITS = 1 << 15
"""Number of index units of a log of delayed messages that are read at once; they take 1 MiB."""

DELAYED_FOLLOWED_UNITS = 1 << 17
"""Maximum number of index units of a log of delayed messages that a follower reads each second; this takes some 100
ms.
"""

DELAYED_LOG_BYTES = 128 << 20
"""When a log of delayed messages has grown to this many bytes, and to twice the size of the records that still wait in
it, its oldest segments are removed.
"""

DELAYED_CLEANED_BYTES = 1 << 20
"""Before an oldest segment is removed, the messages in it that still wait are written again at the end of the log. At
most this many bytes are written again in one step, before other requests are served.
"""

DELAYED_CLEANING_PAUSE_SECONDS = 0.005
"""Pause in seconds between two steps in which waiting delayed messages are written again (DELAYED_CLEANED_BYTES)."""

DELAYED_CANCELLED = 1 << 14
"""Number of cancelled messages that are remembered for each log of delayed messages, so that a repeated cancellation
gets the same answer as the first cancellation.
"""

DELAYED_LOOKED_AT = 1 << 14
"""Maximum number of delayed messages that one request for a list examines, including messages of other topics."""

LISTING_BYTES = 256 << 10
"""Maximum number of bytes of records that a worker thread describes or encodes for a list before it lets other threads
run Python code; this takes 1 ms.
"""

LISTING_RECORD_BYTES = 4 << 10
"""Number of bytes that each record counts towards LISTING_BYTES in addition to its own bytes."""

LISTING_PAUSE_SECONDS = 0.00005
"""Pause in seconds during which a worker thread that builds a list lets other threads run Python code."""

DELAYED_LATENESS = 1 << 13
"""The metrics remember for this many of the last delivered messages how late each was delivered."""

# --- half messages: broker/halves -------------------------------------------------------------------------------------

HALVES_MOST_PAUSE_SECONDS = 3600.0
"""Longest pause, in seconds, between two questions about the outcome of a half message. Each pause is twice as long as
the one before it, until this value is reached.
"""

HALVES_LOST_SECONDS = 1.0
"""If the broker loses the connection of a producer that it has asked about a half message, it asks another producer
after this many seconds.
"""

HALVES_SILENT_SECONDS = 10.0
"""A producer regularly asks the broker which half messages it shall check. If it has not asked for this many seconds,
it counts as gone. From then on, other producers of its group are asked about its half messages. When a node begins to
lead, it counts the seconds from that moment for all producers, as if all had just asked. A producer that lives asks
again after `CHECK_WAIT_SECONDS` (client/producer/tuning.py).
"""

HALVES_STEP_SECONDS = 2.0
"""If more than this many seconds have passed between two readings of the clock, the broker's process was suspended. The
time between these readings does not count towards HALVES_SILENT_SECONDS, because no producer could ask the broker
during this time. The value is less than HALF_GRACE_SECONDS (protocol/limits.py), so that a pause of the broker does not
make a producer count as gone.
"""

HALVES_TURN_RECORDS = 256
"""Maximum number of half messages whose first check is due that are handled before other requests are served. Handling
them takes some 4 ms if each message belongs to a different group. In addition, answers to producers that ask for checks
may take the same time before other requests are served.
"""

HALVES_TURN_BYTES = 1 << 20
"""Maximum number of bytes of half messages in one answer to a producer that asks for checks."""

HALVES_CALLER_GROUPS = 1024
"""Maximum number of producer groups that one connection may name when it asks for checks. A client of metaq names only
one group.
"""

HALVES_COUNTED = 1 << 10
"""Maximum number of producer groups whose half messages are counted before other requests are served; this takes some
milliseconds.
"""

HALVES_DECIDED = 1 << 16
"""Number of outcomes of half messages that are remembered for each internal log, so that a repeated request gets the
decided outcome.
"""

# --- pulls: `consume`, `consume-arrow`, `latency` --------------------------------------------------------------------

WAKING_SECONDS = 0.003
"""Maximum seconds for which the broker resumes waiting pulls before it serves other requests. Up to 65,536 pulls may
wait for one message.
"""

PULL_SCAN_BYTES = 64 << 20
"""Maximum number of bytes of records that one step of a pull with a filter by tags examines. To find the records with
these tags, the step reads only index units.
"""

PULL_SCAN_RECORDS = 1 << 16
"""Maximum number of records in one answer, and of records that one step of a filtered pull examines; this takes less
than a millisecond.
"""

PULL_MAX_LOADS = 64
"""Maximum number of pieces of an index that are loaded into the page cache in the background for one pull. A search in
an index needs only a dozen pieces. If a pull needs more loads than this, loaded pieces have obviously left the page
cache before the pull could use them. From then on, the pull reads pieces directly from the disk.
"""

PULL_MAX_RUNS = 4096
"""Maximum number of runs of neighbouring records in one answer of a filtered pull."""

WHERE_STEP_BYTES = 2 << 20
"""Number of bytes of records that one step of a pull with a filter by content reads. The value was chosen with `python
-m bench.where`.
"""

WHERE_SLICE_RECORDS = 2048
"""Number of records that a filter with one condition checks at once. With a smaller number the check of each record
costs more; a larger number saves no more time.
"""

WHERE_LEAST_SLICE = 16
"""Minimum number of records that a filter with many conditions checks at once. Checking these records takes 10 ms if
each condition is a BETWEEN and each value is a number of sixty digits.
"""

WHERE_SLICE_STEPS = 1 << 21
"""Maximum number of steps of comparison that the LIKE conditions of a filter may take in one slice (`Where.searched`);
so many steps take 9 ms, 4 ns each. If a single message could need more steps, the broker delivers it without a check;
the consumer checks it anyway.
"""

WHERE_TURN_SECONDS = 0.003
"""Seconds for which all filters together may work in one iteration of the reactor. They may exceed this time by the
duration of at most one slice of work.
"""

WHERE_GATHER_SECONDS = 0.02
"""After a filtered pull has found its first matching message, the broker examines further messages for at most this
many seconds before it answers, so that the answer has more matching messages.
"""

WHERE_GAP_BYTES = 16 << 10
"""Two wanted records are read together with one read if the gap between them has at most this many bytes. The gap
consists of records that are not wanted because of their tags.
"""

WHERE_STEP_READS = 64
"""Maximum number of separate reads from a log in one step, if the records with the wanted tags are far from each other.
"""

TABLE_RECORDS = 16
"""An answer with fewer records than this contains no table of the record sizes, because the table would cost broker and
client more than it saves.
"""

SPAN_BYTES = 1 << 20
"""The records for one answer are read from a log with one read if the range from the first to the last of them has at
most this many bytes.
"""

SEARCH_LOGS_PER_STEP = 64
"""Maximum number of partitions whose logs a search prepares for reading in one step on the reactor thread. No benchmark
measures searches.
"""

# --- cold reads: `python -m bench.backlog` ---------------------------------------------------------------------------

MAX_COLD_READS = 4
"""Maximum number of reads of cold data that run at the same time. Cold data is data that is not in the page cache."""

MAX_COLD_READERS = 4096
"""Maximum number of pairs of partition and group whose position in cold data is remembered. The least recently used
pair is forgotten first.
"""

COLD_WINDOWS_BYTES = 256 << 20
"""Maximum number of bytes that all readers of cold data together may fetch ahead. This number divided by the number of
readers is the window of each reader (how many bytes it may fetch ahead), but a window has at least
MIN_COLD_WINDOW_BYTES.
"""

MIN_COLD_WINDOW_BYTES = 512 << 10
"""The smallest window: each cold reader may always fetch this many bytes ahead."""

LOOK_UP_MAX_LOADS = 3
"""A lookup lets missing ranges of an index be loaded into the page cache in the background. If the same range was
loaded more often than this for one lookup, because it leaves the page cache again and again, the lookup reads directly
from the disk.
"""

PACE_MIN_BYTES_PER_SECOND = 32 << 20
"""The minimum rate, in bytes per second, at which all cold readers together may always read."""

PACE_WRITTEN_FACTOR = 1.0
"""In any period, all cold readers together may always read this many times the bytes that are written to the broker in
the period, so that they do not fall further behind the writers.
"""

PACE_MAX_LATENESS_SECONDS = 0.001
"""The highest allowed mean lateness of the reactor's timers, in seconds. If the timers are later than this, cold reads
are slowed down, because requests that need no cold data wait about as long as a timer is late.
"""

PACE_MAX_WAITING_PART = 0.05
"""The highest allowed fraction of time during which the reactor thread is ready to run but has no processor. Above this
fraction, the machine has too few processors for its work.
"""

PACE_MAX_BYTES_PER_SECOND = float(8 << 30)
"""The highest rate of cold reads in bytes per second, for a broker that has little else to do. The value is so high
that it practically limits nothing.
"""

PACE_WINDOW_SECONDS = 0.1
"""Seconds between two adjustments of the rate of cold reads."""

PACE_TIMER_SECONDS = 0.01
"""Period, in seconds, of the timer that measures the lateness of the reactor."""

PACE_SLOWER = 0.5
"""The rate of cold reads is multiplied by this factor if the reactor's timers were later than
PACE_MAX_LATENESS_SECONDS, or the reactor thread waited for a processor longer than PACE_MAX_WAITING_PART allows.
"""

PACE_FASTER = 1.05
"""The rate of cold reads is multiplied by this factor if neither PACE_MAX_LATENESS_SECONDS nor PACE_MAX_WAITING_PART
was exceeded.
"""

PACE_BURST_SECONDS = 0.01
"""All cold readers together may read at once, without a pause, as many bytes as the rate allows in this many
seconds.
"""

PACE_MIN_BURST_BYTES = 1 << 20
"""Number of bytes that all cold readers together may always read at once, however low the rate is."""

# --- memory: `python -m bench`, the broker's memory at `partitions-10240`; `consume` for large answers ----------------

HEAP_MMAP_BYTES = 32 << 20
"""For buffers of at least this many bytes, malloc maps new pages; smaller buffers come from its heap. The value is
larger than any buffer of the broker, and is the maximum that glibc allows.
"""

HEAP_KEPT_BYTES = 64 << 20
"""Number of bytes of free memory that the process keeps (docs/decisions/009-one-heap-for-all-threads.md). Memory above
this is returned to the system after 10 s.
"""

# --- shared consumers: `python -m bench.shared`; docs/broker.md promises the limits ---------------------------------

SHARED_SHARE = 8
"""Members of a shared group get messages with a higher priority first. But one of every SHARED_SHARE messages that they
get is the oldest message, regardless of its priority, so that no message waits forever.
"""

SHARED_MAX_HELD = 1 << 16
"""Maximum number of messages of one partition that a shared group may hold. Held messages are messages that are leased,
or that were released and are not leased again yet. So many held messages take some 25 MiB.
"""

SHARED_MAX_AHEAD = 1_000_000
"""To find urgent messages, a shared group examines messages behind the held ones ahead of their lease. This is the
maximum number of messages of one partition that are examined ahead; each takes 12 bytes of memory.
"""

SHARED_MAX_AHEAD_ORDERED = 100_000
"""Replaces SHARED_MAX_AHEAD for a group that gets the messages of a key in order. Each message takes 1 KB of memory if
all keys differ, otherwise 110 bytes.
"""

SHARED_AHEAD_BYTES = 1 << 30
"""Maximum number of bytes of the messages of one partition that a shared group examines ahead. To find a few urgent
messages, it is not worth reading more.
"""

SHARED_SCARCE = 64
"""When the memory for all shared groups is used up, a group leases at most this many messages of one partition at a
time, and examines at most this many ahead.
"""

SHARED_MAX_RANGES = 100_000
"""The messages of a partition that a shared group has acknowledged form ranges; this is the maximum number of such
ranges. If there are more, the oldest messages are leased first, regardless of their priority, because the
acknowledgements of these messages join the ranges.
"""

SHARED_SCAN_BYTES = 1 << 20
"""Maximum number of bytes of messages that a shared group examines in one turn of the reactor."""

SHARED_SCAN_RECORDS = 1 << 13
"""Maximum number of messages that a shared group examines in one turn of the reactor; this takes 1 ms."""

SHARED_SCAN_ORDERED = 1 << 10
"""Replaces SHARED_SCAN_RECORDS for a group that gets the messages of a key in order; this takes some milliseconds."""

SHARED_LEASED = 1 << 10
"""Maximum number of messages that one ACQUIRE request gets, even if it asks for more. Leasing so many messages takes
some milliseconds, and reading them takes some milliseconds more.
"""

SHARED_SETTLED = 1 << 10
"""Maximum number of rows of a SETTLE request that are processed before other requests are served; this takes some
milliseconds.
"""

SHARED_EXPIRED = 1 << 11
"""Maximum number of messages that become available again in one step, because their lease has expired or the time
chosen at their release has come; this takes some milliseconds.
"""

SHARED_COUNTED = 1 << 13
"""Maximum number of leased or released messages that are counted before other requests are served; this takes 1 ms."""

SHARED_SLICE_SECONDS = 0.003
"""For at most this many seconds, the broker answers members of shared groups that waited for messages, before it serves
other requests.
"""

SHARED_LOG_BYTES = 16 << 20
"""The internal log of a shared group is rewritten when it has grown to this many bytes and to four times the size of
the group's state. The rewritten log contains only the group's state.
"""

SHARED_READ_BYTES = 2 << 20
"""Number of bytes of the internal log of a shared group that a follower reads at once."""

SHARED_LOOKS = 32
"""Maximum number of times that shared groups read and examine messages of a partition before other requests are served;
this takes some milliseconds.
"""

SHARED_MEMBERS = 4096
"""Maximum number of members that are remembered for one group and partition."""

SHARED_MEMBER_SECONDS = 60.0
"""A member of a shared group that has not asked for messages for this many seconds is left out of the list of the
group's members.
"""
