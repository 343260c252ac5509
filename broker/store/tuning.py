"""The store's constants that were tuned: unit, reason, and the benchmark to run when one is changed."""

from __future__ import annotations

# --- syncs of partitions: `partitions-1024-sync`, `partitions-10240`, `batch-10240-sync` -----------------------------

CHECKPOINT_SECONDS = 5.0
"""After so long a dirty partition gets a checkpoint. A start checks what came since."""

JOURNALED_CHECKPOINT_SECONDS = 30.0
"""The same where the journal has it: a checkpoint only spares the next start work, and large appends bring one."""

MAX_BACKGROUND_JOBS = 16
"""Timer-driven syncs under way at once; each keeps a descriptor open and a worker thread busy."""

GROUPED_FROM = 64
"""Partitions that wait for a sync above which they share one of the whole file system, with what others wrote to it."""

MAX_GROUP = 128
"""Partitions in such a group: ending their jobs and making the next group's takes the owning thread some 3 ms."""

LOOKED_AT_PER_TICK = 1024
"""Dirty partitions whose time has come that one tick looks at, some 2 ms; the others wait for the next tick."""

WRITEBACK_BYTES = 4 << 20
"""Appended bytes of a partition after which the kernel is told to begin writing them. `batch`, `latency`."""

KEPT_COPY_BYTES = 16 << 20
"""At the end of a copy that the page cache keeps while the kernel writes them. `python -m bench.catch_up`."""

# --- memory for index units: `partitions-10240`, and the broker's memory there -------------------------------------

MAX_UNSTORED_UNITS = 1 << 16
"""Index units that one partition holds in memory (2 MiB) before they are written out ahead of the checkpoint."""

MAX_UNITS = 3 << 20
"""Index units that all dirty partitions together may hold in memory (96 MiB)."""

LEAST_UNITS = 256
"""What each of them may hold in any case: writing fewer costs more than they take."""

# --- the journal: `sync-256`, `partitions-1024-sync` -----------------------------------------------------------------

DIRECT_PARTITIONS = 2
"""Up to so many busy partitions are synced themselves, unless that would have to wait for a checkpoint of theirs."""

JOURNAL_GROUP_BYTES = 16 << 20
"""What one sync of the journal makes safe at most, unless a single append is larger."""

JOURNAL_FILE_BYTES = 64 << 20
"""A journal file that has grown to this is followed by the next."""

JOURNAL_FULL_FILES = 4
"""Full files that are kept until their partitions are checkpointed, all at once: 256 MiB to replay at most."""

JOURNAL_JOIN_BELOW_BYTES = 4096
"""Data in buffers smaller than this on average is joined: one copy costs less than so many calls."""

INTERNAL_SYNC_RECORDS = 100_000
INTERNAL_SYNC_MS = 1000
"""The internal log of partitions with asynchronous flush is synced so often."""

DELAYED_SEGMENT_BYTES = 64 << 20
"""A segment of delayed messages: what lives longest in the oldest one is written anew, so that it can go."""

SEQUENCES_DIRECT_BYTES = 1 << 20
"""Up to this size numbered writes of one or two partitions go through the journal with their row: one sync for all.
More is not worth writing twice. `sync-256`, `latency-sync`."""

# --- batches: `batch`, `batch-128`, `batch-10240` ---------------------------------------------------------------------

FEW_PUTS = 8
"""Up to so many single records are encoded one by one: numpy costs more per call than they do."""

SLICE_RECORDS = 1 << 13
"""Records that are stamped at once, some milliseconds; other connections have their turn in between."""

SLICE_BYTES = 4 << 20
"""Bytes of them, for the same reason."""

SLICE_ATTRIBUTES = 1 << 10
"""Attributes that are decoded at once, likewise."""

SLICE_ATTRIBUTE_BYTES = 1 << 20
"""Bytes of records with them: each is copied and searched for its tag."""

# --- reading what was stored: `consume`, `consume-arrow`, `python -m bench.backlog` -----------------------------------

SCRATCH_BYTES = 16 << 10
"""Up to here what was read is copied out of a buffer that is used again; more gets a buffer of its own."""

SEARCH_FIRST_UNITS = 64
"""Index units of the first read of a range; the next one is as large as these say."""

MAX_BOUNDARIES = 256
"""Record boundaries that an index remembers, so that a reader that goes on needs no search."""

UNITS_PER_READ = 1 << 16
"""Index units (2 MiB) that are read at once where all of a segment's are looked through."""

LOAD_BYTES = 64 << 10
"""Read around a missing piece of an index: searches come back to the neighbourhood."""

EXAMINED_UNITS = 1 << 12
"""Records in a row whose damage is found at once; what is damaged behind them is a range of its own."""

WALKED_BYTES = 4 << 20
"""Of records without an index that are checked at once on the owning thread."""

MAX_WALKED = 256
"""Ends of such walks that are remembered, so that a reader that goes on is not checked again."""

MISSES_PER_STEP = 8
"""Writes to files that are not open after which one that is may have to go: several times as many files as may be open,
written in turn, leave those that are open alone. `partitions-10240`."""

# --- cold readers: `python -m bench.backlog` --------------------------------------------------------------------------

MAX_WINDOW_BYTES = 4 << 20
"""How far data is fetched ahead of a reader, and how far behind it its pages are kept for others."""

HOT_TAIL_BYTES = 64 << 20
"""The last bytes of a partition, which are never dropped."""

SPARE_MEMORY_PART = 0.1
"""Part of the machine's memory that is in no use at all, not even as page cache: above it nothing is dropped."""

ADVICE_BYTES = 1 << 20
"""Fetched by one call: the kernel cuts it to what the device takes at once, often 1,280 KiB."""

# --- starting, and making indexes again: `python -m bench.startup` ----------------------------------------------------

SCAN_CHUNK_BYTES = 4 << 20
"""Read at once while records are checked."""

SCAN_RUN_FROM = 16
"""Neighbours of one size that are worth a look at once."""

SCAN_MIXED_RECORDS = 256
"""Records that are walked one by one before the next such look."""

WALK_RECORDS = 1 << 20
"""Records that are checked at once in search of damage: 32 MiB of units."""

COPY_BYTES = 4 << 20
"""Copied, or compared with the disk, at once."""

UNITS_IN_MEMORY = 128
"""Units (4 KiB) of a recovered segment that wait in memory for the next checkpoint."""

SYNCED_ONE_BY_ONE = 64
"""Recovered segments and directories above which whole file systems are synced, with what others wrote to them."""

REBUILD_RETRY_SECONDS = 60.0
"""Pause after an index or a key file could not be made; no benchmark depends on it."""

# --- key files: no scenario sends keys; docs/decisions/008-search-by-id-and-key.md has what was weighed ---------------

KEY_BLOCK_BYTES = 64 << 20
"""Data that one block is for; so much at the end of a growing segment has none and is read by those who search."""

KEY_BLOCK_RECORDS = 1 << 19
"""Most records of a block: their units take 16 MiB while it is built."""

KEY_BYTES_PER_SECOND = 256 << 20
"""Data read for blocks at most, so that catching up after an upgrade leaves the disk to others."""

KEY_LEAST_COST_BYTES = 1 << 20
"""What a job counts as at least: it opens and syncs files."""

KEY_LOGS_LOOKED_AT = 1024
"""Logs that one tick, or the end of a job, looks at for something to do: a few milliseconds."""

KEY_WINDOW_BYTES = 4 << 20
"""Data read at once for a block."""

KEY_SLICE_RECORDS = 512
"""Records whose keys are hashed before other threads get the interpreter: half a millisecond, which is the longest that
one has to wait for it."""

KEY_SLICE_PAUSE_SECONDS = 0.00005
"""The pause between such slices in which they get it."""

MAX_RECENT_ENTRIES = 2 << 20
"""Entries kept of what no key file covers yet, of all partitions together: 16 MiB."""

CANDIDATE_BYTES = 4096
"""Read of a record to see its keys; more only if its attribute is longer."""

# --- removing segments: no benchmark does -----------------------------------------------------------------------------

MAX_DISCARDING = 2
"""Logs whose files are deleted or zipped at once, in turn by topic: syncs must not wait for a thread behind them."""
