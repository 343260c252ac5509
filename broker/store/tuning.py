"""The store's constants that were tuned: unit, reason, and the benchmark to run when one is changed."""

from __future__ import annotations

# --- syncs of partitions: `partitions-1024-sync`, `partitions-10240`, `batch-10240-sync` -----------------------------

CHECKPOINT_SECONDS = 5.0
"""Interval of checkpoints of a dirty partition. A start checks newer data."""

JOURNALED_CHECKPOINT_SECONDS = 30.0
"""As CHECKPOINT_SECONDS for journaled data: a checkpoint only saves the next start work, and large appends cause
one."""

MAX_BACKGROUND_JOBS = 16
"""Timer-driven syncs running at once; each keeps a descriptor open and a worker thread busy."""

GROUPED_FROM = 64
"""If more partitions than this wait for a sync, they share one of the whole file system, including other programs'
data."""

MAX_GROUP = 128
"""Partitions in such a group: ending their jobs and making the next group's takes the owning thread some 3 ms."""

LOOKED_AT_PER_TICK = 1024
"""Due dirty partitions that one tick handles, some 2 ms; the others wait for the next tick."""

WRITEBACK_BYTES = 4 << 20
"""Appended bytes of a partition after which the kernel is told to begin writing them. `batch`, `latency`."""

KEPT_COPY_BYTES = 16 << 20
"""Bytes at the end of a copy that the page cache keeps while the kernel writes them. `python -m bench.catch_up`."""

# --- memory for index units: `partitions-10240`, and the broker's memory there -------------------------------------

MAX_UNSTORED_UNITS = 1 << 16
"""Index units that one partition holds in memory (2 MiB) before they are written ahead of the checkpoint."""

MAX_UNITS = 3 << 20
"""Index units that all dirty partitions together may hold in memory (96 MiB)."""

LEAST_UNITS = 256
"""Index units that each of them may always hold: writing fewer costs more than they take."""

# --- the journal: `sync-256`, `partitions-1024-sync` -----------------------------------------------------------------

DIRECT_PARTITIONS = 2
"""Up to this many busy partitions are synced themselves, unless the sync would wait for one of their checkpoints."""

JOURNAL_GROUP_BYTES = 16 << 20
"""Bytes that one sync of the journal makes safe at most, unless a single append is larger."""

JOURNAL_FILE_BYTES = 64 << 20
"""Size at which a journal file is followed by the next."""

JOURNAL_FULL_FILES = 4
"""Full files that are kept until their partitions are checkpointed, all at once: 256 MiB to replay at most."""

JOURNAL_JOIN_BELOW_BYTES = 4096
"""Data in buffers smaller than this on average is joined: one copy costs less than that many calls."""

INTERNAL_SYNC_RECORDS = 100_000
INTERNAL_SYNC_MS = 1000
"""Sync interval of the internal log of partitions with asynchronous flush."""

DELAYED_SEGMENT_BYTES = 64 << 20
"""Segment size of delayed messages. The longest-lived messages in the oldest segment are rewritten so that it can
go."""

SEQUENCES_DIRECT_BYTES = 1 << 20
"""Up to this size, numbered writes to one or two partitions go through the journal with their row: one sync for all.
Larger ones are not worth writing twice. `sync-256`, `latency-sync`."""

# --- batches: `batch`, `batch-128`, `batch-10240` ---------------------------------------------------------------------

FEW_PUTS = 8
"""Up to this many single records are encoded one by one: numpy costs more per call than they do."""

SLICE_RECORDS = 1 << 13
"""Records stamped at once, some milliseconds; other connections get their turn in between."""

SLICE_BYTES = 4 << 20
"""Bytes stamped at once, for the same reason."""

SLICE_ATTRIBUTES = 1 << 10
"""Attributes decoded at once, likewise."""

SLICE_ATTRIBUTE_BYTES = 1 << 20
"""Bytes of records with attributes that are handled at once: each is copied and searched for its tag."""

# --- reading what was stored: `consume`, `consume-arrow`, `python -m bench.backlog` -----------------------------------

SCRATCH_BYTES = 16 << 10
"""Up to this size, data is copied out of a reused read buffer; larger reads get their own buffer."""

SEARCH_FIRST_UNITS = 64
"""Index units of the first read of a range; they determine the size of the next read."""

MAX_BOUNDARIES = 256
"""Record boundaries that an index remembers, so that a continuing reader needs no search."""

UNITS_PER_READ = 1 << 16
"""Index units (2 MiB) read at once when all units of a segment are searched."""

LOAD_BYTES = 64 << 10
"""Bytes read around a missing piece of an index: searches return to the neighbourhood."""

EXAMINED_UNITS = 1 << 12
"""Consecutive records whose damage is found at once; damage behind them is a separate range."""

WALKED_BYTES = 4 << 20
"""Bytes of records without an index that are checked at once on the owning thread."""

MAX_WALKED = 256
"""Ends of such walks that are remembered, so that a continuing reader is not checked again."""

MISSES_PER_STEP = 8
"""After this many writes to files that are not open, an open file may have to close. So if several times as many files
as may be open are written in turn, the open ones stay open. `partitions-10240`."""

# --- cold readers: `python -m bench.backlog` --------------------------------------------------------------------------

MAX_WINDOW_BYTES = 4 << 20
"""How far data is fetched ahead of a reader, and how far behind it its pages are kept for others."""

HOT_TAIL_BYTES = 64 << 20
"""The last bytes of a partition, which are never dropped."""

SPARE_MEMORY_PART = 0.1
"""Part of the machine's memory that is entirely unused, even by the page cache: above this nothing is dropped."""

ADVICE_BYTES = 1 << 20
"""Bytes prefetched by one call: the kernel cuts it to what the device takes at once, often 1,280 KiB."""

# --- starting, and making indexes again: `python -m bench.startup` ----------------------------------------------------

SCAN_CHUNK_BYTES = 4 << 20
"""Bytes read at once while records are checked."""

SCAN_RUN_FROM = 16
"""Number of equally sized neighbours that are worth handling at once."""

SCAN_MIXED_RECORDS = 256
"""Records that are walked one by one before the next check for equal sizes."""

WALK_RECORDS = 1 << 20
"""Records that are checked at once in search of damage: 32 MiB of units."""

COPY_BYTES = 4 << 20
"""Bytes copied, or compared with the disk, at once."""

UNITS_IN_MEMORY = 128
"""Units (4 KiB) of a recovered segment that wait in memory for the next checkpoint."""

SYNCED_ONE_BY_ONE = 64
"""Above this many recovered segments and directories, whole file systems are synced, including other programs' data."""

REBUILD_RETRY_SECONDS = 60.0
"""Pause after an index or a key file could not be made; no benchmark depends on it."""

# --- key files: no scenario sends keys; docs/decisions/008-search-by-id-and-key.md has what was weighed ---------------

KEY_BLOCK_BYTES = 64 << 20
"""Data covered by one block. The end of a growing segment, up to this size, has no block and is read by searches."""

KEY_BLOCK_RECORDS = 1 << 19
"""Maximum records of a block: their units take 16 MiB while it is built."""

KEY_BYTES_PER_SECOND = 256 << 20
"""Maximum rate of reading data for blocks, so that catching up after an upgrade leaves the disk to others."""

KEY_LEAST_COST_BYTES = 1 << 20
"""Minimum cost charged for a job: it opens and syncs files."""

KEY_LOGS_LOOKED_AT = 1024
"""Logs that one tick, or the end of a job, checks for work: a few milliseconds."""

KEY_WINDOW_BYTES = 4 << 20
"""Bytes of data read at once for a block."""

KEY_SLICE_RECORDS = 512
"""Records whose keys are hashed before other threads get the interpreter: half a millisecond, the longest wait for
it."""

KEY_SLICE_PAUSE_SECONDS = 0.00005
"""The pause between such slices, in which other threads get it."""

MAX_RECENT_ENTRIES = 2 << 20
"""Entries kept in memory for data that no key file covers yet, of all partitions together: 16 MiB."""

CANDIDATE_BYTES = 4096
"""Bytes of a record read to find its keys; more only if its attribute is longer."""

# --- removing segments: no benchmark does -----------------------------------------------------------------------------

MAX_DISCARDING = 2
"""Logs whose files are deleted or zipped at once, in turn by topic: syncs must not wait for a thread behind them."""
