"""What the compaction of an internal log may drop, and when: the same for numbered sends and for shared groups."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from metaq.broker.memory.compaction import Compaction
from metaq.broker.memory.sequence_rows import internal_record
from metaq.broker.memory.topics import SHARED_TOPIC
from metaq.broker.runtime.slices import SlicedWork
from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.errors import StoreError
from tests.doubles.store_harness import StoreHarness

MOST_BYTES = 1000


class Compacted:
    """An internal log of 40 records, 30 bytes each, that `write_all` replaces by 3, one in each turn."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.log = harness.store.internal_log(SHARED_TOPIC, False)
        self.clock = Clock()
        self.writes: Callable[[PartitionLog], Iterator[None]] = self.write_three
        works = SlicedWork(self.clock)
        self.compaction = Compaction(
            harness.store, SHARED_TOPIC, works, lambda log: self.writes(log), lambda log: MOST_BYTES, self.clock.seconds
        )
        self.append(40)
        self.before = self.log.end_offset

    def append(self, count: int) -> None:
        for _ in range(count):
            data, unit = internal_record(b"0123456789", 0, self.log.end_offset)
            self.log.append((data,), unit)

    def write_three(self, log: PartitionLog) -> Iterator[None]:
        for _ in range(3):
            self.append(1)
            yield

    def turns(self, count: int) -> None:
        self.compaction.tick()
        self.clock.pump([0.001] * count)


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[Compacted]:
    harness = StoreHarness(tmp_path / "data")
    yield Compacted(harness)
    harness.files.kill()


def test_what_is_older_goes_once_what_is_known_is_on_the_disk(compacted: Compacted) -> None:
    log = compacted.log
    compacted.turns(5)
    assert log.end_offset == compacted.before + 3 * 30
    compacted.turns(5)
    assert (log.first_offset, log.synced_end < log.end_offset) == (0, True)
    compacted.harness.threads.run_all()  # asked for by a checkpoint: its time is far away
    compacted.turns(5)
    assert (log.first_offset, log.end_offset) == (compacted.before, compacted.before + 3 * 30)


def test_a_log_of_few_bytes_stays(compacted: Compacted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MOST_BYTES", compacted.before)
    compacted.turns(5)
    assert compacted.log.end_offset == compacted.before


def test_what_cannot_be_written_is_tried_again_a_minute_later(
    compacted: Compacted, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(log: PartitionLog) -> Iterator[None]:
        yield
        raise StoreError("no room")

    compacted.writes = fail
    compacted.turns(3)
    assert "is not made shorter now: no room" in caplog.text
    compacted.writes = compacted.write_three
    compacted.turns(3)
    assert compacted.log.end_offset == compacted.before
    compacted.clock.advance(60)
    compacted.turns(5)
    assert compacted.log.end_offset == compacted.before + 3 * 30


def test_a_node_that_leads_no_longer_ends_what_is_under_way_and_drops_nothing(compacted: Compacted) -> None:
    compacted.turns(1)
    compacted.compaction.clear()
    end = compacted.log.end_offset
    compacted.clock.pump([0.001] * 5)
    compacted.harness.settle()
    assert (compacted.log.first_offset, compacted.log.end_offset) == (0, end)
