"""What the compaction of an internal log may drop, and when: the same for all kinds."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.task import Clock, deferLater

from metaq.broker.memory.compaction import Compaction
from metaq.broker.memory.records import internal_record
from metaq.broker.memory.topics import SHARED_TOPIC
from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.errors import StoreError
from tests.doubles.store_harness import StoreHarness

MOST_BYTES = 1000


class Compacted:
    """An internal log of 40 records, 30 bytes each, that `write_anew` replaces by 3, one in each turn."""

    topic = SHARED_TOPIC

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.log = harness.store.internal_log(SHARED_TOPIC, False)
        self.clock = Clock()
        self.writes: Callable[[], Awaitable[None]] = self.write_three
        self.unneeded = 0
        self.compaction = Compaction(harness.store, self, self.clock)
        self.append(40)
        self.before = self.log.end_offset

    def append(self, count: int) -> None:
        for _ in range(count):
            data, unit = internal_record(b"0123456789", 0, self.log.end_offset)
            self.log.append((data,), unit)

    def most_bytes(self, log: PartitionLog) -> int:
        return MOST_BYTES

    def needed_from(self, log: PartitionLog) -> int:
        return self.unneeded

    async def write_anew(self, log: PartitionLog) -> int:
        log.roll()
        start = log.end_offset
        await self.writes()
        return start

    async def write_three(self) -> None:
        for _ in range(3):
            self.append(1)
            await self.turn()

    def turn(self) -> Awaitable[None]:
        return deferLater(cast(Any, self.clock), 0)

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


def test_segments_in_which_nothing_counts_go_without_being_written_anew(compacted: Compacted) -> None:
    compacted.log.roll()
    compacted.append(1)
    compacted.unneeded = compacted.before
    end = compacted.log.end_offset
    compacted.turns(1)
    assert (compacted.log.first_offset, compacted.log.end_offset) == (compacted.before, end)


def test_what_cannot_be_written_is_tried_again_a_minute_later(
    compacted: Compacted, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        await compacted.turn()
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
