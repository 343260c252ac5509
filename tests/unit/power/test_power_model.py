"""The model of a crash: which states it must give, and which it must never give."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

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

    def make(self, path: str, content: bytes = b"") -> int:
        handle = self.open(path, os.O_RDWR | os.O_CREAT, made=True)
        if content:
            self.write(handle, 0, content)
        return handle

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


class OneFile(Traced):
    """A trace of one file, which was there before."""

    def __init__(self, content: bytes) -> None:
        super().__init__(durable_file(content))
        self.file = self.open("f")

    def puts(self, position: int, data: bytes) -> None:
        self.write(self.file, position, data)

    def cuts(self, size: int) -> None:
        self.truncate(self.file, size)

    def syncs_it(self, error: int = 0) -> None:
        self.sync(self.file, error=error)

    def syncs_it_while(self, meanwhile: Callable[[], None]) -> None:
        sync = self.begin(self.file)
        meanwhile()
        self.end(sync)


# --- data -------------------------------------------------------------------------------------------------------------

A, OLD, ZEROS = b"a" * SECTOR, b"o" * SECTOR, bytes(SECTOR)
LONG = b"old!" * 300
DOTS = b"...."

AFTER = {
    "what a sync has covered": (b"", lambda f: (f.puts(0, b"a" * 1500), f.syncs_it()), {b"a" * 1500}),
    "a write, in part or not at all": (
        b"",
        lambda f: f.puts(0, A + A),
        {b"", A + A, A + ZEROS, ZEROS + A, ZEROS + ZEROS},
    ),
    "a sector is never torn in itself": (OLD, lambda f: f.puts(9, b"n" * 9), {OLD, OLD[:9] + b"n" * 9 + OLD[18:]}),
    "no later write without the earlier one": (
        DOTS,
        lambda f: (f.puts(0, b"1"), f.puts(1, b"2")),
        {DOTS, b"1...", b"12.."},
    ),
    "a sync covers what ended before it began": (
        DOTS,
        lambda f: (f.puts(0, b"1"), f.syncs_it_while(lambda: f.puts(1, b"2"))),
        {b"1...", b"12.."},
    ),
    "a sync that has not ended": (DOTS, lambda f: (f.puts(0, b"1"), f.begin(f.file)), {DOTS, b"1..."}),
    "a truncation or none": (LONG, lambda f: f.cuts(4), {b"old!", LONG}),
    "a synced truncation": (LONG, lambda f: (f.cuts(4), f.syncs_it()), {b"old!"}),
    "opened with truncation": (b"old", lambda f: f.open("f", os.O_RDWR | os.O_TRUNC), {b"old", b""}),
    "a failed sync loses what was not safe before": (
        DOTS,
        lambda f: (f.puts(0, b"1"), f.syncs_it(), f.puts(1, b"2"), f.syncs_it(error=5)),
        {b"1...", b"12.."},
    ),
}


@pytest.mark.parametrize(("before", "calls", "after"), AFTER.values(), ids=AFTER)
def test_what_a_file_may_have_after_a_crash(before, calls, after):
    file = OneFile(before)
    calls(file)
    assert file.contents("f") == after


def test_a_growing_file_may_have_any_size_it_had_and_the_end_of_any_page():
    file = OneFile(b"")
    file.puts(0, b"a" * 100)
    file.puts(100, b"a" * (2 * PAGE))
    assert {len(content or b"") for content in file.contents("f")} == {0, 100, PAGE, 2 * PAGE, 2 * PAGE + 100}


def test_what_was_cut_never_comes_back_behind_a_truncation():
    file = OneFile(b"old!" * 300)
    file.cuts(4)
    file.puts(4, b"n")
    found = file.contents("f")
    assert None not in found
    assert {content for content in found if content and len(content) <= 5} <= {b"old!", b"old!n", b"old!\0"}


# --- failed syncs -----------------------------------------------------------------------------------------------------


def test_after_a_failed_sync_a_good_one_makes_nothing_safe():
    file = OneFile(b"old.")
    file.puts(0, b"new!")
    file.syncs_it(error=5)
    file.syncs_it()
    file.disk.new_process()
    file.sync(file.open("f"))
    assert file.disk.cached().files == {"f": b"new!"}
    assert file.contents("f") == {b"old.", b"new!"}
    assert file.disk.doomed


def test_after_a_failed_sync_a_page_is_not_safe_even_if_it_is_written_again_but_others_are():
    file = OneFile(b"o" * 2 * PAGE)
    file.puts(0, b"n" * PAGE)
    file.syncs_it(error=5)
    file.puts(0, b"x" * 2 * PAGE)
    file.syncs_it()
    found = [content for content in file.contents("f") if content is not None]
    assert {content[PAGE:] for content in found} == {b"x" * PAGE}
    assert {content[:SECTOR] for content in found} == {b"o" * SECTOR, b"n" * SECTOR, b"x" * SECTOR}


def test_a_lost_page_that_has_left_the_cache_is_what_the_disk_has_and_can_be_made_safe_again():
    file = OneFile(b"old.")
    file.puts(0, b"new!")
    file.syncs_it(error=5)
    ((path, position, data),) = file.disk.lost_pages(random.Random(1))
    assert (path, position) == ("f", 0)
    assert data in (b"old.", b"new!")
    file.drop(file.file, 0, b"old.")
    assert file.disk.cached().files == {"f": b"old."}
    assert file.contents("f") == {b"old."}
    file.puts(0, b"new!")
    file.syncs_it()
    assert file.contents("f") == {b"new!"}
    assert not file.disk.doomed


def test_dropped_is_all_but_what_failed_syncs_have_lost():
    trace = Traced(State((), {"f": b"....", "g": b"...."}))
    lost, kept = trace.open("f"), trace.open("g")
    trace.write(lost, 0, b"1")
    trace.sync(lost, error=5)
    trace.write(kept, 0, b"2")
    assert trace.states(styles=(Style.DROPPED,))[0].files == {"f": b"....", "g": b"2..."}


def test_a_growth_that_a_failed_sync_lost_is_not_made_safe_by_the_next_one():
    file = OneFile(b"")
    file.puts(0, b"a" * 10)
    file.syncs_it(error=5)
    file.syncs_it()
    assert {b"", b"a" * 10} <= file.contents("f")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", Names)
def test_a_new_name_is_lost_with_its_data_until_its_directory_is_synced(names):
    trace = Traced()
    trace.make("f", b"a")
    assert None in trace.contents("f", names=names)
    trace.sync_directory(".")
    assert None not in trace.contents("f", names=names)


def test_a_file_that_is_synced_may_still_lose_its_name_but_not_on_ext4():
    trace = Traced()
    trace.sync(trace.make("f", b"a"))
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
    trace.sync(trace.make("new", b"new"))
    trace.sync_directory(".")
    trace.rename("new", "f")
    found = {tuple(sorted(state.files.items())) for state in trace.states(names=names)}
    assert found == {(("f", b"old"), ("new", b"new")), (("f", b"new"),)}


def test_a_rename_without_a_sync_of_the_file_may_leave_an_empty_one():
    trace = Traced(durable_file(b"old"))
    trace.make("new", b"new")
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
    trace.sync(trace.make("d/f", b"a"))
    trace.sync_directory("d")
    assert trace.contents("d/f") == {None, b"a"}
    trace.sync_directory(".")
    assert trace.contents("d/f") == {b"a"}


def test_a_sync_of_the_file_system_covers_every_file_and_name():
    trace = Traced()
    trace.mkdir("d")
    trace.make("d/f", b"a")
    trace.sync(trace.open(".", os.O_RDONLY), SyncKind.SYNCFS)
    assert trace.contents("d/f") == {b"a"}
    trace.make("d/g", b"a")
    assert None in trace.contents("d/g")


# --- the trace --------------------------------------------------------------------------------------------------------


def test_a_trace_that_does_not_tell_everything_is_refused():
    head = (32 + 4).to_bytes(4, "little") + int(Kind.UNSUPPORTED).to_bytes(4, "little") + bytes(24)
    with pytest.raises(Unsupported, match="link"):
        parse_trace(head + b"link")
    with pytest.raises(ValueError, match="cut at byte 0"):
        parse_trace(head)
