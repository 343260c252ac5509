"""The C library's heap: little memory for many threads, and none given back that is needed again at once. And the
garbage collector, which looks at everything once."""

from __future__ import annotations

import ctypes
import gc

from .. import tuning

__all__ = ["collect_later", "give_back", "give_back_spare", "keep_for_good", "set_up_heap"]

# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_OLDEST = 2
"""A collection of this generation is a full one."""


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


_FIGURES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _HeapFigures(ctypes.Structure):
    """struct mallinfo2 of malloc.h; `fordblks` is the bytes that are free."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIGURES.split())


def give_back_spare() -> None:
    """As `give_back`, but only if more than HEAP_KEPT_BYTES are free; so many at the heap's end stay. By itself the C
    library gives back only what is free at the end: one block in use there holds all that is free before it. Takes some
    milliseconds for 100 MiB, and none if they were given back before. Any thread; others wait for memory meanwhile."""
    library = ctypes.CDLL(None)
    figures = getattr(library, "mallinfo2", None)
    if figures is None:
        return
    figures.restype = _HeapFigures
    if figures().fordblks > tuning.HEAP_KEPT_BYTES:
        library.malloc_trim(ctypes.c_size_t(tuning.HEAP_KEPT_BYTES))


def collect_later() -> None:
    """Collect no garbage before `keep_for_good`: what a start makes stays, and to look at it whenever it grows makes
    the start longer."""
    gc.disable()


def keep_for_good() -> None:
    """Collect garbage from now on, but never look at what there is now, nor twice at what comes. To be called once,
    when all has been read: a look at the objects of ten thousand partitions and groups takes half a second
    (docs/decisions/115-the-collector-leaves-the-start-alone.md)."""
    gc.freeze()
    gc.callbacks.append(_put_aside)
    gc.enable()


def _put_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
