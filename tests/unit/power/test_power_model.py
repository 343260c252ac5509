"""The model of a crash: which states it must give, and which it must never give."""

from __future__ import annotations

import os
import random

import pytest

from tests.power.model import PAGE, SECTOR, Disk, Names, State, Style
from tests.power.trace import Kind, Operation, SyncKind, Unsupported, parse_trace

DRAWS = 150


class Traced:
    """A trace written by hand: the calls of a process, applied at once."""

    def __init__(self, start: State | None = None) -> None:
        self.disk = Disk(start)
        self.handles = 0
        self.syncs = 0

    def _apply(self, kind: Kind, handle: int = 0, a: int = 0, b: int = 0, payload: bytes = b"") -> None:
        self.disk.apply(Operation(kind, handle, a, b, payload))

    def open(self, path: str, flags: int = os.O_RDWR, *, made: bool = False) -> int:
        self.handles += 1
        self._apply(Kind.OPEN, self.handles, flags, int(made), path.encode())
        return self.handles

    def make(self, path: str) -> int:
        return self.open(path, os.O_RDWR | os.O_CREAT, made=True)

    def write(self, handle: int, position: int, data: bytes) -> None:
        self._apply(Kind.WRITE, handle, position, len(data), data)

    def truncate(self, handle: int, size: int) -> None:
        self._apply(Kind.TRUNCATE, handle, size)

    def rename(self, source: str, target: str) -> None:
        self._apply(Kind.RENAME, payload=f"{source}\0{target}".encode())

    def unlink(self, path: str) -> None:
        self._apply(Kind.UNLINK, payload=path.encode())

    def mkdir(self, path: str) -> None:
        self._apply(Kind.MKDIR, payload=path.encode())

    def drop(self, handle: int, position: int, data: bytes) -> None:
        self._apply(Kind.DROP, handle, position, len(data), data)

    def begin(self, handle: int, kind: SyncKind = SyncKind.FDATASYNC) -> int:
        self.syncs += 1
        self._apply(Kind.SYNC_BEGIN, handle, kind, self.syncs)
        return self.syncs

    def end(self, sync: int, error: int = 0) -> None:
        self._apply(Kind.SYNC_END, 0, error, sync)

    def sync(self, handle: int, kind: SyncKind = SyncKind.FDATASYNC, error: int = 0) -> None:
        self.end(self.begin(handle, kind), error)

    def sync_directory(self, path: str) -> None:
        self.sync(self.open(path, os.O_RDONLY), SyncKind.FSYNC)

    def states(self, *, names: Names = Names.MINIMAL, styles: tuple[Style, ...] = tuple(Style)) -> list[State]:
        return [
            self.disk.draw(random.Random(f"{style} {number}"), style, names)
            for style in styles
            for number in range(DRAWS)
        ]

    def contents(self, path: str, **options: object) -> set[bytes | None]:
        """What a file may have after a crash; None: it may be gone."""
        return {state.files.get(path) for state in self.states(**options)}  # type: ignore[arg-type]


def durable_file(content: bytes) -> State:
    return State((), {"f": content})


# --- data -------------------------------------------------------------------------------------------------------------


def test_what_a_sync_has_covered_is_there_in_every_state():
    trace = Traced(durable_file(b""))
    handle = trace.open("f")
    trace.write(handle, 0, b"a" * 1500)
    trace.sync(handle)
    assert trace.contents("f") == {b"a" * 1500}


def test_what_no_sync_has_covered_is_there_in_part_or_not_at_all():
    trace = Traced(durable_file(b""))
    trace.write(trace.open("f"), 0, b"a" * 2 * SECTOR)
    found = trace.contents("f")
    a, zeros = b"a" * SECTOR, bytes(SECTOR)
    assert {b"", a + a, a + zeros, zeros + a, zeros + zeros} == found


def test_a_sector_is_never_torn_in_itself():
    trace = Traced(durable_file(b"o" * SECTOR))
    trace.write(trace.open("f"), 100, b"n" * 100)
    old, new = b"o" * SECTOR, b"o" * 100 + b"n" * 100 + b"o" * (SECTOR - 200)
    assert trace.contents("f") == {old, new}


def test_a_sector_has_the_content_of_some_moment_not_a_later_write_without_the_earlier_one():
    trace = Traced(durable_file(b"." * 4))
    handle = trace.open("f")
    trace.write(handle, 0, b"1")
    trace.write(handle, 1, b"2")
    assert trace.contents("f") == {b"....", b"1...", b"12.."}


def test_a_sync_covers_what_ended_before_it_began_and_not_what_came_meanwhile():
    trace = Traced(durable_file(b"...."))
    handle = trace.open("f")
    trace.write(handle, 0, b"1")
    sync = trace.begin(handle)
    trace.write(handle, 1, b"2")
    trace.end(sync)
    assert trace.contents("f") == {b"1...", b"12.."}


def test_a_sync_that_has_not_ended_promises_nothing():
    trace = Traced(durable_file(b"...."))
    handle = trace.open("f")
    trace.write(handle, 0, b"1")
    trace.begin(handle)
    assert trace.contents("f") == {b"....", b"1..."}


def test_a_growing_file_may_have_any_size_it_had_and_the_end_of_any_page():
    trace = Traced(durable_file(b""))
    handle = trace.open("f")
    trace.write(handle, 0, b"a" * 100)
    trace.write(handle, 100, b"a" * (2 * PAGE))
    sizes = {len(content or b"") for content in trace.contents("f")}
    assert sizes == {0, 100, PAGE, 2 * PAGE, 2 * PAGE + 100}


def test_a_truncation_is_there_or_not_and_what_was_cut_never_comes_back_behind_it():
    trace = Traced(durable_file(b"old!" * 300))
    handle = trace.open("f")
    trace.truncate(handle, 4)
    assert trace.contents("f") == {b"old!", b"old!" * 300}
    trace.write(handle, 4, b"n")
    for content in trace.contents("f"):
        assert content is not None
        if len(content) <= 5:
            assert content in (b"old!", b"old!n", b"old!\0")


def test_a_synced_truncation_is_there():
    trace = Traced(durable_file(b"old!" * 300))
    handle = trace.open("f")
    trace.truncate(handle, 4)
    trace.sync(handle)
    assert trace.contents("f") == {b"old!"}


def test_opening_with_truncation_empties_a_file():
    trace = Traced(durable_file(b"old"))
    trace.open("f", os.O_RDWR | os.O_TRUNC)
    assert trace.contents("f") == {b"old", b""}


# --- failed syncs -----------------------------------------------------------------------------------------------------


def test_after_a_failed_sync_a_good_one_makes_nothing_safe():
    trace = Traced(durable_file(b"old."))
    handle = trace.open("f")
    trace.write(handle, 0, b"new!")
    trace.sync(handle, error=5)
    trace.sync(handle)
    trace.disk.new_process()
    trace.sync(trace.open("f"))
    assert trace.disk.cached().files == {"f": b"new!"}
    assert trace.contents("f") == {b"old.", b"new!"}
    assert trace.disk.doomed


def test_after_a_failed_sync_a_page_is_not_safe_even_if_it_is_written_again_but_others_are():
    trace = Traced(durable_file(b"o" * 2 * PAGE))
    handle = trace.open("f")
    trace.write(handle, 0, b"n" * PAGE)
    trace.sync(handle, error=5)
    trace.write(handle, 0, b"x" * 2 * PAGE)
    trace.sync(handle)
    found = [content for content in trace.contents("f") if content is not None]
    assert {content[PAGE:] for content in found} == {b"x" * PAGE}
    assert {content[:SECTOR] for content in found} == {b"o" * SECTOR, b"n" * SECTOR, b"x" * SECTOR}


def test_a_lost_page_that_has_left_the_cache_is_what_the_disk_has_and_can_be_made_safe_again():
    trace = Traced(durable_file(b"old."))
    handle = trace.open("f")
    trace.write(handle, 0, b"new!")
    trace.sync(handle, error=5)
    ((path, position, data),) = trace.disk.lost_pages(random.Random(1))
    assert (path, position) == ("f", 0)
    assert data in (b"old.", b"new!")
    trace.drop(handle, 0, b"old.")
    assert trace.disk.cached().files == {"f": b"old."}
    assert trace.contents("f") == {b"old."}
    trace.write(handle, 0, b"new!")
    trace.sync(handle)
    assert trace.contents("f") == {b"new!"}
    assert not trace.disk.doomed


def test_a_failed_sync_loses_only_what_was_not_safe_before():
    trace = Traced(durable_file(b"...."))
    handle = trace.open("f")
    trace.write(handle, 0, b"1")
    trace.sync(handle)
    trace.write(handle, 1, b"2")
    trace.sync(handle, error=5)
    assert trace.contents("f") == {b"1...", b"12.."}


def test_dropped_is_all_but_what_failed_syncs_have_lost():
    trace = Traced(State((), {"f": b"....", "g": b"...."}))
    lost, kept = trace.open("f"), trace.open("g")
    trace.write(lost, 0, b"1")
    trace.sync(lost, error=5)
    trace.write(kept, 0, b"2")
    assert trace.states(styles=(Style.DROPPED,))[0].files == {"f": b"....", "g": b"2..."}


def test_a_growth_that_a_failed_sync_lost_is_not_made_safe_by_the_next_one():
    trace = Traced(durable_file(b""))
    handle = trace.open("f")
    trace.write(handle, 0, b"a" * 10)
    trace.sync(handle, error=5)
    trace.sync(handle)
    assert {b"", b"a" * 10} <= trace.contents("f")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", Names)
def test_a_new_name_is_lost_with_its_data_until_its_directory_is_synced(names):
    trace = Traced()
    handle = trace.make("f")
    trace.write(handle, 0, b"a")
    assert None in trace.contents("f", names=names)
    trace.sync_directory(".")
    assert None not in trace.contents("f", names=names)


def test_a_file_that_is_synced_may_still_lose_its_name_but_not_on_ext4():
    trace = Traced()
    handle = trace.make("f")
    trace.write(handle, 0, b"a")
    trace.sync(handle)
    assert trace.contents("f") == {None, b"a"}
    assert trace.contents("f", names=Names.ORDERED) == {b"a"}


def test_names_are_lost_one_by_one_or_in_order():
    trace = Traced()
    trace.make("a")
    trace.make("b")
    minimal = {tuple(sorted(state.files)) for state in trace.states()}
    ordered = {tuple(sorted(state.files)) for state in trace.states(names=Names.ORDERED)}
    assert minimal == {(), ("a",), ("b",), ("a", "b")}
    assert ordered == {(), ("a",), ("a", "b")}


@pytest.mark.parametrize("names", Names)
def test_a_rename_has_happened_or_not_and_its_target_is_always_there(names):
    trace = Traced(durable_file(b"old"))
    handle = trace.make("new")
    trace.write(handle, 0, b"new")
    trace.sync(handle)
    trace.sync_directory(".")
    trace.rename("new", "f")
    found = [dict(state.files) for state in trace.states(names=names)]
    assert {"f": b"old", "new": b"new"} in found
    assert {"f": b"new"} in found
    assert all(each in ({"f": b"old", "new": b"new"}, {"f": b"new"}) for each in found)


def test_a_rename_without_a_sync_of_the_file_may_leave_an_empty_one():
    trace = Traced(durable_file(b"old"))
    trace.write(trace.make("new"), 0, b"new")
    trace.rename("new", "f")
    assert trace.contents("f") == {b"old", b"", b"new", b"\0\0\0"}


def test_a_removed_file_may_come_back_until_its_directory_is_synced():
    trace = Traced(durable_file(b"old"))
    trace.unlink("f")
    assert trace.contents("f") == {None, b"old"}
    trace.sync_directory(".")
    assert trace.contents("f") == {None}


def test_what_lies_in_a_lost_directory_is_lost():
    trace = Traced()
    trace.mkdir("d")
    handle = trace.make("d/f")
    trace.write(handle, 0, b"a")
    trace.sync(handle)
    trace.sync_directory("d")
    assert trace.contents("d/f") == {None, b"a"}
    trace.sync_directory(".")
    assert trace.contents("d/f") == {b"a"}


def test_a_sync_of_the_file_system_covers_every_file_and_name():
    trace = Traced()
    trace.mkdir("d")
    trace.write(trace.make("d/f"), 0, b"a")
    trace.sync(trace.open(".", os.O_RDONLY), SyncKind.SYNCFS)
    assert trace.contents("d/f") == {b"a"}
    trace.write(trace.make("d/g"), 0, b"a")
    assert None in trace.contents("d/g")


# --- the trace --------------------------------------------------------------------------------------------------------


def test_a_trace_that_does_not_tell_everything_is_refused():
    head = (32 + 4).to_bytes(4, "little") + int(Kind.UNSUPPORTED).to_bytes(4, "little") + bytes(24)
    with pytest.raises(Unsupported, match="link"):
        parse_trace(head + b"link")
    with pytest.raises(ValueError, match="cut at byte 0"):
        parse_trace(head)
