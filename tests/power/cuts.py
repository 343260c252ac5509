"""Cutting the power: a workload is recorded, and states that a cut may leave are started, checked, used, cut again."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from metaq.protocol.errors import MetaqError

from .children import Outcome, run_in_child
from .history import Broken, History
from .model import Disk, Names, State, Style
from .shim import Shim, encode_lost
from .trace import Kind, Operation, parse_trace, read_trace

__all__ = ["COLUMNS", "Failure", "Faults", "Life", "Recording", "Workload", "cut", "materialise", "record"]

_PROCESS_SECONDS = 120.0
_STYLES = (Style.TORN, Style.TORN, *Style)


class Life(Protocol):
    """One life of what is tested; see StoreLife."""

    def open(self) -> None: ...
    def check(self, history: History) -> None: ...
    def work(self, actions: int | None = None) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in a life, each at a random moment. kill: the process dies. sync: one fails. write: one fails."""

    kill: bool = False
    sync: bool = False
    write: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """make(directory, seed, shim, number): a life. faults: of each life that is recorded, one after the other."""

    name: str
    make: Callable[[Path, object, Shim, int], Life]
    faults: tuple[Faults, ...] = (Faults(),)
    changes: int = 150
    """About how many changes a life makes: faults come within them."""
    record_process: Callable[[Path, str, int, Faults, Path, Path | None], None] | None = None
    """record_process(directory, seed, number, faults, trace, lost): a process of its own, whose threads run as they
    like. Without it `make`'s life is recorded, which a seed makes again.
    """


@dataclass(frozen=True, slots=True)
class Failure:
    """where: what to say to --case to see it again. kind: of the Outcome."""

    workload: str
    where: str
    kind: str
    text: str

    @property
    def column(self) -> str:
        """What sort of failure it is: one of COLUMNS."""
        if self.kind == "timeout":
            return "stuck"
        if self.kind != "broken":
            return self.kind if self.kind in COLUMNS else "error"
        words = {"refused": "the start is refused", "lost": " lost", "twice": " twice", "false": "false message"}
        return next((column for column, text in words.items() if text in self.text), "other")


COLUMNS = ("refused", "lost", "twice", "false", "silent", "unchecked", "stuck", "other", "error")
"""The start is refused; promised messages are gone; there twice; bytes that nobody sent; lost and not reported; not
found by `metaq check`; no end; another promise is broken, or a message that readers get is damaged; an exception that
nobody expected or a crash of the process.
"""


@dataclass(slots=True)
class Recording:
    """The traces of all lives, one after the other."""

    traces: list[list[Operation]] = field(default_factory=list)
    files: list[bytes] = field(default_factory=list)

    @property
    def operations(self) -> Iterator[tuple[bool, Operation]]:
        """Each operation, and whether a new process begins with it."""
        for trace in self.traces:
            for number, operation in enumerate(trace):
                yield number == 0, operation

    def add(self, trace: bytes) -> list[Operation]:
        """The next life's."""
        operations = parse_trace(trace)
        self.traces.append(operations)
        self.files.append(trace)
        return operations

    def keep(self, name: str, seed: object) -> Path:
        """Write the traces into a directory that stays: no seed can make them again."""
        directory = Path(tempfile.gettempdir()) / f"metaq-power-traces-{os.getuid()}" / f"{name}-{seed}-{os.getpid()}"
        directory.mkdir(parents=True, exist_ok=True)
        for number, trace in enumerate(self.files):
            (directory / f"{number}.trace").write_bytes(trace)
        return directory

    @classmethod
    def kept(cls, directory: Path) -> Recording:
        """The inverse."""
        recording = cls()
        for number in range(len(list(directory.glob("*.trace")))):
            recording.add((directory / f"{number}.trace").read_bytes())
        return recording


def _live(
    workload: Workload,
    shim: Shim,
    directory: Path,
    trace: Path,
    seed: object,
    number: int,
    history: History,
    faults: Faults = Faults(),
    actions: int | None = None,
    lost: Path | None = None,
) -> None:
    """In a child: one life from start to end. lost: see Shim.lose."""
    rng = random.Random(f"faults {seed}")
    if lost is not None:
        shim.lose(lost)
    shim.begin(directory, trace)
    life = workload.make(directory, seed, shim, number)
    try:
        life.open()
    except MetaqError as error:
        raise Broken(f"the start is refused: {error}") from error
    life.check(history)
    if faults.kill:
        shim.kill(rng.randint(1, workload.changes))
    if faults.sync:
        shim.fail_sync(rng.randint(1, max(2, workload.changes // 4)))
    if faults.write:
        shim.fail_write(rng.randint(1, workload.changes // 2), rng.choice((5, 28, 0)))
    life.work(actions)
    if rng.random() < 0.5:
        life.finish()
        if rng.random() < 0.5:
            life.close()
    else:
        shim.mark(kind="note", text="left")


def record(workload: Workload, shim: Shim, scratch: Path, seed: object) -> tuple[Recording, Failure | None]:
    """Record the lives of a workload. A failure: of a life that had no power cut before it."""
    directory = fresh(scratch / "recorded")
    recording = Recording()
    marks: list[bytes] = []
    disk = Disk()
    for number, faults in enumerate(workload.faults):
        trace = scratch / f"trace-{number}"
        trace.unlink(missing_ok=True)
        history = History(marks)
        life_seed = f"{workload.name} {seed} {number}"

        lost = None
        if disk.doomed:
            lost = scratch / "lost"
            lost.write_bytes(encode_lost(disk.lost_pages(random.Random(f"lost {life_seed}"))))
        life: Callable[[], None]
        if workload.record_process is not None:
            life = partial(workload.record_process, directory, life_seed, number, faults, trace, lost)
        else:
            life = partial(_live, workload, shim, directory, trace, life_seed, number, history, faults, lost=lost)
        outcome = run_in_child(life, _PROCESS_SECONDS)
        operations = recording.add(trace.read_bytes() if trace.exists() else b"")
        disk.new_process()
        for operation in operations:
            disk.apply(operation)
        marks = disk.marks
        if outcome.kind not in ("ok", "killed"):
            return recording, Failure(workload.name, f"{seed}/life{number}", outcome.kind, str(outcome.value))
        seen = snapshot(directory)
        if disk.cached() != seen:
            raise AssertionError(
                f"{life_seed}: the trace does not explain the files: {_difference(disk.cached(), seen)}"
            )
    return recording, None


def cut(
    workload: Workload,
    shim: Shim,
    scratch: Path,
    seed: object,
    recording: Recording,
    cuts: int,
    only: int | None = None,
) -> Iterator[Failure | None]:
    """Cut the power `cuts` times at random moments of a recording, and most times again in the life after that.

    For each start a failure, or None. only: number of the cut to do, the others are passed over.
    """
    operations = list(recording.operations)
    moments = sorted(
        (_moment(random.Random(f"moment {workload.name} {seed} {number}"), recording), number) for number in range(cuts)
    )
    disk, applied = Disk(), 0
    for moment, number in moments:
        for new_process, operation in operations[applied:moment]:
            if new_process:
                disk.new_process()
            disk.apply(operation)
        applied = moment
        if only is None or only == number:
            for result in _cut_here(workload, shim, scratch, f"{seed}.{number}", disk, disk.marks, 2):
                if result is not None and workload.record_process is not None:
                    result = replace(result, text=f"{result.text}; --traces {recording.keep(workload.name, seed)}")
                yield result


def _moment(rng: random.Random, recording: Recording) -> int:
    """Half of the cuts fall into the last life, which has most to bear."""
    before, last = sum(map(len, recording.traces[:-1])), len(recording.traces[-1])
    return rng.randint(0 if rng.random() < 0.5 else before, before + last)


def _cut_here(
    workload: Workload,
    shim: Shim,
    scratch: Path,
    where: str,
    disk: Disk,
    marks: Sequence[bytes],
    depth: int,
    torn: bool = False,
) -> Iterator[Failure | None]:
    """torn: whether an earlier cut may have lost sectors in front of others that it kept."""
    rng = random.Random(f"cut {workload.name} {where}")
    style, names = rng.choice(_STYLES), rng.choice(list(Names))
    if disk.doomed and rng.random() < 0.5:
        style = Style.DROPPED
    state = disk.draw(rng, style, names)
    directory = fresh(scratch / f"cut-{depth}")
    materialise(state, directory)
    trace = scratch / f"cut-trace-{depth}"
    trace.unlink(missing_ok=True)
    torn = torn or style in (Style.TORN, Style.HOLES)
    history = History(marks, torn=torn)
    actions = rng.choice((0, 3, 10, 25))
    outcome = run_in_child(
        lambda: _live(
            workload, shim, directory, trace, f"again {where}", 10 * (3 - depth) + 9, history, actions=actions
        )
    )
    if outcome.kind != "ok":
        yield _failure(workload, where, outcome, disk, style, names)
        return
    yield None
    if depth and rng.random() < 0.7:
        operations = read_trace(trace)
        # recovery itself is short: half of the cuts shall fall into it
        first_mark = next((n for n, each in enumerate(operations) if each.kind is Kind.MARK), len(operations))
        moment = rng.randint(0, first_mark if rng.random() < 0.5 else len(operations))
        after = Disk(state)
        for operation in operations[:moment]:
            after.apply(operation)
        yield from _cut_here(workload, shim, scratch, f"{where}n", after, [*marks, *after.marks], depth - 1, torn)


def _failure(workload: Workload, where: str, outcome: Outcome, disk: Disk, style: Style, names: Names) -> Failure:
    text = f"{outcome.value or ''} [{style.value}, names {names.value}, after operation {disk.index}]"
    return Failure(workload.name, where, outcome.kind, text)


# --- directories ------------------------------------------------------------------------------------------------------


def fresh(directory: Path) -> Path:
    """An empty directory."""
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return directory


def materialise(state: State, directory: Path) -> None:
    """Make the files of a state in an empty directory."""
    base = str(directory)
    for path in sorted(state.directories):
        os.mkdir(f"{base}/{path}")
    for path, content in state.files.items():
        fd = os.open(f"{base}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)


def snapshot(directory: Path) -> State:
    """The inverse."""
    found = sorted(directory.rglob("*"))
    return State(
        tuple(str(path.relative_to(directory)) for path in found if path.is_dir()),
        {str(path.relative_to(directory)): path.read_bytes() for path in found if path.is_file()},
    )


def _difference(expected: State, found: State) -> str:
    names = set(expected.files) ^ set(found.files)
    differing = [name for name in expected.files if name in found.files and expected.files[name] != found.files[name]]
    return f"directories {expected.directories} {found.directories}; only on one side {names}; different {differing}"
