"""The C library's heap: little memory for many threads, and none given back that is needed again at once."""

from __future__ import annotations

import ctypes

from .. import tuning

__all__ = ["give_back", "set_up_heap"]

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def set_up_heap() -> bool:
    """Whether the C library knows the settings: glibc does. To be called before threads are started.

    One heap for all threads: otherwise glibc gives threads heaps of their own, and each keeps what was freed in it.
    Threads seldom wait for the one heap, because nearly all of its users hold the interpreter's lock anyway. And some
    memory is kept: otherwise each answer of megabytes is made of fresh pages and given back at once. Measured in
    docs/decisions/009-one-heap-for-all-threads.md.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: tuning.HEAP_MMAP_BYTES, _M_TRIM_THRESHOLD: tuning.HEAP_KEPT_BYTES}
    return all(mallopt(name, value) for name, value in settings.items())


def give_back() -> None:
    """Give the system what is free anywhere in the heap, where the C library can do that. Takes milliseconds: for after
    much memory was held that will not be needed again soon."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
