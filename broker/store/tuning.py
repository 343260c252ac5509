"""The store's tuned constants, with their unit, their reason, and the benchmark to run when one is changed."""

from __future__ import annotations

# --- syncs of partitions: `partitions-1024-sync`, `partitions-10240`, `batch-10240-sync` -----------------------------

CHECKPOINT_SECONDS = 5.0
"""The interval of checkpoints of a dirty partition. A start has to check the data behind the last checkpoint."""

JOURNALED_CHECKPOINT_SECONDS = 30.0
"""Like CHECKPOINT_SECONDS, but for journaled data. It is longer because such a checkpoint only saves work at the next
start, and large appends cause a checkpoint anyway.
"""

MAX_BACKGROUND_JOBS = 16
"""How many timer-driven syncs may run at once. Each keeps a descriptor open and a worker thread busy."""

GROUPED_FROM = 64
"""If more partitions than this wait for a sync, they share one sync of the whole file system, which includes other
programs' data.
"""

MAX_GROUP = 128
"""The maximum number of partitions in such a group. Ending their jobs and making those of the next group takes the
owning thread some 3 ms.
"""

LOOKED_AT_PER_TICK = 1024
"""How many due dirty partitions one tick handles, in some 2 ms. The others wait for the next tick."""

WRITEBACK_BYTES = 4 << 20
"""After so many appended bytes of a partition, the kernel is told to begin writing them. `batch`, `latency`."""

KEPT_COPY_BYTES = 16 << 20
"""How many bytes at the end of a copy the page cache keeps while the kernel writes them. `python -m bench.catch_up`."""

# --- memory for index units: `partitions-10240`, and the broker's memory there -------------------------------------

MAX_UNSTORED_UNITS = 1 << 16
"""How many index units one partition holds in memory (2 MiB) before they are written earlier than the checkpoint."""

MAX_UNITS = 3 << 20
"""How many index units all dirty partitions together may hold in memory (96 MiB)."""

LEAST_UNITS = 256
"""How many index units each dirty partition may always hold in memory, because writing fewer costs more than their
memory.
"""

# --- the journal: `sync-256`, `partitions-1024-sync` -----------------------------------------------------------------

DIRECT_PARTITIONS = 2
"""If at most so many partitions are busy, their own files are synced instead of the journal, unless the sync would wait
for one of their checkpoints.
"""

JOURNAL_GROUP_BYTES = 16 << 20
"""The maximum number of bytes that one sync of the journal makes safe, unless a single append is larger."""

JOURNAL_FILE_BYTES = 64 << 20
"""When a journal file has this size, the next file is begun."""

JOURNAL_FULL_FILES = 4
"""When there are so many full files, all their partitions are checkpointed at once. So at most 256 MiB have to be
replayed.
"""

JOURNAL_JOIN_BELOW_BYTES = 4096
"""If the data's buffers are smaller than this on average, they are joined, because one copy costs less than so many
calls.
"""

INTERNAL_SYNC_RECORDS = 100_000
INTERNAL_SYNC_MS = 1000
"""The sync interval, in records and in milliseconds, of the internal logs for partitions with asynchronous flush."""

DELAYED_SEGMENT_BYTES = 64 << 20
"""The segment size of delayed messages. The longest-lived messages in the oldest segment are rewritten, so that this
segment can be removed.
"""

SEQUENCES_DIRECT_BYTES = 1 << 20
"""Up to this size, numbered writes to one or two partitions are written to the journal together with their row, so that
one sync covers all. Larger writes are not worth writing twice. `sync-256`, `latency-sync`.
"""

# --- batches: `batch`, `batch-128`, `batch-10240` ---------------------------------------------------------------------

FEW_PUTS = 8
"""Up to so many single records are encoded one by one, because for them a numpy call costs more."""

SLICE_RECORDS = 1 << 13
"""How many records are stamped at once, in some milliseconds. Other connections get their turn in between."""

SLICE_BYTES = 4 << 20
"""How many bytes are stamped at once, for the same reason."""

SLICE_ATTRIBUTES = 1 << 10
"""How many attributes are decoded at once, for the same reason."""

SLICE_ATTRIBUTE_BYTES = 1 << 20
"""How many bytes of records with attributes are handled at once. Each attribute is copied and searched for its tag."""

# --- reading what was stored: `consume`, `consume-arrow`, `python -m bench.backlog` -----------------------------------

SCRATCH_BYTES = 16 << 10
"""Up to this size, data are copied out of a reused read buffer. Larger reads get their own buffer."""

SEARCH_FIRST_UNITS = 64
"""How many index units the first read of a range gets. They determine the size of the next read."""

MAX_BOUNDARIES = 256
"""How many record boundaries an index remembers, so that a continuing reader needs no search."""

UNITS_PER_READ = 1 << 16
"""How many index units (2 MiB) are read at once when all units of a segment are searched."""

LOAD_BYTES = 64 << 10
"""How many bytes are read around a missing piece of an index, because searches often read neighbouring bytes next."""

EXAMINED_UNITS = 1 << 12
"""How many consecutive records are examined for damage at once. Damage behind them is a separate range."""

WALKED_BYTES = 4 << 20
"""How many bytes of records without an index are checked at once on the owning thread."""

MAX_WALKED = 256
"""How many ends of such checks are remembered, so that the data before a continuing reader are not checked again."""

MISSES_PER_STEP = 8
"""Only once in so many writes to files that are not open may an open file be closed. So if several times as many files
as may be open are written in turn, the open files stay open. `partitions-10240`.
"""

# --- cold readers: `python -m bench.backlog` --------------------------------------------------------------------------

MAX_WINDOW_BYTES = 4 << 20
"""How many bytes are prefetched ahead of a reader, and how many bytes behind it stay cached for others."""

HOT_TAIL_BYTES = 64 << 20
"""So many bytes at the end of a partition are never dropped from the page cache."""

SPARE_MEMORY_PART = 0.1
"""If more than this part of the machine's memory is unused, even by the page cache, no pages are dropped."""

ADVICE_BYTES = 1 << 20
"""How many bytes one call prefetches. The kernel reduces it to the amount that the device reads at once, often 1,280
KiB.
"""

# --- starting, and making indexes again: `python -m bench.startup` ----------------------------------------------------

SCAN_CHUNK_BYTES = 4 << 20
"""How many bytes are read at once while records are checked."""

SCAN_RUN_FROM = 16
"""At least so many neighbouring records of equal size are worth handling at once."""

SCAN_MIXED_RECORDS = 256
"""How many records are handled one by one before the next check for equal sizes."""

WALK_RECORDS = 1 << 20
"""How many records are checked at once in a search for damage. They have 32 MiB of units."""

COPY_BYTES = 4 << 20
"""How many bytes are copied, or compared with the disk, at once."""

UNITS_IN_MEMORY = 128
"""At most so many units (4 KiB) of a recovered segment stay in memory until the next checkpoint."""

SYNCED_ONE_BY_ONE = 64
"""If there are more recovered segments and directories than this, whole file systems are synced, including other
programs' data.
"""

REBUILD_RETRY_SECONDS = 60.0
"""The pause after a failed attempt to make an index or a key file. No benchmark depends on it."""

# --- key files: no scenario sends keys; docs/decisions/008-search-by-id-and-key.md has what was weighed ---------------

KEY_BLOCK_BYTES = 64 << 20
"""How many bytes of data one block covers. The end of a growing segment, up to this size, has no block, so searches
read the data themselves.
"""

KEY_BLOCK_RECORDS = 1 << 19
"""The maximum number of records of a block. Their units take 16 MiB of memory while the block is built."""

KEY_BYTES_PER_SECOND = 256 << 20
"""The maximum rate of reading data for blocks. The limit leaves the disk to others while many blocks are built after an
upgrade.
"""

KEY_LEAST_COST_BYTES = 1 << 20
"""The minimum cost that is charged for a job, because it opens and syncs files."""

KEY_LOGS_LOOKED_AT = 1024
"""How many logs one tick, or the end of a job, checks for work. This takes a few milliseconds."""

KEY_WINDOW_BYTES = 4 << 20
"""How many bytes of data are read at once for a block."""

KEY_SLICE_RECORDS = 512
"""How many records' keys are hashed before other threads may use the interpreter. This takes half a millisecond, which
is the longest wait for the interpreter.
"""

KEY_SLICE_PAUSE_SECONDS = 0.00005
"""The pause between such slices, in which other threads use the interpreter."""

MAX_RECENT_ENTRIES = 2 << 20
"""How many entries are kept in memory (16 MiB) for data of all partitions that no key file covers yet."""

CANDIDATE_BYTES = 4096
"""How many bytes of a record are read to find its keys. More are read only if its attribute is longer."""

# --- removing segments: no benchmark does -----------------------------------------------------------------------------

MAX_DISCARDING = 2
"""The files of at most so many logs are deleted or compressed at the same time, and topics take turns. The limit exists
because syncs must not wait for a thread behind such work.
"""
