"""Damage at rest: every byte of a small data directory with every kind of file is changed in turn, and sectors zeroed.

A broker starts on each, and a consumer of the framed protocol reads all partitions, forwards and without end to its
patience but with a bound on its requests. It must get no message that nobody sent, none twice, and every one that is
not damaged: what the damage may cost is worked out from the place of the change (`Layout.excused`). A loss is reported,
and `metaq check` has found it before the start.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from metaq.broker.inspection import Options, inspect_directory
from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index import read_checkpoint
from metaq.broker.store.journal_format import read_journal
from metaq.protocol.errors import MetaqError, RemoteProtocolError
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullReply, PullRequest
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER_BYTES,
    PROPERTIES_FLAG,
    checksum,
    encode_attributes,
    encode_body,
    is_blank,
    iter_headers,
    payload_start,
)
from metaq.protocol.sends import split_batch
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_put
from tests.doubles.redo import read_redo
from tests.unit.broker.transactions.conversation import tx, tx_put

from .broker_life import PARTITIONS, BrokerLife, BrokerWork
from .children import Outcome, run_in_child
from .cuts import Failure, fresh, materialise
from .history import Broken, History, body_of, name_of
from .model import SECTOR, Disk, State, Style
from .promises import Promises
from .shim import Shim
from .trace import read_trace

__all__ = ["DIRECTORIES", "Change", "Layout", "changes_of", "flip"]

_FLAG = ATTRIBUTE_FLAG | PROPERTIES_FLAG
_WORK = BrokerWork(segment_bytes=250, redo_bytes=600, key_block_bytes=200)
_FLAG_AT = HEADER_BYTES - 4
"""Where in a record its flag begins, the header's last field (record.HEADER)."""
_PULL_BYTES = 400
_PATIENCE = 400
"""Pulls of one partition, several times as many as it takes to get each message by itself."""

DIRECTORIES = {"flips-killed": Style.ALL, "flips-power-lost": Style.NOTHING}
"""How the broker ended that left the directory: after a kill -9 each message is in its partition's files; after a power
cut some are only in the journal or in the transaction log.
"""


# --- making a directory -----------------------------------------------------------------------------------------------


class FlipLife(BrokerLife):
    """Always the same conversation, which leaves every kind of file."""

    def work(self, actions: int | None = None) -> None:
        for _ in range(4):
            self._put_everywhere()
        self._commit("XID:1:0a:0b:host")
        self._commit("TX:s:1")
        self._prepare("XID:1:0c:0b:host")
        self._prepare("XID:1:0d:0b:host")
        self.broker.transactions.complete("XID:1:0d:0b:host", "rollback")
        for _ in range(4):  # checkpoints, key files, state of the transaction log
            self.reactor.advance(60)
            self.broker.transactions.tick()
            self.store.tick()
            for log in self.store.logs():
                log.checkpoint()
            self.threads.run_all()
        self._prepare("XID:1:0e:0b:host")
        for _ in range(3):
            self._put_everywhere()
        self._commit("TX:s:2")
        self._commit("XID:1:0f:0b:host")

    def _message_with_key(self) -> tuple[str, bytes]:
        self._count += 1
        name = f"m{self._count}"
        payload = body_of(name, 20 + self._count % 5 * 7)
        _, attribute = encode_attributes(keys=[f"key{self._count % 3}"], properties={"n": "v"})
        return name, bytes(encode_body(payload, _FLAG, attribute))

    _count = 0

    def _put_everywhere(self) -> None:
        """So many partitions at once that those with group commit share the journal."""
        told = []
        for topic, partition in PARTITIONS:
            name, body = self._message_with_key()
            self._shim.mark(kind="plain", partition=f"{topic}-{partition}", name=name)
            peer = self._peer()
            peer.send(encode_put(topic, partition, _FLAG, checksum(body), 1, body))
            told.append((peer, topic, name))
        self.threads.run_all()
        for peer, topic, name in told:
            (answer,) = peer.answers()
            assert answer.code == 200
            if topic == "sync":
                self._shim.mark(kind="plain_done", name=name)

    def _ask(self, *requests: bytes) -> None:
        peer = self._peer()
        for request in requests:
            peer.send(request)
            self.threads.run_all()
            (answer,) = peer.answers()
            assert answer.code == 200, answer.text

    def _begun(self, key: str) -> list[bytes]:
        requests = [tx(key, "BEGIN")]
        for topic, partition in PARTITIONS[:3]:
            self._count += 1
            name = f"m{self._count}"
            self._shim.mark(kind="tx_put", key=key, partition=f"{topic}-{partition}", name=name)
            requests.append(tx_put(key, topic, partition, body_of(name, 30)))
        return requests

    def _end_of(self, key: str, verb: str) -> bytes:
        self._shim.mark(kind="tx_asked", key=key, verb=verb)
        if verb.startswith("COMMIT"):  # `_ask` makes sure of it
            self._shim.mark(kind="tx_done", key=key, verb=verb)
        return tx(key, verb)

    def _prepare(self, key: str) -> None:
        self._ask(*self._begun(key), self._end_of(key, "PREPARE"))

    def _commit(self, key: str) -> None:
        """In one connection: a local transaction ends with it."""
        begun = self._begun(key)
        if key.startswith("XID"):
            self._ask(*begun, self._end_of(key, "PREPARE"), self._end_of(key, "COMMIT_TWO_PHASE"))
        else:
            self._ask(*begun, self._end_of(key, "COMMIT_ONE_PHASE"))


def make_directory(shim: Shim, scratch: Path, style: Style) -> tuple[State, Promises]:
    """What the life leaves behind, and what it has promised."""
    directory, trace = fresh(scratch / "made"), scratch / "made-trace"
    trace.unlink(missing_ok=True)

    def live() -> None:
        shim.begin(directory, trace)
        life = FlipLife(directory, _WORK, "flips", shim)
        life.open()
        life.work()

    outcome = run_in_child(live)
    if outcome.kind != "ok":
        raise AssertionError(f"the directory cannot be made: {outcome.value}")
    disk = Disk()
    for operation in read_trace(trace):
        disk.apply(operation)
    state = disk.draw(random.Random(1), style)
    return state, Promises(History(disk.marks).others)


# --- what a change may cost -------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """Bytes [start, end) of a file: zeroed, or one byte with `bit` turned over."""

    path: str
    start: int
    end: int
    bit: int | None

    def apply(self, content: bytes) -> bytes:
        changed = bytearray(content)
        if self.bit is None:
            changed[self.start : self.end] = bytes(self.end - self.start)
        else:
            changed[self.start] ^= 1 << self.bit
        return bytes(changed)

    def __str__(self) -> str:
        what = "zeroed" if self.bit is None else f"bit {self.bit}"
        return f"{self.path}@{self.start}:{self.end} {what}"


def changes_of(state: State, rng: random.Random) -> Iterator[Change]:
    """Each byte of each file with one bit turned over, and each sector zeroed."""
    for path, content in sorted(state.files.items()):
        for position in range(len(content)):
            yield Change(path, position, position + 1, rng.randrange(8))
        for start in range(0, len(content), SECTOR):
            if any(content[start : start + SECTOR]):
                yield Change(path, start, min(start + SECTOR, len(content)), None)


class _Placed(NamedTuple):
    """A message at rest in a partition's own file."""

    offset: int
    end: int
    name: str


_Name = tuple[str, str]
"""Partition, message."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in the files of an undamaged directory everything lies."""

    at_rest: Mapping[str, Sequence[_Placed]]
    checkpoints: Mapping[str, int]
    """Path of a `.meta` file -> byte offset in the partition up to which its index describes it."""
    entries: Mapping[str, Sequence[tuple[int, int, str, int]]]
    """Partition -> base, end, path of the journal file, position in it."""
    redo: Mapping[str, Sequence[tuple[int, int, str]]]
    """Path -> start, end, key of each record."""
    transactions: Mapping[str, Sequence[_Name]]
    baseline: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What consumers get of each partition."""
    offsets: Mapping[_Name, int] = field(default_factory=dict)

    def with_baseline(self, found: Mapping[str, Sequence[tuple[int, str]]]) -> Layout:
        """found: what a consumer gets of each partition of the undamaged directory: offset, name."""
        return replace(
            self,
            baseline={partition: [name for _, name in messages] for partition, messages in found.items()},
            offsets={(partition, name): offset for partition, messages in found.items() for offset, name in messages},
        )

    def excused(self, change: Change) -> set[_Name]:
        """What may be missing after it."""
        path, start, _, _ = change
        folder, _, name = path.partition("/")
        if path.endswith(".meta"):
            return self._lost_with_data(folder, int(name.removesuffix(".meta")), change)
        if path.endswith(".journal"):
            return self._lost_with_journal(change)
        if path in self.redo:
            damaged = [key for _, stop, key in self.redo[path] if stop > start]  # what lies behind it is cut as well
            return {each for key in damaged for each in self.transactions.get(key, ()) if self._only_logged(each)}
        return set()

    def looks_unfinished(self, change: Change) -> bool:
        """Whether nothing good lies behind the damage: nobody can tell it from what a power cut leaves of a write."""
        path, _, end, _ = change
        folder, _, name = path.partition("/")
        if path.endswith(".meta"):
            return not any(each.offset >= int(name.removesuffix(".meta")) + end for each in self.at_rest[folder])
        if path.endswith(".journal"):
            places = [position for entries in self.entries.values() for _, _, file, position in entries if file == path]
            return max(places) <= end
        return path in self.redo and not any(begin >= end for begin, _, _ in self.redo[path])

    def with_changed_flag(self, change: Change) -> set[_Name]:
        """Messages whose flag is changed, which decides what of a body is its payload, and which no checksum covers. As
        it stands such a message says something else: where its transaction brings the right one, both have to come.
        """
        path, start, end, _ = change
        if not path.endswith(".meta"):
            return set()
        partition, _, name = path.partition("/")
        first = int(name.removesuffix(".meta"))
        return {
            (partition, each.name)
            for each in self.at_rest[partition]
            if each.offset + _FLAG_AT <= first + start and first + end <= each.offset + HEADER_BYTES
        }

    def _only_logged(self, name: _Name) -> bool:
        return all(placed.name != name[1] for placed in self.at_rest.get(name[0], ()))

    def _lost_with_data(self, partition: str, first: int, change: Change) -> set[_Name]:
        hit = [
            each
            for each in self.at_rest[partition]
            if each.end > first + change.start and each.offset < first + change.end and each.offset >= first
        ]
        known = self.checkpoints.get(change.path, 0)
        lost = {(partition, each.name) for each in hit if each.offset < known}
        damaged_from = next((each.offset for each in hit if each.offset >= known), None)
        if damaged_from is None:
            return lost
        # a start reads this part: it cuts there and keeps a copy, and only the journal can bring back what is behind
        restorable = damaged_from
        for base, end, _, _ in self.entries.get(partition, ()):
            if base <= restorable < end:
                restorable = end
        behind = {name for name in self.baseline[partition] if self.offsets[partition, name] >= restorable}
        return lost | {(partition, name) for name in behind}

    def _lost_with_journal(self, change: Change) -> set[_Name]:
        lost = set()
        for partition, entries in self.entries.items():
            of_file = [each for each in entries if each[2] == change.path]
            before = [each for each in of_file if each[3] <= change.start]
            hit = [each for each in of_file if each[3] + each[1] - each[0] > change.start and each[3] < change.end]
            # a block's head and names lie before its data: with them goes the block, whose first entry comes next
            hit += of_file[len(before) : len(before) + 1] + before[-1:]
            if hit:
                base = min(each[0] for each in hit)
                lost |= {
                    (partition, name)
                    for name in self.baseline.get(partition, ())
                    if self.offsets[partition, name] >= base and self._only_logged((partition, name))
                }
        return lost


def read_layout(state: State, directory: Path, promises: Promises) -> Layout:
    """directory: has the files of `state`, undamaged."""
    base = str(directory)
    at_rest: dict[str, list[_Placed]] = {}
    checkpoints: dict[str, int] = {}
    for path, content in sorted(state.files.items()):
        if path.endswith(".meta"):
            partition, _, name = path.partition("/")
            first = int(name.removesuffix(".meta"))
            stored = read_checkpoint(REAL_FILES, f"{base}/{path.removesuffix('.meta')}.index", first)
            checkpoints[path] = first if stored is None else stored.checkpoint.end
            for header in iter_headers(content):
                message = name_in(content[header.end - header.length : header.end])
                if message is not None:
                    at_rest.setdefault(partition, []).append(_Placed(first + header.start, first + header.end, message))
    entries = read_journal(REAL_FILES, base)[0]
    redo = {}
    for path in state.files:
        if os.path.basename(path).startswith("redo."):
            contents = read_redo(REAL_FILES, f"{base}/{path}")
            redo[path] = [(each.offset, each.offset + each.size, each.command.tx_key) for each in contents.entries]
    return Layout(
        at_rest,
        checkpoints,
        {
            partition: [
                (each.base, each.end, os.path.relpath(each.path, base), each.position) for each in found_entries
            ]
            for partition, found_entries in entries.items()
        },
        redo,
        {key: each.messages for key, each in promises.transactions.items()},
    )


def name_in(body: bytes) -> str | None:
    """The name of a message with or without attribute, whatever its flag says: no checksum covers the flag."""
    return name_of(body) or name_of(body[payload_start(body, _FLAG) :])


# --- consuming --------------------------------------------------------------------------------------------------------


class Consumed(NamedTuple):
    """messages: offset and name, in the order in which they came. damage: what the consumer was told or found."""

    messages: list[tuple[int, str]]
    damage: list[str]


class Told(logging.Handler):
    """What the broker has logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def consume(life: BrokerLife, topic: str, partition: int) -> Consumed:
    """A partition from its beginning to its end. Raises Broken for false messages and a lack of progress."""
    consumed = Consumed([], [])
    peer = life._peer()
    offset, verify = 0, False
    for _ in range(_PATIENCE):
        options: dict[str, Any] = {"verify": True} if verify and "verify" in PullRequest.__slots__ else {}
        request = PullRequest(topic, partition, offset, _PULL_BYTES, "g", sizes=True, **options)
        peer.send(encode_frame(RequestCode.PULL, 1, request.to_ext()))
        frames = peer.frames()
        if not frames:
            life.threads.run_all()
            life.reactor.advance(0)
            life.threads.run_all()
            frames = peer.frames()
        if not frames:
            raise Broken(f"{topic}-{partition}: a pull at {offset} is not answered")
        (frame,) = frames
        if frame.code == ResponseCode.PULL_NOT_FOUND:
            return consumed
        if frame.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
            consumed.damage.append(f"pull at {offset}: answer {frame.code}")
            return consumed
        reply = PullReply.from_ext(frame.ext)
        if frame.code == ResponseCode.PULL_OFFSET_MOVED:
            consumed.damage.append(f"moved from {offset} to {reply.next_offset}")
            if reply.next_offset < offset:
                raise Broken(f"{topic}-{partition}: the consumer is moved back from {offset} to {reply.next_offset}")
            if reply.next_offset == offset:
                raise Broken(f"{topic}-{partition}: the consumer is moved from {offset} to itself")
            offset, verify = reply.next_offset, False
            continue
        offset, verify = _take(consumed, topic, partition, offset, reply, frame.body, verify)
    raise Broken(f"{topic}-{partition}: no end after {_PATIENCE} pulls; the last began at {offset}")


def _take(
    consumed: Consumed, topic: str, partition: int, offset: int, reply: PullReply, body: memoryview, verify: bool
) -> tuple[int, bool]:
    """Take the records of an answer; where to go on, and whether the broker shall look at what lies there."""
    data, sizes = bytes(body), None
    if reply.records:
        table, records = split_batch(body, reply.records)
        data, sizes = bytes(records), table.tolist()
    position = 0
    while position + HEADER_BYTES <= len(data):
        size = sizes.pop(0) if sizes is not None else None
        try:
            header = next(iter_headers(data[position:], stored=False), None)
        except RemoteProtocolError:  # a negative length
            header = None
        if header is None or is_blank(*header[1:4]) or (size is not None and header.end != size):
            consumed.damage.append(f"wrong length at {offset + position}")
            return (offset + position, True) if not verify else (offset + position + (size or len(data)), False)
        content = data[position + HEADER_BYTES : position + header.end]
        if header.checksum != checksum(content):
            consumed.damage.append(f"wrong checksum at {offset + position}")
            if not verify and "verify" in PullRequest.__slots__:
                return offset + position, True
        else:
            name = name_in(content)
            if name is None:
                raise Broken(f"{topic}-{partition}: a false message at {offset + position}: {content[:60]!r}")
            consumed.messages.append((offset + position, name))
        position += header.end
        verify = False
    return max(reply.next_offset, offset + position), False


class Result(NamedTuple):
    """Of one start. checked: whether `metaq check` called the directory damaged before it. refused: why it failed."""

    consumed: Mapping[str, Consumed]
    checked: bool
    told: Sequence[str]
    refused: str


def start_and_consume(shim: Shim, directory: Path, trace: Path) -> Result:
    """In a child."""
    logging.disable(logging.NOTSET)
    told = Told()
    logging.getLogger().handlers = [told]
    checked = inspect_directory(directory, Options(processors=2)).damaged
    shim.begin(directory, trace)
    life = BrokerLife(directory, _WORK, "flip", shim)
    try:
        life.open()
    except MetaqError as error:
        return Result({}, checked, told.texts, str(error))
    life.threads.run_all()
    consumed = {f"{topic}-{partition}": consume(life, topic, partition) for topic, partition in PARTITIONS}
    return Result(consumed, checked, told.texts, "")


# --- judging ----------------------------------------------------------------------------------------------------------


class Verdict(Enum):
    """What was wrong. SILENT: something is lost and nobody was told. UNCHECKED: `metaq check` did not find it. STUCK: a
    consumer does not come behind it.
    """

    REFUSED = "refused"
    LOST = "lost"
    TWICE = "twice"
    FALSE = "false"
    SILENT = "silent"
    UNCHECKED = "unchecked"
    STUCK = "stuck"
    ERROR = "error"


def judge(layout: Layout, change: Change, outcome: Outcome) -> tuple[Verdict, str] | None:
    """None if it was right."""
    if outcome.kind == "broken":
        return (Verdict.FALSE if "false message" in outcome.value else Verdict.STUCK), outcome.value
    if outcome.kind != "ok":
        return (Verdict.STUCK if outcome.kind == "timeout" else Verdict.ERROR), str(outcome.value)
    result: Result = outcome.value
    if result.refused:
        # what operators decided cannot be guessed: a start that names the file is right
        if change.path.endswith("metaq.json") and "metaq.json" in result.refused:
            return None if result.checked else (Verdict.UNCHECKED, result.refused)
        return Verdict.REFUSED, result.refused
    missing: list[_Name] = []
    for partition, names in layout.baseline.items():
        got = [name for _, name in result.consumed[partition].messages]
        if extra := set(got) - set(names):
            return Verdict.FALSE, f"{partition}: {sorted(extra)} must not be there"
        twice = sorted({name for name in got if got.count(name) > 1})
        if {(partition, name) for name in twice} - layout.with_changed_flag(change):
            return Verdict.TWICE, f"{partition}: {twice} came more than once"
        got = list(dict.fromkeys(got))
        if got != [name for name in names if name in set(got)] and not layout.redo.get(change.path):
            return Verdict.FALSE, f"{partition}: the order has changed: {got}"
        missing += [(partition, name) for name in names if name not in set(got)]
    unexcused = sorted(set(missing) - layout.excused(change))
    if unexcused:
        return Verdict.LOST, f"{len(unexcused)} undamaged messages are lost: {unexcused[:3]}"
    met = [text for each in result.consumed.values() for text in each.damage]
    if missing and not met and not result.told:
        return Verdict.SILENT, f"{missing[:3]} are gone, and nobody was told"
    if (missing or met) and not result.checked and not layout.looks_unfinished(change):
        return Verdict.UNCHECKED, f"metaq check found nothing; missing {missing[:3]}, met {met[:2]}"
    return None


def flip(
    shim: Shim, scratch: Path, name: str, seed: int, chosen: Callable[[int, Change], bool]
) -> Iterator[Failure | None]:
    """Do those of `changes_of` a directory, one at a time, that are chosen by number and place.

    For each a failure, or None.
    """
    state, promises = make_directory(shim, scratch, DIRECTORIES[name])
    directory, trace = fresh(scratch / "flipped"), scratch / "flip-trace"
    materialise(state, directory)
    # the files as they are before a start changes them
    unplaced = read_layout(state, directory, promises)
    result = run_in_child(lambda: start_and_consume(shim, directory, trace))
    if result.kind != "ok" or result.value.refused or result.value.checked:
        raise AssertionError(f"the undamaged directory does not do: {result}")
    found = {partition: each.messages for partition, each in result.value.consumed.items()}
    names = {partition: [message for _, message in messages] for partition, messages in found.items()}
    promises.check(names, [])
    layout = unplaced.with_baseline(found)
    for number, change in enumerate(changes_of(state, random.Random(f"bits {name} {seed}"))):
        if not chosen(number, change):
            continue
        fresh(directory)
        damaged = dict(state.files)
        damaged[change.path] = change.apply(damaged[change.path])
        materialise(State(state.directories, damaged), directory)
        outcome = run_in_child(lambda: start_and_consume(shim, directory, trace))
        problem = judge(layout, change, outcome)
        yield None if problem is None else Failure(name, f"{seed}:{change}", problem[0].value, problem[1])
