"""The C library's heap: many threads use little memory, and memory that is soon needed again is kept. And the garbage
collector, which looks at everything once."""

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
"""The generation of a full collection."""


def set_up_heap() -> bool:
    """Set up the heap. Return whether the C library knows the settings, as glibc does. To be called before threads are
    started.

    All threads share one heap: otherwise glibc gives threads their own heaps, and each keeps the memory freed in it.
    Threads seldom wait for the one heap, because nearly all of its users hold the interpreter's lock anyway. Some free
    memory is kept: otherwise each answer of megabytes would get fresh pages and give them back at once. Measured in
    docs/decisions/009-one-heap-for-all-threads.md.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: tuning.HEAP_MMAP_BYTES, _M_TRIM_THRESHOLD: tuning.HEAP_KEPT_BYTES}
    return all(mallopt(name, value) for name, value in settings.items())


def give_back() -> None:
    """Give all free memory of the heap back to the system, where the C library can do that. Takes milliseconds: for use
    when much freed memory will not be needed again soon."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_FIGURES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _HeapFigures(ctypes.Structure):
    """struct mallinfo2 of malloc.h; `fordblks` is the number of free bytes."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIGURES.split())


def give_back_spare() -> None:
    """As `give_back`, but only if more than HEAP_KEPT_BYTES are free; so many at the heap's end stay. By itself the C
    library gives back only memory at the end: one used block there keeps all free memory before it. Takes some
    milliseconds for 100 MiB, and none if they were given back before. Any thread; others wait for memory meanwhile."""
    library = ctypes.CDLL(None)
    figures = getattr(library, "mallinfo2", None)
    if figures is None:
        return
    figures.restype = _HeapFigures
    if figures().fordblks > tuning.HEAP_KEPT_BYTES:
        library.malloc_trim(ctypes.c_size_t(tuning.HEAP_KEPT_BYTES))


def collect_later() -> None:
    """Collect no garbage before `keep_for_good`: the objects of a start stay, and looking at them again and again makes
    the start longer."""
    gc.disable()


def keep_for_good() -> None:
    """Collect garbage from now on, but never look at the present objects, and only once at later ones. To be called
    once, when everything has been read: a look at the objects of 10,000 partitions and groups takes half a second
    (docs/decisions/115-the-collector-leaves-the-start-alone.md)."""
    gc.freeze()
    gc.callbacks.append(_put_aside)
    gc.enable()


def _put_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
