"""One life of a store: it starts, is checked against what earlier lives promised, works for a while, and may end."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

from metaq.broker.assembly.kinds import KINDS
from metaq.broker.store import journal as journal_module
from metaq.broker.store.batch import encode_puts
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.store import Append, Store, TopicStoreConfig
from metaq.broker.store.topic_config import DeletePolicy, Disposal
from metaq.protocol.errors import DiskFull, LogReadOnly, MetaqError
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import Buffer, checksum
from tests.doubles.store import check_invariants

from .history import Broken, History, PartitionHistory, SectorEdges, body_of, empty_records
from .shim import Shim
from .steps import SteppedThreads

__all__ = ["StoreLife", "StoreWork", "check_invariants_of", "edges_of", "read_everything", "shrink_limits"]

_NOW_MS = 1_700_000_000_000
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreWork:
    """What a store does. sync, fast: partitions of the topics with group commit and with asynchronous flush.

    segment_bytes: of a segment before it rolls. actions: of the owning thread. keep_bytes: of a topic before retention
    removes its oldest segments, None for all. journal_bytes: of a journal file. large: whether there are messages of
    several pages. checkpoints: weight of them beside 50 puts.
    """

    sync: int = 1
    fast: int = 0
    segment_bytes: int = 1 << 20
    actions: int = 60
    keep_bytes: int | None = None
    journal_bytes: int = 64 << 20
    large: bool = True
    checkpoints: int = 6


def shrink_limits(work: StoreWork) -> None:
    """Have what happens after many megabytes happen soon: journal files become full and are removed."""
    defaults = journal_module.Journal.__init__.__kwdefaults__
    assert defaults is not None
    assert {"max_file_bytes", "full_files"} <= defaults.keys()
    defaults.update(max_file_bytes=work.journal_bytes, full_files=2 if work.journal_bytes < 1 << 20 else 4)


class StoreLife:
    """Lives in a process of its own, which ends with it."""

    def __init__(self, directory: Path, work: StoreWork, seed: object, shim: Shim, number: int = 0) -> None:
        """number: of this life, so that the messages of all have different names."""
        self._work = work
        self._rng = random.Random(f"{seed}")
        self._shim = shim
        self._number = number
        self._now = 0.0
        self._wall = _NOW_MS / 1000
        shrink_limits(work)
        self.threads = SteppedThreads(random.Random(f"threads {seed}"), shim)
        self.store = Store(
            [str(directory)],
            self._config,
            kinds=KINDS,
            run_in_thread=self.threads.run_in_thread,
            run_journal=self.threads.run_journal,
            clock=lambda: self._wall,
            monotonic=lambda: self._now,
            max_open_files=self._rng.choice((3, 64)),
            key_block_bytes=512,
            disk_reserve=0,
        )
        self._sizes = (5, 30, 60, 300, 1000, 5000, 9000) if work.large else (5, 10, 30, 60)
        self._ids = itertools.count()

    def _config(self, topic: str) -> TopicStoreConfig:
        policy = None
        if self._work.keep_bytes is not None:
            policy = DeletePolicy(Disposal.DELETE, 10**9, self._work.keep_bytes)
        threshold = 0 if topic.startswith("sync") else 4
        return TopicStoreConfig(self._work.segment_bytes, threshold, 10_000, policy)

    # --- starting -----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover; what readers can see then is promised, where that is what the topic promises."""
        self.store.open()
        self._ids = itertools.count(max(self.store.max_message_id + 1, message_id(counter_at(_NOW_MS), 0)))
        for log in self.store.logs():
            self._promise_opened(log)

    def _promise_opened(self, log: PartitionLog) -> None:
        for offset in empty_records(log.first_offset, read_everything(_name(log), log)):
            self._shim.mark(kind="empty", partition=_name(log), offset=offset)
        end = log.visible_end if log.has_group_commit else log.synced_end
        self._shim.mark(kind="keep", partition=_name(log), end=end, first=log.first_offset)

    def check(self, history: History) -> None:
        """Whether everything that was promised is there. Raises Broken."""
        found = {_name(log): log for log in self.store.logs()}
        for name, partition in history.partitions.items():
            log = found.get(name)
            if log is None:
                if partition.settled:
                    raise Broken(f"{name} is lost, with {len(partition.settled)} acknowledged messages")
                continue
            self._check_log(name, log, partition, edges_of(log, history))
        for name in found.keys() - history.partitions.keys():
            if found[name].end_offset:
                raise Broken(f"{name} has {found[name].end_offset} bytes, and nothing was put there")

    def _check_log(self, name: str, log: PartitionLog, partition: PartitionHistory, edges: SectorEdges) -> None:
        if log.read_only is not None:
            raise Broken(f"{name} is read-only after the start: {log.read_only}")
        partition.check(name, log.first_offset, read_everything(name, log), edges)
        check_invariants_of(name, log)

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, actions: int | None = None) -> None:
        """Do things at random, worker threads in between."""
        for _ in range(self._work.actions if actions is None else actions):
            self._act()
            for _ in range(self._rng.choice((0, 0, 1, 2, 5, 20))):
                self.threads.step()

    def finish(self) -> None:
        """Let everything end that is under way."""
        self.threads.run_all()
        self._promise_synced()

    def close(self) -> None:
        self.store.close()
        for log in self.store.logs():
            if log.read_only == "the store is closed":
                self._shim.mark(kind="keep", partition=_name(log), end=log.end_offset)

    def _act(self) -> None:
        kinds = ("put", "many", "tick", "checkpoint", "promise", "retention", "run")
        (kind,) = self._rng.choices(
            kinds, (50, 15, 8, self._work.checkpoints, 10, 4 if self._work.keep_bytes else 0, 3)
        )
        if kind == "put":
            self._put(self._some_log())
        elif kind == "many":
            self._put_many([self._some_log() for _ in range(self._rng.randint(2, 6))])
        elif kind == "tick":
            self._now += self._rng.choice((0.25, 6.0, 40.0))
            self.store.tick()
        elif kind == "checkpoint":
            self._some_log().checkpoint()
        elif kind == "promise":
            self._promise_synced()
        elif kind == "retention":
            self._remove()
        else:
            self.threads.run_all()

    def _some_log(self) -> PartitionLog:
        names = [("sync", n) for n in range(self._work.sync)] + [("fast", n) for n in range(self._work.fast)]
        return self.store.get_or_create(*self._rng.choice(names))

    def _messages(self) -> list[tuple[str, int]]:
        count = self._rng.choice((1, 1, 1, 2, 5))
        return [(f"i{next(self._ids):x}.{self._number}", self._rng.choice(self._sizes)) for _ in range(count)]

    def _encode(self, log: PartitionLog, base: int) -> tuple[list[Buffer], bytes]:
        messages = self._messages()
        ids = [int(name[1:].partition(".")[0], 16) for name, _ in messages]
        bodies = [body_of(name, size) for name, size in messages]
        self._shim.mark(kind="put", partition=_name(log), offset=base, messages=messages)
        return encode_puts([(0, checksum(body), body) for body in bodies], base, ids, _NOW_MS)

    def _put(self, log: PartitionLog) -> None:
        if log.read_only is not None:
            return
        data, units = self._encode(log, log.end_offset)
        try:
            log.append(data, units)
        except (LogReadOnly, DiskFull):
            return
        self._expect(log, log.end_offset)

    def _put_many(self, logs: list[PartitionLog]) -> None:
        last: dict[PartitionLog, int] = {}
        ends: list[int] = []
        appends = []
        for log in logs:
            base = last.get(log, log.end_offset)
            if log.read_only is None:
                data, units = self._encode(log, base)
                appends.append((log, data, units))
                last[log] = base + sum(map(len, data))
                ends.append(last[log])
        errors = [each.error for each in self.store.append_many(Append(*each) for each in appends)]
        for (log, _, _), end, error in zip(appends, ends, errors, strict=True):
            if error is None:
                self._expect(log, end)

    def _expect(self, log: PartitionLog, end: int) -> None:
        def visible(error: MetaqError | None) -> None:
            if error is None:
                self._shim.mark(kind="keep", partition=_name(log), end=end)

        if log.has_group_commit:
            log.when_safe(end, visible)

    def _promise_synced(self) -> None:
        """What the store says that it has on the disk: the transaction log relies on it."""
        for log in self.store.logs():
            if log.synced_end > log.first_offset:
                self._shim.mark(kind="keep", partition=_name(log), end=log.synced_end)

    def _remove(self) -> None:
        firsts = {log: log.first_offset for log in self.store.logs()}
        self._shim.mark(kind="note", text="retention")
        self.store.apply_size_limits()
        for log, first in firsts.items():
            if log.first_offset != first:
                self._shim.mark(kind="removed", partition=_name(log), end=log.first_offset)


def _name(log: PartitionLog) -> str:
    return f"{log.topic}-{log.partition}"


def edges_of(log: PartitionLog, history: History) -> SectorEdges:
    """Where the cuts of this history may have left an empty message that nobody sent."""
    return SectorEdges([segment.first_offset for segment in log.segments] if history.torn else ())


def read_everything(name: str, log: PartitionLog) -> bytes:
    """All bytes that readers see, segment by segment. Raises Broken if they end too early."""
    data = bytearray()
    offset = log.first_offset
    while offset < log.visible_end:
        read = log.segments.snapshot().read(offset, _READ_BYTES)
        if not read:
            raise Broken(f"{name}: nothing can be read at {offset} of {log.visible_end}")
        data += read
        offset += len(read)
    return bytes(data)


def check_invariants_of(name: str, log: PartitionLog) -> None:
    """The store's own invariants, once every index is there. Raises Broken."""
    try:
        check_invariants(log)
    except AssertionError as error:
        raise Broken(f"{name}: an invariant does not hold: {error or 'see testing.check_invariants'}") from error
