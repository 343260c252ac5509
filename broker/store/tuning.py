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
