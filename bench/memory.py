"""Measure the resident memory of broker processes, and touch all free memory once before the measurements begin."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["free_bytes", "reset_peak", "resident_mb", "warm_memory", "warm_page_cache"]

MARGIN_BYTES = 1 << 30
"""Bytes that are left for other programs, so they are not touched when memory is warmed."""
STEP_BYTES = 256 << 20
RESET_PEAK = "5"  # /proc/<pid>/clear_refs, see proc(5)


def resident_mb(pid: int) -> tuple[float, float]:
    """Return two values of a process's resident memory, including mapped files, in units of 10^6 bytes: the present
    value, and the peak since the last reset_peak() or the process's start.
    """
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak


def reset_peak(pid: int) -> None:
    """Reset the peak of a process's resident memory to the present value."""
    Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)


def free_bytes() -> int:
    """Return the bytes of memory that the kernel does not use. Only this memory can be untouched; memory that caches
    files has been touched.
    """
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemFree"].split()[0]) * 1024


def warm_memory(size: int, show: Callable[[int], None]) -> int:
    """Touch every page of `size` bytes and free all of them; return how many bytes were touched.

    On a virtual machine the host provides memory when it is first touched, which costs microseconds a page. Without
    this function, the first measured system would pay for all of it. The pages are anonymous, because writing to a file
    would wait for the disk. show: called with the number of bytes touched so far.
    """
    held = []
    try:
        for _ in range(max(0, size) // STEP_BYTES):
            held.append(mmap.mmap(-1, STEP_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE))
            show(len(held) * STEP_BYTES)
        return len(held) * STEP_BYTES
    finally:
        for each in held:
            each.close()


def warm_page_cache(directory: Path, size: int) -> None:
    """Write `size` bytes into a file in `directory` and remove it: the kernel reuses these pages for the next writes.

    This does for pages of the page cache what `warm_memory` does for anonymous pages. The host takes the pages back
    within seconds, so this must run directly before the writes. A write of 8 MiB directly after this took 2 ms of
    processor time; without it, 4 to 38 ms.
    """
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(size // len(piece)):
            file.write(piece)
