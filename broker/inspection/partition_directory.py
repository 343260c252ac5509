"""Inspect one partition directory: the segments of the partition, and all other files in the directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..store.cut_files import CUT_NAME
from ..store.files import Files
from ..store.recovery import first_unsafe
from ..store.segment import DATA_SUFFIX, INDEX_SUFFIX, KEYS_SUFFIX, SegmentFile, offset_named
from .findings import Finding, Level
from .segment_files import Bad, BadRange, IndexState, KeysState, SegmentReport, inspect_keys, inspect_segment

__all__ = ["PartitionReport", "SegmentList", "inspect_partition", "list_partition"]

_RECORD_HEADER = 20
_ARCHIVE_SUFFIXES = (f"{DATA_SUFFIX}.arc", f"{DATA_SUFFIX}.zip")
_QUARANTINE = f"{DATA_SUFFIX}.damaged-"


@dataclass(frozen=True, slots=True)
class SegmentList:
    """The files of one partition directory, with the sizes that they had when the directory was listed."""

    name: str
    """The partition's name `<topic>-<partition>`."""
    path: str
    segments: tuple[SegmentFile, ...]
    unsafe: int
    """The index in `segments` of the first segment that the next start of a broker will check, because its records may
    not be synced. If the start finds bytes that belong to no good record in this segment or a later one, it cuts the
    partition off where these bytes begin. The index is 0 if there are no segments.
    """
    archives: int
    quarantined: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


@dataclass(slots=True)
class PartitionReport:
    """The result of the inspection of one partition. Offsets and sizes are in bytes. records: the number of records, or
    None if they were not counted.
    """

    name: str
    path: str
    segments: int
    first_offset: int
    end_offset: int
    bytes: int
    records: int | None = 0
    checked_bytes: int = 0
    bad: list[BadRange] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)
    """For each IndexState (its value), the number of segments whose index has this state."""
    keys: dict[str, int] = field(default_factory=dict)
    """For each KeysState (its value), the number of segments whose key file has this state."""
    largest_record: int = 0
    archives: int = 0
    quarantined: int = 0
    findings: list[Finding] = field(default_factory=list)


def list_partition(files: Files, name: str, path: str) -> SegmentList:
    """List a partition directory. The result has a finding for each file that a broker cannot use. Raises OSError if
    the directory cannot be listed.
    """
    segments: list[SegmentFile] = []
    findings: list[Finding] = []
    names = sorted(files.list_directory(path))
    for file in names:
        if not file.endswith(DATA_SUFFIX):
            continue
        first_offset, where = offset_named(file), os.path.join(path, file)
        if first_offset is None:
            findings.append(
                Finding(
                    Level.DAMAGE,
                    where,
                    "the name is not a byte offset: our broker skips it, a Java broker does not start",
                )
            )
            continue
        try:
            status = files.status(where)
        except FileNotFoundError:  # a running broker's retention
            continue
        segments.append(SegmentFile(where, first_offset, status.size, status.modified_ms))
    segments.sort(key=lambda segment: segment.first_offset)
    unsafe = first_unsafe(files, segments) if segments else 0
    return SegmentList(
        name,
        path,
        tuple(segments),
        unsafe,
        sum(file.endswith(_ARCHIVE_SUFFIXES) for file in names),
        tuple(os.path.join(path, file) for file in names if _QUARANTINE in file),
        (*findings, *_joints(segments, unsafe), *_orphans(path, names), *_cut(path, names)),
    )


def _joints(segments: Sequence[SegmentFile], unsafe: int) -> list[Finding]:
    found = []
    for number, (before, after) in enumerate(pairwise(segments)):
        if before.end != after.first_offset:
            gap = before.end < after.first_offset
            size = abs(after.first_offset - before.end)
            effect = "no broker starts with it"
            if gap and number >= unsafe:
                effect = "the start of ours sets the later segments aside, a Java broker does not start"
            what = "gap" if gap else "overlap"
            text = f"{what} of {size} bytes: the segment before it ends at {before.end}; {effect}"
            found.append(Finding(Level.DAMAGE, after.path, text))
    return found


def _orphans(path: str, names: Sequence[str]) -> list[Finding]:
    stems = {name.removesuffix(DATA_SUFFIX) for name in names if name.endswith(DATA_SUFFIX)}
    return [
        Finding(Level.NOTE, os.path.join(path, name), f"{what} without a segment: it may be deleted")
        for name in names
        for suffix, what in ((INDEX_SUFFIX, "an index"), (KEYS_SUFFIX, "a key file"))
        if name.endswith(suffix) and name.removesuffix(suffix) not in stems
    ]


def _cut(path: str, names: Sequence[str]) -> list[Finding]:
    if CUT_NAME not in names:
        return []
    text = "the partition's end is being cut off: the next start finishes that, and keeps the bytes that it cuts"
    return [Finding(Level.NOTE, os.path.join(path, CUT_NAME), text)]


def inspect_partition(
    files: Files, listed: SegmentList, *, fast: bool, limit: int, in_use: bool, advance: Callable[[int], None]
) -> PartitionReport:
    """Read the segments of a listed partition with inspect_segment. The arguments `files`, `fast`, `limit` and
    `advance` are passed to inspect_segment. For each file that cannot be read, the report gets a finding.
    """
    segments = listed.segments
    report = PartitionReport(
        listed.name,
        listed.path,
        len(segments),
        segments[0].first_offset if segments else 0,
        segments[-1].end if segments else 0,
        listed.size,
        archives=listed.archives,
        quarantined=len(listed.quarantined),
        findings=list(listed.findings),
    )
    oversized = 0
    for number, segment in enumerate(segments):
        last = segment is segments[-1]
        try:
            found = inspect_segment(files, segment, last=last, fast=fast, limit=limit, advance=advance)
            keys = inspect_keys(files, segment, last=last, fast=fast)
        except OSError as error:
            gone = in_use and isinstance(error, FileNotFoundError)
            text = "retention took it meanwhile" if gone else f"cannot be read: {error.strerror}"
            report.findings.append(Finding(Level.NOTE if gone else Level.DAMAGE, segment.path, text))
            report.records = None
            continue
        oversized += found.oversized
        _add(report, found, last, number >= listed.unsafe, in_use)
        _add_keys(report, segment, keys)
    if oversized:
        text = f"{oversized} records are larger than {limit} bytes: 1.x consumers with that maxTransferSize stop there"
        report.findings.append(Finding(Level.NOTE, listed.path, text))
    for path in listed.quarantined:
        text = "damaged bytes that a recovery has set aside: delete the file when they are not needed"
        report.findings.append(Finding(Level.NOTE, path, text))
    return report


def _add(report: PartitionReport, found: SegmentReport, last: bool, unsafe: bool, in_use: bool) -> None:
    """Add the report about a segment to the report about its partition. last: whether the segment is the partition's
    last one. unsafe: whether the next start of a broker will check this segment; if so, it cuts the partition at bad
    bytes that it finds there.
    """
    counted = report.records is not None and found.records is not None
    report.records = (report.records or 0) + (found.records or 0) if counted else None
    report.checked_bytes += found.file.size - found.checked_from
    report.largest_record = max(report.largest_record, found.largest)
    report.bad += found.bad
    state = found.index
    if state is IndexState.BEHIND and last:
        state = IndexState.OK  # a broker completes it at its start or at the next checkpoint
    report.index[state.value] = report.index.get(state.value, 0) + 1
    # a start does not check trusted bytes, so it neither cuts damage there nor sets it aside
    for each in found.bad:
        judged, promised = unsafe and each.start >= found.trusted_end, each.start < found.promised_end
        report.findings.append(_bad_finding(found.file, each, last, judged, promised, in_use))
    if state is IndexState.WRONG:
        text = "it does not describe its segment: it is made again at the next start"
        report.findings.append(Finding(Level.WARNING, found.file.index_path, text))
    elif state is IndexState.MISLEADING:
        effect = "consumers miss good messages" if found.misplaced else "searches by id miss messages"
        remedy = "Stop the broker and delete it: then the next start makes it again"
        level = Level.DAMAGE if found.misplaced else Level.WARNING
        text = f"it does not match the records, and a start would trust it: {effect}. {remedy}"
        report.findings.append(Finding(level, found.file.index_path, text))
    elif state is IndexState.DAMAGED:
        text = f"{found.index_damage}: a broker makes the index again when it reads there, no message is lost"
        report.findings.append(Finding(Level.WARNING, found.file.index_path, text))


def _add_keys(report: PartitionReport, file: SegmentFile, state: KeysState) -> None:
    report.keys[state.value] = report.keys.get(state.value, 0) + 1
    if state is KeysState.WRONG:
        text = "its keys are not those of the segment, searches by key miss messages: delete it, it is made again"
        report.findings.append(Finding(Level.WARNING, file.keys_path, text))


def _bad_finding(file: SegmentFile, bad: BadRange, last: bool, judged: bool, promised: bool, in_use: bool) -> Finding:
    """Return the finding for bad bytes. last: whether the bytes are in the partition's last segment. judged: whether
    the next start of a broker will check these bytes; if so, it cuts the partition where they begin. promised: whether
    the bytes begin before the offset up to which, according to the index, the records were synced.
    """
    size = bad.end - bad.start
    where = f"[{bad.start}, {bad.end})"
    at_end = last and judged and bad.end == file.end
    if at_end and promised:
        text = f"{size} damaged bytes {where} had been good and synced: their messages are lost"
        return Finding(Level.DAMAGE, file.path, text if in_use else f"{text}, the start cuts the log there")
    if at_end and in_use:
        return Finding(Level.NOTE, file.path, f"{size} bytes at {bad.start} that the running broker is writing")
    if at_end and bad.kind is Bad.ZEROS:
        java = f"a Java broker would take them for {size // _RECORD_HEADER} empty messages"
        return Finding(
            Level.WARNING, file.path, f"a tail of {size} zero bytes at {bad.start}: cut at the start; {java}"
        )
    if at_end:
        text = f"a torn tail of {size} bytes at {bad.start}: a record that was never finished, cut at the start"
        return Finding(Level.WARNING, file.path, text)
    if judged and not in_use:
        effect = "the start sets everything from there on aside and cuts the log"
    else:
        effect = "its messages are lost, consumers stop there or skip it"
    what = "damaged"
    if bad.kind is Bad.ZEROS:
        what = "zero"
        effect += f"; a Java broker gives them as {size // _RECORD_HEADER} empty messages"
    return Finding(Level.DAMAGE, file.path, f"{size} {what} bytes {where}: {effect}")
