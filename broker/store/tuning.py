"""The constants of the store that were chosen by benchmarks. Each constant states its unit, its reason, and the
benchmark to run if somebody changes its value.
"""

from __future__ import annotations

# --- syncs of partitions: `partitions-1024-sync`, `partitions-10240`, `batch-10240-sync` -----------------------------

CHECKPOINT_SECONDS = 5.0
"""The interval in seconds between checkpoints of a partition with unsynced data. After a crash, the starting broker has
to check all data that were written after the last checkpoint.
"""

JOURNALED_CHECKPOINT_SECONDS = 30.0
"""Like CHECKPOINT_SECONDS, but for partitions whose data are in the journal. The interval is longer than
CHECKPOINT_SECONDS because the journal already makes the data safe: the checkpoint only saves work at the next start of
the broker. If much data is appended, a checkpoint comes earlier anyway (JOURNAL_FULL_FILES).
"""

MAX_BACKGROUND_JOBS = 16
"""The maximum number of syncs started by a timer (not by a put) that run at the same time. Each sync keeps a file
descriptor open and a worker thread busy.
"""

GROUPED_FROM = 64
"""If more partitions than this wait for a sync, the broker syncs the whole file system once for many of them
(MAX_GROUP) instead of syncing the files of each. Such a sync also writes other programs' data to the disk.
"""

MAX_GROUP = 128
"""The maximum number of partitions that share one sync of the whole file system. When this sync ends, the owning thread
takes some 3 ms to finish these partitions' jobs and to prepare the jobs of the next partitions.
"""

LOOKED_AT_PER_TICK = 1024
"""The maximum number of partitions with a due sync that one tick of the timer handles. Handling so many partitions
takes some 2 ms. The other partitions wait for the next tick.
"""

WRITEBACK_BYTES = 4 << 20
"""When this many bytes were appended to a partition, the broker tells the kernel to begin writing them to the disk.
Benchmarks: `batch`, `latency`.
"""

KEPT_COPY_BYTES = 16 << 20
"""When the broker copies much data (for example from another node), this many of the last copied bytes stay in the page
cache while the kernel writes them to the disk. Benchmark: `python -m bench.catch_up`.
"""

# --- memory for index units: `partitions-10240`, and the broker's memory there -------------------------------------

MAX_UNSTORED_UNITS = 1 << 16
"""The maximum number of index units (2 MiB) that one partition keeps in memory only. If it has more, the broker writes
them to the index file without waiting for the next checkpoint.
"""

MAX_UNITS = 3 << 20
"""The maximum number of index units (96 MiB) that all partitions with unsynced data together keep in memory only."""

LEAST_UNITS = 256
"""MAX_UNITS is divided evenly among the partitions with unsynced data. However many they are, each of them may keep at
least this many index units in memory only. To write so few units to the index file would cost more than the memory that
they take.
"""

# --- the journal: `sync-256`, `partitions-1024-sync` -----------------------------------------------------------------

DIRECT_PARTITIONS = 2
"""If the appends that share one sync go to at most this many partitions, the broker syncs these partitions' own files
instead of writing the appends to the journal. But if this sync would have to wait for a running checkpoint, the broker
writes the appends to the journal.
"""

JOURNAL_GROUP_BYTES = 16 << 20
"""The maximum number of bytes of appends that are written to the journal before one sync. A single larger append gets a
sync of its own.
"""

JOURNAL_FILE_BYTES = 64 << 20
"""When a journal file has this size in bytes, the broker begins the next journal file."""

JOURNAL_FULL_FILES = 4
"""When there are this many full journal files, the broker makes a checkpoint of all partitions that have data in these
files, without waiting for JOURNALED_CHECKPOINT_SECONDS. So a start has to replay at most 256 MiB of the journal.
"""

JOURNAL_JOIN_BELOW_BYTES = 4096
"""A write to the journal consists of several buffers. If they have fewer bytes than this on average, they are first
copied into one buffer, because the copy costs less than a write of so many small buffers.
"""

INTERNAL_SYNC_RECORDS = 100_000
INTERNAL_SYNC_MS = 1000
"""If a partition's puts are answered before they are synced, the internal logs with data about these puts are not
synced at each put either. They are synced after INTERNAL_SYNC_RECORDS records or after this many milliseconds.
"""

DELAYED_SEGMENT_BYTES = 64 << 20
"""The segment size in bytes of the log of delayed messages. If messages with a very long delay are in the oldest
segment, they are written again at the end of the log, so that the oldest segment can be removed.
"""

SEQUENCES_DIRECT_BYTES = 1 << 20
"""A put with a producer's sequence number also needs an entry for the number in an internal log. If puts to one or two
partitions share one sync and have, with their entries, at most this many bytes, the broker writes both the puts and the
entries to the journal, so that one sync makes both safe. Data in the journal are written a second time, to the
partition's file, which would cost too much for larger puts. Benchmarks: `sync-256`, `latency-sync`.
"""

# --- batches: `batch`, `batch-128`, `batch-10240` ---------------------------------------------------------------------

FEW_PUTS = 8
"""If a batch has at most this many records, they are encoded one by one in Python. For so few records, a call of numpy
that encodes them all costs more.
"""

SLICE_RECORDS = 1 << 13
"""How many records of a batch get their message ids and store times before other connections get their turn. The work
for so many records takes some milliseconds.
"""

SLICE_BYTES = 4 << 20
"""How many bytes of records get their message ids and store times before other connections get their turn."""

SLICE_ATTRIBUTES = 1 << 10
"""How many message attributes are decoded before other connections get their turn."""

SLICE_ATTRIBUTE_BYTES = 1 << 20
"""How many bytes of records with attributes are handled before other connections get their turn. To handle a record
means to copy its attribute and to search the attribute for the message's tag.
"""

# --- reading what was stored: `consume`, `consume-arrow`, `python -m bench.backlog` -----------------------------------

SCRATCH_BYTES = 16 << 10
"""A read of at most this many bytes uses one buffer that all such reads share, and the data are copied out of it. A
larger read gets a buffer of its own.
"""

SEARCH_FIRST_UNITS = 64
"""To find the index units of the records in a byte range, this many units are read first. The sizes of their records
determine how many more units are read next.
"""

MAX_BOUNDARIES = 256
"""An index remembers the offsets where reads have ended (record boundaries); this is the maximum number of these
offsets. A reader that continues at a remembered boundary needs no search in the index.
"""

UNITS_PER_READ = 1 << 16
"""How many index units (2 MiB) are read at once when all units of a segment are searched."""

LOAD_BYTES = 64 << 10
"""If a search needs bytes of an index file that are not in the page cache, this many bytes around them are read,
because searches often read neighbouring bytes next.
"""

EXAMINED_UNITS = 1 << 12
"""The search for damaged records examines this many consecutive records in one step. Each step reports its own damaged
ranges, so damage that several steps find is reported as several ranges.
"""

WALKED_BYTES = 4 << 20
"""If a segment has no index, records must be checked one after the other. This many bytes are checked at once on the
thread that owns the store.
"""

MAX_WALKED = 256
"""If a segment has no index, a read must check the segment's records from the segment's beginning. The position where
such a check ended is remembered, so that a reader that continues at this position causes no new check of the data
before it. This value is the maximum number of remembered positions.
"""

MISSES_PER_STEP = 8
"""A write to a file that is not open must open the file, but the number of open files is limited. When the limit is
reached, at most one of this many such writes keeps its file open, after another open file was closed for it. Each of
the other writes closes its own file after the write. So most open files stay open even if the broker writes, one after
the other, to many more files than the limit allows. Benchmark: `partitions-10240`.
"""

# --- cold readers: `python -m bench.backlog` --------------------------------------------------------------------------

MAX_WINDOW_BYTES = 4 << 20
"""The kernel is asked to prefetch at most this many bytes after a reader's position. Just as many bytes before the
position stay in the page cache for other readers.
"""

HOT_TAIL_BYTES = 64 << 20
"""How many bytes at the end of a partition are never dropped from the page cache."""

SPARE_MEMORY_PART = 0.1
"""A fraction of the machine's memory, 0 … 1. As long as more than this fraction is unused, the broker drops no pages
from the page cache. Memory that the page cache occupies counts as used.
"""

ADVICE_BYTES = 1 << 20
"""How many bytes one system call asks the kernel to prefetch. The kernel prefetches at most the amount that the device
reads at once, often 1,280 KiB.
"""

# --- starting, and making indexes again: `python -m bench.startup` ----------------------------------------------------

SCAN_CHUNK_BYTES = 4 << 20
"""How many bytes are read at once while records are checked."""

SCAN_RUN_FROM = 16
"""If at least this many neighbouring records have the same size, the check handles them together with numpy, not one by
one.
"""

SCAN_MIXED_RECORDS = 256
"""If neighbouring records have different sizes, the check handles this many records one by one. Then it looks again
whether the next records have the same size.
"""

WALK_RECORDS = 1 << 20
"""How many records a search for damage checks at once. The index units of so many records have 32 MiB."""

COPY_BYTES = 4 << 20
"""How many bytes of a file are copied, or compared with the disk, at once."""

UNITS_IN_MEMORY = 128
"""When a segment was recovered at the broker's start, at most this many of its new index units (4 KiB) stay in memory
until the next checkpoint. If there are more, they are written to the index file at once.
"""

SYNCED_ONE_BY_ONE = 64
"""If a starting broker has to sync more recovered segments and directories than this, it syncs whole file systems
instead of single files. Such a sync includes other programs' data.
"""

REBUILD_RETRY_SECONDS = 60.0
"""The pause after a failed attempt to make an index or a key file, before the next attempt. No benchmark depends on
this value.
"""

# --- key files: no scenario sends keys; docs/decisions/008-search-by-id-and-key.md has what was weighed ---------------

KEY_BLOCK_BYTES = 64 << 20
"""How many bytes of data one block of a key file covers. Searches for messages by key use the key files. The data at
the end of a growing segment get a block only when there are this many bytes of them. Until then, a search by key reads
these data instead of a key file.
"""

KEY_BLOCK_RECORDS = 1 << 19
"""The maximum number of records that one block of a key file covers. Their index units take 16 MiB of memory while the
block is built.
"""

KEY_BYTES_PER_SECOND = 256 << 20
"""The maximum rate, in bytes per second, of reading data for the blocks of key files. The limit leaves disk capacity to
other work when many blocks must be built, for example after an upgrade of the broker.
"""

KEY_LEAST_COST_BYTES = 1 << 20
"""A job for key files counts as having read at least this many bytes when the rate limit KEY_BYTES_PER_SECOND is
applied. Even a job that reads little has a cost, because every job opens and syncs files.
"""

KEY_LOGS_LOOKED_AT = 1024
"""How many logs the broker checks for missing blocks of their key files at one tick of the timer, or at the end of one
job for key files. A check of so many logs takes a few milliseconds.
"""

KEY_WINDOW_BYTES = 4 << 20
"""How many bytes of data are read at once while a block of a key file is built."""

KEY_SLICE_RECORDS = 512
"""How many records' keys are hashed before other threads may use the Python interpreter. Hashing the keys of so many
records takes half a millisecond, so other threads wait at most half a millisecond for the interpreter.
"""

KEY_SLICE_PAUSE_SECONDS = 0.00005
"""The length of the pause, in seconds, after each KEY_SLICE_RECORDS records. Other threads can use the Python
interpreter during the pause.
"""

MAX_RECENT_ENTRIES = 2 << 20
"""The maximum number of key entries in memory (16 MiB), for all partitions together. A key entry tells which record has
a key; the entries in memory are for records that no key file covers yet.
"""

CANDIDATE_BYTES = 4096
"""How many bytes of a record are read at first to check whether it has the wanted key. More bytes are read only if the
record's attribute, which contains the keys, is longer.
"""

# --- removing segments: no benchmark does -----------------------------------------------------------------------------

MAX_DISCARDING = 2
"""Old files of at most this many logs are deleted or compressed at the same time; if more logs wait, their topics take
turns. Without the limit, deletions and compressions could use all worker threads, and the syncs, which need the same
threads, would have to wait.
"""
