"""Measure the resident memory of broker processes, and touch free memory once before anything is measured."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["free_bytes", "reset_peak", "resident_mb", "warm_memory", "warm_page_cache"]

MARGIN_BYTES = 1 << 30
"""Bytes that are left untouched when memory is warmed, for other programs."""
STEP_BYTES = 256 << 20
RESET_PEAK = "5"  # /proc/<pid>/clear_refs, see proc(5)


def resident_mb(pid: int) -> tuple[float, float]:
    """Return the resident memory of a process in 10^6 bytes, with mapped files: now, and the peak since reset_peak or
    its start."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak


def reset_peak(pid: int) -> None:
    """Reset the peak of a process's resident memory to the present value."""
    Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)


def free_bytes() -> int:
    """Return the bytes that the kernel does not use. Only these can be untouched; memory that caches files was
    touched."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemFree"].split()[0]) * 1024


def warm_memory(size: int, show: Callable[[int], None]) -> int:
    """Touch every page of `size` bytes and free all of them; return how many bytes were touched.

    On a virtual machine the host provides memory when it is first touched, which costs microseconds a page: the first
    measured system would pay for all of it. The pages are anonymous, because writing a file would wait for its disk.
    show: called with the bytes touched so far.
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

    This does for page-cache pages what `warm_memory` does for anonymous ones. The host takes the pages back within
    seconds: a write of 8 MiB directly after this took 2 ms of processor time, and 4 to 38 ms without it.
    """
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(size // len(piece)):
            file.write(piece)
