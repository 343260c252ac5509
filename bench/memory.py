"""Memory: what broker processes hold resident, and touching what is free once before anything is measured."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["free_bytes", "reset_peak", "resident_mb", "warm_memory", "warm_page_cache"]

MARGIN_BYTES = 1 << 30
"""Left free while memory is warmed, for whatever else runs."""
STEP_BYTES = 256 << 20
RESET_PEAK = "5"  # /proc/<pid>/clear_refs, see proc(5)


def resident_mb(pid: int) -> tuple[float, float]:
    """(now, highest since reset_peak or its start) resident memory of a process in 10^6 bytes, with mapped files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak


def reset_peak(pid: int) -> None:
    """Let the highest resident memory of a process be what it is now."""
    Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)


def free_bytes() -> int:
    """What the kernel uses for nothing. Only this can be untouched yet: what caches files has been touched."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemFree"].split()[0]) * 1024


def warm_memory(size: int, show: Callable[[int], None]) -> int:
    """Touch every page of `size` bytes and give all back; returns how many bytes that were.

    On a virtual machine the host gives memory when it is touched first, which costs microseconds a page: whoever is
    measured first would pay for all. Anonymous pages, since a file would be held up by the disk it is written to.
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
    """Write `size` bytes into a file there and remove it: the kernel takes these pages for what is written next.

    As `warm_memory`, for pages of another kind, which that does not reach. The host takes them back within seconds:
    8 MiB behind this took 2 ms of processor time, and 4 to 38 without.
    """
    piece = bytes(1 << 20)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(size // len(piece)):
            file.write(piece)
