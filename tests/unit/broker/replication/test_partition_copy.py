"""Copying one partition: what is written, when it waits, and when it must stop."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from metaq.broker.replication.master_source import Fetched, MasterBounds
from metaq.broker.replication.partition_copy import AHEAD_SECONDS, FETCH_BYTES, PartitionCopy
from metaq.broker.replication.status import CopyState
from metaq.broker.store.damage import Damaged
from metaq.protocol.errors import PeerLost, PeerRefused
from metaq.protocol.record import encode_record
from tests.unit.broker.harness import NOW, Harness

JAVA_ID = -5468915445367046144
RECORDS = [encode_record(b"body %d" % number, JAVA_ID + number, number % 2 * 4) for number in range(10)]


class Master:
    """A source whose log is `data` from `first` on. `hold` keeps answers back until `release`."""

    def __init__(self, data: bytes = b"", first: int = 0, *, exact_end: bool = True) -> None:
        self.data, self.first, self.exact_end = data, first, exact_end
        self.asked: list[tuple[int, int]] = []
        self.errors: list[Exception] = []
        self.held: list[Deferred[None]] = []
        self.exists = True
        self.max_transfer = 1 << 30
        self.damaged: Damaged | None = None
        self.knows_damage = False

    @property
    def end(self) -> int:
        return self.first + len(self.data)

    async def bounds(self, topic: str, partition: int) -> MasterBounds | None:
        return MasterBounds(self.first, self.end) if self.exists else None

    async def fetch(self, topic: str, partition: int, offset: int, max_bytes: int, *, verify: bool = False) -> Fetched:
        self.asked.append((offset, max_bytes))
        if self.damaged is not None and (verify or self.knows_damage) and offset == self.damaged.start:
            return Fetched(damaged=self.damaged, end=self.end)
        if self.errors:
            raise self.errors.pop(0)
        if offset < self.first:
            return Fetched(moved_to=self.first)
        start = offset - self.first
        data = self.data[start : start + min(max_bytes, self.max_transfer)]
        if not data:
            held: Deferred[None] = Deferred()
            self.held.append(held)
            await held
        end = self.end if self.exact_end else None
        return Fetched(data, None, end, None, waited=True)

    async def server_ini(self) -> bytes:
        return b""

    def release(self) -> None:
        held, self.held = self.held, []
        for each in held:
            each.callback(None)


class Running:
    """A copy under way."""

    def __init__(self, harness: Harness, master: Master) -> None:
        self.harness = harness
        self.copy = PartitionCopy(harness.broker, "t", 0, 0.5)
        self.start(master)

    def start(self, master: Master) -> None:
        self.copy.active = True
        self.done: list[Any] = []
        ensureDeferred(self.copy.run(master)).addBoth(self.done.append)

    def advance(self, seconds: float) -> None:
        self.harness.time += seconds
        self.harness.reactor.advance(seconds)

    @property
    def status(self) -> Any:
        return self.copy.status

    @property
    def log(self) -> Any:
        return self.harness.store.get("t", 0)

    @property
    def bytes(self) -> bytes:
        return bytes(self.log.segments.read(self.log.first_offset, 1 << 20))

    def troubled_by(self, what: str) -> bool:
        return self.status.state is CopyState.TROUBLED and what in self.status.error

    def stopped_by(self, what: str) -> bool:
        return self.status.state is CopyState.STOPPED and what in self.status.error


@pytest.fixture
def copying(harness: Harness) -> Callable[[Master], Running]:
    return lambda master: Running(harness, master)


ALL = b"".join(RECORDS)


def test_the_copy_is_the_master_byte_for_byte(copying):
    running = copying(Master(ALL))
    assert (running.bytes, running.status.state, running.status.lag_bytes) == (ALL, CopyState.CURRENT, 0)
    assert running.log.segments.message_count == len(RECORDS)
    assert {abs(int(unit["time_ms"])) for unit in running.log.lookup.units(0, 1 << 20)} == {int(NOW * 1000)}


def test_a_log_begins_where_the_masters_does(copying):
    running = copying(Master(RECORDS[0], first=4096))
    assert (running.log.first_offset, running.bytes) == (4096, RECORDS[0])


def test_nothing_is_made_for_a_partition_without_data(harness: Harness, copying):
    master = Master()
    master.exists = False
    running = copying(master)
    assert (running.status.state, running.status.lag_bytes, running.status.behind) == (CopyState.EMPTY, 0, 0)
    assert harness.store.find("t", 0) is None
    master.exists, master.data = True, RECORDS[0]
    running.advance(0.5)
    assert running.bytes == RECORDS[0]


def test_a_cut_record_is_asked_for_again(copying):
    master = Master(ALL)
    master.max_transfer = len(RECORDS[0]) + 7
    assert copying(master).bytes == ALL


def test_a_record_larger_than_a_fetch_is_asked_for_whole(copying):
    large = encode_record(bytes(FETCH_BYTES + 5), 1, 0)
    master = Master(large + RECORDS[0])
    assert copying(master).status.offset == master.end
    assert (0, len(large)) in master.asked


def test_a_record_that_the_master_cannot_give_is_named(copying):
    master = Master(RECORDS[0])
    master.max_transfer = 22
    running = copying(master)
    assert running.troubled_by("maxTransferSize")
    master.max_transfer = 1000
    running.advance(1)
    assert running.bytes == RECORDS[0]


@pytest.mark.parametrize("place", [0, 3])
def test_a_damaged_record_is_not_written(copying, place: int):
    wrong = bytearray(RECORDS[place])
    wrong[-1] ^= 1
    good = b"".join(RECORDS[:place])
    master = Master(good + bytes(wrong) + RECORDS[0])
    running = copying(master)
    assert ("damaged" in running.status.error, running.status.offset) == (True, len(good))
    master.data = ALL
    running.advance(1)
    assert running.bytes == ALL


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("wrong", [bytes(len(RECORDS[1])), b"\xff" * len(RECORDS[1]), b"\x00\x7f" + RECORDS[1][2:]])
def test_what_is_damaged_at_the_master_is_never_copied_and_its_range_is_told(copying, caplog, wrong, knows):
    """A master of ours finds out itself where the damage ends, once it is asked to look."""
    master = Master(RECORDS[0] + wrong + RECORDS[2])
    start = len(RECORDS[0])
    master.damaged, master.knows_damage = Damaged(start, start + len(wrong)), knows
    running = copying(master)
    for _ in range(5):
        running.advance(5)
    assert running.bytes == RECORDS[0]
    assert running.troubled_by(f"[{start}, {start + len(wrong)}) are damaged")
    assert caplog.text.count("are damaged") == 1
    running.copy.active = False


def test_damage_in_what_is_compared_is_no_divergence(copying):
    copying(Master(b"".join(RECORDS[:3]))).copy.active = False
    master = Master(b"".join(RECORDS[:4]))
    master.damaged, master.knows_damage = Damaged(0, len(RECORDS[0])), True
    again = copying(master)
    assert again.troubled_by("damaged")
    again.copy.active = False


def test_a_refusal_is_tried_again_and_said_once(copying, caplog: pytest.LogCaptureFixture):
    master = Master(RECORDS[0])
    master.errors = [PeerRefused("not now")] * 3
    running = copying(master)
    for _ in range(4):
        running.advance(5)
    assert (running.bytes, caplog.text.count("not now")) == (RECORDS[0], 1)


def test_a_lost_connection_ends_the_run_and_the_next_one_goes_on(copying):
    master = Master(b"".join(RECORDS[:5]))
    running = copying(master)
    master.errors = [PeerLost("gone")]
    master.release()
    assert (running.done, running.status.state) == ([None], CopyState.CONNECTING)
    running.start(Master(ALL))
    assert running.bytes == ALL


DIFFERENT = Master(b"".join(RECORDS[:-1]) + encode_record(b"body X", 3, 0))
SHORTER, BEHIND = Master(b"".join(RECORDS[:5])), Master(RECORDS[0], first=1 << 20)


@pytest.mark.parametrize(("master", "said"), [(DIFFERENT, "not those"), (SHORTER, "up to"), (BEHIND, "no gaps")])
def test_a_copy_that_cannot_be_the_masters_stops(copying, master: Master, said: str):
    running = copying(Master(ALL))
    running.copy.active = False
    running.start(master)
    assert running.stopped_by(said)
    assert (running.done, running.bytes) == ([None], ALL)


def test_a_java_master_may_count_less_than_it_gave(copying):
    running = copying(Master(ALL))
    running.copy.active = False
    running.start(Master(b"".join(RECORDS[:5]), exact_end=False))
    assert running.status.state is CopyState.TROUBLED
    running.advance(AHEAD_SECONDS / 2)
    assert running.status.state is CopyState.TROUBLED
    running.advance(AHEAD_SECONDS)
    running.advance(1)
    assert running.status.state.value == "stopped"


def test_a_master_that_moves_on_behind_a_slave_stops_it(copying):
    master = Master(ALL)
    running = copying(master)
    master.first, master.data = master.end + 100, RECORDS[0]
    master.release()
    assert running.stopped_by("move the partition's directory away")


def test_bytes_of_somebody_else_stop_the_copy(harness: Harness, copying):
    master = Master(b"".join(RECORDS[:5]))
    running = copying(master)
    harness.connect().send(b"put t 0 2 0 -1 7\r\nab")
    master.data = ALL
    master.release()
    assert running.stopped_by("")


@pytest.mark.parametrize("changed", [None, 199, 150])
def test_an_end_without_an_index_is_compared(tmp_path: Path, changed: int | None):
    """Its segment is closed, and the next one has nothing yet."""
    records = [encode_record(b"%04d" % number * 250, JAVA_ID + number, 0) for number in range(200)]
    left = tmp_path / "data" / "t-0" / f"{0:020d}.meta"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"".join(records))
    os.utime(left, (NOW, NOW))
    left.with_name(f"{left.stat().st_size:020d}.meta").touch()
    harness = Harness(tmp_path)
    assert not harness.store.get("t", 0).lookup.is_indexed(0)
    if changed is not None:
        records[changed] = encode_record(b"else" * 250, 7, 0)
    master = Master(b"".join(records))
    running = Running(harness, master)
    harness.threads.run()
    assert (running.status.state is CopyState.STOPPED) is (changed is not None)
    assert bool(master.held) is (changed is None)  # it waits for more
    assert master.asked[0][1] < 100 << 10
    harness.store.close()
