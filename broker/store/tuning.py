"""The store's tuned constants, with their unit, their reason, and the benchmark to run when one is changed."""

from __future__ import annotations

# --- syncs of partitions: `partitions-1024-sync`, `partitions-10240`, `batch-10240-sync` -----------------------------

CHECKPOINT_SECONDS = 5.0
"""The interval in seconds between checkpoints of a partition with unsynced data. After a crash, the broker's start has
to check the data behind the last checkpoint.
"""

JOURNALED_CHECKPOINT_SECONDS = 30.0
"""Like CHECKPOINT_SECONDS, but for partitions whose data are in the journal. The interval is longer because the journal
already makes the data safe: the checkpoint only saves work at the next start. If much data is appended, a checkpoint
comes earlier anyway (JOURNAL_FULL_FILES).
"""

MAX_BACKGROUND_JOBS = 16
"""How many syncs that a timer has started may run at once. Each sync keeps a file descriptor open and a worker thread
busy.
"""

GROUPED_FROM = 64
"""If more partitions than this wait for a sync, they share one sync of the whole file system, which includes other
programs' data.
"""

MAX_GROUP = 128
"""The maximum number of partitions that share one sync of the whole file system. When this sync ends, the owning thread
takes some 3 ms to finish these partitions' jobs and to prepare the jobs of the next partitions.
"""

LOOKED_AT_PER_TICK = 1024
"""How many partitions with a due sync one tick of the timer handles. So many partitions take some 2 ms. The other
partitions wait for the next tick.
"""

WRITEBACK_BYTES = 4 << 20
"""When this many bytes were appended to a partition, the broker tells the kernel to begin writing them to the disk.
Benchmarks: `batch`, `latency`.
"""

KEPT_COPY_BYTES = 16 << 20
"""How many of the last bytes of a large copy stay in the page cache while the kernel writes them to the disk.
Benchmark: `python -m bench.catch_up`.
"""

# --- memory for index units: `partitions-10240`, and the broker's memory there -------------------------------------

MAX_UNSTORED_UNITS = 1 << 16
"""How many index units one partition may hold in memory (2 MiB). If there are more, they are written to the index file
before the next checkpoint is due.
"""

MAX_UNITS = 3 << 20
"""How many index units all dirty partitions together may hold in memory (96 MiB)."""

LEAST_UNITS = 256
"""How many index units each partition with unsynced data may hold in memory even if MAX_UNITS is exceeded. Writing so
few units would cost more than the memory they take.
"""

# --- the journal: `sync-256`, `partitions-1024-sync` -----------------------------------------------------------------

DIRECT_PARTITIONS = 2
"""If at most this many partitions receive puts, the broker syncs these partitions' own files instead of writing to the
journal. The broker uses the journal nevertheless if the sync would have to wait for a running checkpoint.
"""

JOURNAL_GROUP_BYTES = 16 << 20
"""The maximum number of bytes that one sync of the journal makes safe, unless a single append is larger."""

JOURNAL_FILE_BYTES = 64 << 20
"""When a journal file has this size in bytes, the broker begins the next journal file."""

JOURNAL_FULL_FILES = 4
"""When there are this many full journal files, all partitions with data in them get a checkpoint at once. So a start
has to replay at most 256 MiB of the journal.
"""

JOURNAL_JOIN_BELOW_BYTES = 4096
"""If the buffers of a journal write have fewer bytes than this on average, they are copied into one buffer. The copy
costs less than a write of so many small buffers.
"""

INTERNAL_SYNC_RECORDS = 100_000
INTERNAL_SYNC_MS = 1000
"""The internal logs for partitions with asynchronous flush are synced after INTERNAL_SYNC_RECORDS records or after this
many milliseconds.
"""

DELAYED_SEGMENT_BYTES = 64 << 20
"""The segment size in bytes of the log of delayed messages. If messages with a very long delay are in the oldest
segment, they are written again at the end of the log, so that the oldest segment can be removed.
"""

SEQUENCES_DIRECT_BYTES = 1 << 20
"""A put with a producer's sequence number also needs an entry for the number in an internal log. If puts to one or two
partitions have at most this many bytes, both the puts and the entries are written to the journal, so that one sync
covers them. For larger puts, it would cost too much to write the data twice. Benchmarks: `sync-256`, `latency-sync`.
"""

# --- batches: `batch`, `batch-128`, `batch-10240` ---------------------------------------------------------------------

FEW_PUTS = 8
"""If a batch has at most this many records, they are encoded one by one, because for so few records a numpy call costs
more.
"""

SLICE_RECORDS = 1 << 13
"""How many records of a batch get their ids and times before other connections get their turn. So many records take
some milliseconds.
"""

SLICE_BYTES = 4 << 20
"""How many bytes of records get their ids and times before other connections get their turn."""

SLICE_ATTRIBUTES = 1 << 10
"""How many message attributes are decoded before other connections get their turn."""

SLICE_ATTRIBUTE_BYTES = 1 << 20
"""How many bytes of records with attributes are handled before other connections get their turn. Each attribute is
copied and searched for its tag.
"""

# --- reading what was stored: `consume`, `consume-arrow`, `python -m bench.backlog` -----------------------------------

SCRATCH_BYTES = 16 << 10
"""A read of at most this many bytes uses one buffer that all such reads share, and the data are copied out of it. A
larger read gets a buffer of its own.
"""

SEARCH_FIRST_UNITS = 64
"""How many index units are read first when the units of a byte range are requested. The record sizes in these units
determine how many units are read next.
"""

MAX_BOUNDARIES = 256
"""How many record boundaries an index remembers, so that no search is necessary for a reader that continues where its
last read ended.
"""

UNITS_PER_READ = 1 << 16
"""How many index units (2 MiB) are read at once when all units of a segment are searched."""

LOAD_BYTES = 64 << 10
"""How many bytes are read around a missing piece of an index, because searches often read neighbouring bytes next."""

EXAMINED_UNITS = 1 << 12
"""How many consecutive records one step of the search for damage examines. Damage after these records is reported as a
separate range.
"""

WALKED_BYTES = 4 << 20
"""How many bytes of records without an index are checked at once on the owning thread."""

MAX_WALKED = 256
"""If a segment has no index, a read must check the segment's records from the beginning. The position where such a
check ended is remembered. A reader that continues there causes no new check of the data before it. This value is the
maximum number of remembered positions.
"""

MISSES_PER_STEP = 8
"""Of this many writes to files that are not open, only one write may close another open file in order to keep its own
file open. The other writes close their own files again at once. So most open files stay open even if many more files
are written in turn than may be open. Benchmark: `partitions-10240`.
"""

# --- cold readers: `python -m bench.backlog` --------------------------------------------------------------------------

MAX_WINDOW_BYTES = 4 << 20
"""How many bytes are prefetched ahead of a reader, and how many bytes behind the reader stay in the page cache for
other readers.
"""

HOT_TAIL_BYTES = 64 << 20
"""How many bytes at the end of a partition are never dropped from the page cache."""

SPARE_MEMORY_PART = 0.1
"""A fraction of the machine's memory, 0 … 1. No pages are dropped from the page cache while a larger fraction of the
memory is unused. Memory of the page cache counts as used.
"""

ADVICE_BYTES = 1 << 20
"""How many bytes one system call asks the kernel to prefetch. The kernel prefetches at most the amount that the device
reads at once, often 1,280 KiB.
"""

# --- starting, and making indexes again: `python -m bench.startup` ----------------------------------------------------

SCAN_CHUNK_BYTES = 4 << 20
"""How many bytes are read at once while records are checked."""

SCAN_RUN_FROM = 16
"""If at least this many neighbouring records have the same size, they are handled together, not one by one."""

SCAN_MIXED_RECORDS = 256
"""How many records of different sizes are handled one by one. After that, the code checks again whether neighbouring
records have the same size.
"""

WALK_RECORDS = 1 << 20
"""How many records are checked at once in a search for damage. Their index units have 32 MiB."""

COPY_BYTES = 4 << 20
"""How many bytes of a file are copied, or compared with the disk, at once."""

UNITS_IN_MEMORY = 128
"""The maximum number of index units (4 KiB) of a recovered segment that stay in memory until the next checkpoint."""

SYNCED_ONE_BY_ONE = 64
"""If the broker's start has to sync more recovered segments and directories than this, it syncs whole file systems
instead of single files. Such a sync includes other programs' data.
"""

REBUILD_RETRY_SECONDS = 60.0
"""The pause after a failed attempt to make an index or a key file. No benchmark depends on it."""

# --- key files: no scenario sends keys; docs/decisions/008-search-by-id-and-key.md has what was weighed ---------------

KEY_BLOCK_BYTES = 64 << 20
"""How many bytes of data one block of a key file covers. Searches for messages by key use the key files. No block
covers the last bytes of a growing segment, up to this size, so searches read these data themselves.
"""

KEY_BLOCK_RECORDS = 1 << 19
"""The maximum number of records that one block of a key file covers. Their index units take 16 MiB of memory while the
block is built.
"""

KEY_BYTES_PER_SECOND = 256 << 20
"""The maximum rate, in bytes per second, of reading data for the blocks of key files. The limit leaves disk capacity to
other work while many blocks are built after an upgrade.
"""

KEY_LEAST_COST_BYTES = 1 << 20
"""The least number of bytes that a job for key files counts against the rate limit. Even a small job has a cost,
because every job opens and syncs files.
"""

KEY_LOGS_LOOKED_AT = 1024
"""How many logs are checked at once for missing blocks of their key files, by one tick or at the end of a job. A check
of so many logs takes a few milliseconds.
"""

KEY_WINDOW_BYTES = 4 << 20
"""How many bytes of data are read at once while a block of a key file is built."""

KEY_SLICE_RECORDS = 512
"""How many records' keys are hashed before other threads may use the Python interpreter. So many records take half a
millisecond, so other threads wait at most half a millisecond for the interpreter.
"""

KEY_SLICE_PAUSE_SECONDS = 0.00005
"""The length of the pause, in seconds, after each KEY_SLICE_RECORDS records. Other threads can use the Python
interpreter during the pause.
"""

MAX_RECENT_ENTRIES = 2 << 20
"""How many key entries are kept in memory (16 MiB) for all partitions together. They belong to records that no key file
covers yet.
"""

CANDIDATE_BYTES = 4096
"""How many bytes of a record are read at first to check its keys. More bytes are read only if the record's attribute is
longer.
"""

# --- removing segments: no benchmark does -----------------------------------------------------------------------------

MAX_DISCARDING = 2
"""Files of at most this many logs are deleted or compressed at the same time; topics take turns. The limit exists
because syncs also need worker threads and must not wait until files are deleted or compressed.
"""
