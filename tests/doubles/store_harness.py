"""For tests: a store in a temporary directory with hand-run threads, a breakable disk and hand-set clocks."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from metaq.broker.assembly.kinds import KINDS
from metaq.broker.store.batch import encode_puts
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.store.recovery import RecoveryReport
from metaq.broker.store.retention import RemovedSegment
from metaq.broker.store.store import Store, TopicStoreConfig
from metaq.broker.store.topic_config import DeletePolicy
from metaq.protocol.errors import MetaqError
from metaq.protocol.message_id import counter_at, message_id
from metaq.protocol.record import Buffer, checksum, iter_headers
from tests.doubles.store import FaultyFiles, ManualThreads, check_invariants

__all__ = ["NOW_MS", "Answers", "StoreHarness", "flip"]

NOW_MS = 1_700_000_000_000
"""The harness's wall clock, Unix ms."""


def flip(path: Path, position: int, mask: int = 1) -> bytes:
    """Change bits of one byte of a file; returns what the file has now."""
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)
    return bytes(data)


class StoreHarness:
    """One store under test; `restart`, `kill` and `lose_power` put a new one on the same directory."""

    def __init__(self, data_path: Path) -> None:
        self.path = str(data_path)
        self.threads = ManualThreads()
        self.files = FaultyFiles()
        self.now = 0.0
        self.wall = NOW_MS / 1000
        self.group_commit = False
        self.unflush_threshold = 1000
        self.max_segment_size = 1 << 20
        self.delete_policy: DeletePolicy | None = None
        self.next_id = message_id(counter_at(NOW_MS), 0)
        self.key_block_bytes = 1 << 20
        self.opened: Store | None = None

    def config(self, topic: str) -> TopicStoreConfig:
        threshold = 0 if self.group_commit else self.unflush_threshold
        return TopicStoreConfig(self.max_segment_size, threshold, 10_000, self.delete_policy)

    def open(self) -> Store:
        self.opened = Store(
            [self.path],
            self.config,
            kinds=KINDS,
            run_in_thread=self.threads,
            files=self.files,
            clock=lambda: self.wall,
            monotonic=lambda: self.now,
            key_block_bytes=self.key_block_bytes,
        )
        self.opened.open()
        return self.opened

    @property
    def store(self) -> Store:
        return self.opened or self.open()

    @property
    def log(self) -> PartitionLog:
        return self.store.get_or_create("t", 0)

    def report(self) -> RecoveryReport:
        (found,) = self.store.reports
        return found

    def restart(self) -> PartitionLog:
        self.store.close()
        self.open()
        return self.log

    def kill(self) -> PartitionLog:
        """kill -9, and start again."""
        self.files.kill()
        return self._start_anew(self.files.next_life())

    def lose_power(self, kept: Collection[str] = ()) -> PartitionLog:
        self.files.lose_power(kept)
        return self._start_anew()

    def crash(self, *, power: bool) -> PartitionLog:
        """A power cut, or else a kill; and a start."""
        return self.lose_power() if power else self.kill()

    @contextmanager
    def stopped(self, *, clean: bool = False, partition: int = 0) -> Iterator[Path]:
        """Something happens to the files, the first data file of a partition among them, between two lives."""
        data = self.data_file(partition=partition)
        if clean:
            self.store.close()
        else:
            self.files.kill()
        yield data
        self._start_anew()

    def _start_anew(self, files: FaultyFiles | None = None) -> PartitionLog:
        self.threads = ManualThreads()
        self.files = files or FaultyFiles()
        self.open()
        return self.log

    def append(self, *bodies: bytes, flag: int = 0, now_ms: int = NOW_MS) -> int:
        """Append one batch with fresh ids and check the invariants; returns its offset."""
        base = self.put(self.log, *bodies, flag=flag, now_ms=now_ms)
        check_invariants(self.log)
        return base

    def append_safe(self, *bodies: bytes, now_ms: int = NOW_MS) -> int:
        """Append one batch, and let everything run that waits."""
        base = self.append(*bodies, now_ms=now_ms)
        self.threads.run_all()
        return base

    def append_each(self, *bodies: bytes, segment_bytes: int | None = None) -> None:
        """Each in a batch of its own, in segments that are followed by others at this size."""
        self.max_segment_size = segment_bytes or self.max_segment_size
        for body in bodies:
            self.append(body)

    def put(self, log: PartitionLog, *bodies: bytes, flag: int = 0, now_ms: int = NOW_MS) -> int:
        """Append one batch with fresh ids to any partition; returns its offset."""
        return log.append(*self.encoded(log.end_offset, *bodies, flag=flag, now_ms=now_ms))

    def encoded(
        self, base: int, *bodies: bytes, flag: int = 0, now_ms: int = NOW_MS
    ) -> tuple[Sequence[Buffer], Buffer]:
        """Data and units of one batch with fresh ids that begins at offset `base`."""
        ids = range(self.next_id, self.next_id + len(bodies))
        self.next_id += len(bodies)
        return encode_puts([(flag, checksum(body), body) for body in bodies], base, ids, now_ms)

    def checkpoint(self) -> None:
        """Of the partition, made at once."""
        self.log.checkpoint()
        self.threads.run_all()

    def flush(self) -> None:
        """Sync the partition at once."""
        self.log.flush()
        self.threads.run_all()

    def retain(self) -> list[RemovedSegment]:
        """Apply retention, to the end; returns what goes."""
        removed = self.store.apply_retention()
        self.threads.run_all()
        return removed

    def tick(self) -> None:
        """A tick, and all that it starts."""
        self.store.tick()
        self.threads.run_all()

    def settle(self) -> None:
        """Let everything come to rest that has something to do."""
        for _ in range(30):
            self.now += 5
            self.tick()

    def bodies(self, partition: int = 0) -> list[bytes]:
        """Bodies of all readable records."""
        return list(self.records(partition).values())

    def records(self, partition: int = 0) -> dict[int, bytes]:
        """Bodies of all readable records by their offsets, read segment by segment; none without the partition."""
        log = self.store.find("t", partition)
        found: dict[int, bytes] = {}
        offset = log.first_offset if log else 0
        while log and offset < log.visible_end:
            data = log.segments.snapshot().read(offset, 1 << 30)
            assert data
            headers = list(iter_headers(data))
            assert headers[-1].end == len(data)
            found |= {offset + each.start: data[each.end - each.length : each.end] for each in headers}
            offset += len(data)
        return found

    def data_file(self, first_offset: int = 0, *, partition: int = 0) -> Path:
        return Path(self.path, f"t-{partition}", f"{first_offset:020d}.meta")

    def index_file(self, first_offset: int = 0) -> Path:
        return Path(self.path, "t-0", f"{first_offset:020d}.index")

    def names(self) -> list[str]:
        return sorted(os.listdir(os.path.join(self.path, "t-0")))


class Answers:
    """Callbacks for `when_safe`, and what each was called with."""

    def __init__(self) -> None:
        self.got: list[tuple[object, MetaqError | None]] = []

    def expect(self, log: PartitionLog, end: int, name: object) -> None:
        log.when_safe(end, lambda error: self.got.append((name, error)))

    def append(self, harness: StoreHarness, *bodies: bytes) -> None:
        """Append messages one by one whose answers are expected under their bodies."""
        for body in bodies:
            harness.append(body)
            self.expect(harness.log, harness.log.end_offset, body)

    @property
    def names(self) -> Sequence[object]:
        return [name for name, _ in self.got]

    @property
    def succeeded(self) -> Sequence[object]:
        return [name for name, error in self.got if error is None]
