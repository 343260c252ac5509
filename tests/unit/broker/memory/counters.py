"""A kind of message for tests, as CONTRIBUTING.md says how to write one: how often each key was counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, error

from metaq.broker.memory.figures import Lines, Metrics, counter, gauge
from metaq.broker.memory.memory import Memory
from metaq.broker.memory.reading import LogReader
from metaq.broker.memory.records import read_bodies
from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.errors import StoreError
from metaq.protocol.record import HEADER_BYTES

__all__ = ["Counters"]

_COUNT = Struct(">Q")  # the key follows


def _encode(key: str, count: int) -> bytes:
    return _COUNT.pack(count) + key.encode("utf-8")


def _decode(body: bytes) -> tuple[str, int]:
    try:
        return body[_COUNT.size :].decode("utf-8"), _COUNT.unpack_from(body)[0]
    except (error, UnicodeDecodeError) as wrong:
        raise StoreError(f"a counter cannot be read: {wrong}") from wrong


class CounterLog(LogReader):
    """The counters in one log."""

    def __init__(self, log: PartitionLog) -> None:
        super().__init__(log)
        self.counts: dict[str, int] = {}

    def _clear(self) -> None:
        self.counts.clear()

    def _read(self, most: int | None) -> None:
        for end, body in read_bodies(self.log.segments.snapshot(), self._read_to, most):
            key, count = _decode(body)
            self.counts[key] = count
            self._read_to = end


class Counters(Memory[CounterLog]):
    """The counters of a broker. The key of a partition's counter begins with `<topic>-<partition>/`."""

    topic = "/counters"
    name = item = "counters"
    followed = 1 << 20
    counted = 0

    @staticmethod
    def check_record(record: bytes) -> None:
        _decode(record[HEADER_BYTES:])

    def _reader(self, log: PartitionLog) -> CounterLog:
        return CounterLog(log)

    def count(self, key: str) -> int:
        """Count a key, and return how often it was counted. Raises StoreError."""
        log = self.store.internal_log(self.topic, group_commit=False)
        counts = self._of(log).counts
        count = counts.get(key, 0) + 1
        self._write(log, _encode(key, count))
        counts[key] = count
        self.counted += 1
        return count

    @property
    def counts(self) -> dict[str, int]:
        """All counters."""
        return {key: count for table in self._logs.values() for key, count in table.counts.items()}

    def most_bytes(self, log: PartitionLog) -> int:
        return max(4096, 128 * len(self._of(log).counts))

    def _state(self, log: PartitionLog) -> Iterator[bytes]:
        counts = self._of(log).counts
        for key in list(counts):
            yield _encode(key, counts[key])

    def lines(self) -> Lines:
        yield f"counted {self.counted}"
        for key, count in sorted(self.counts.items()):
            yield f"count:{key} {count}"

    def metrics(self) -> Metrics:
        yield gauge("metaq_counters_keys", "Keys that have a counter", len(self.counts))
        yield counter("metaq_counters_counted", "Keys counted", self.counted)

    def left_behind(self, topic: str, partitions: Sequence[int]) -> str | None:
        names = [name for name in (f"{topic}-{each}" for each in partitions) if any(self._of_partition(name))]
        return f"counters to be read ({', '.join(names)})" if names else None

    def _of_partition(self, name: str) -> Iterator[str]:
        return (key for key in self.counts if key.startswith(f"{name}/"))
