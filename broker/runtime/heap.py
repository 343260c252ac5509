"""Settings of the C library's heap and of Python's garbage collector. They have two purposes: a process with many
threads uses little memory, and freed memory is not given back to the system if it will soon be needed again. A full
collection of the garbage collector normally examines all objects. With these settings, all full collections together
examine each object at most once.
"""

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
"""The number of the garbage collector's oldest generation; the collector reports this number for a full collection.
"""


def set_up_heap() -> bool:
    """Configure the heap of the C library. Return whether the C library supports these settings, as glibc does. To be
    called before threads are started.

    All threads share one heap. By default glibc gives each thread a heap of its own, so memory that one thread has
    freed is not used by other threads. Threads seldom wait for the shared heap, because nearly all of its users hold
    the interpreter's lock anyway. The heap keeps some free memory. Without it, the heap would get new pages from the
    system for each answer of some megabytes, and give them back soon after. The measurements are in
    docs/decisions/009-one-heap-for-all-threads.md.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: tuning.HEAP_MMAP_BYTES, _M_TRIM_THRESHOLD: tuning.HEAP_KEPT_BYTES}
    return all(mallopt(name, value) for name, value in settings.items())


def give_back() -> None:
    """Give all free memory of the heap back to the system, if the C library can do that. The call takes milliseconds.
    To be called when much memory was freed and will not be needed again soon.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_FIGURES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _HeapFigures(ctypes.Structure):
    """The C structure mallinfo2 of malloc.h. `fordblks` is the number of free bytes in the heap."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIGURES.split())


def give_back_spare() -> None:
    """If more than HEAP_KEPT_BYTES are free, give free memory of the heap back to the system as `give_back` does, but
    keep HEAP_KEPT_BYTES at the heap's end. Without this call, the C library gives back only free memory at the heap's
    end; while the last block of the heap is in use, it gives back nothing. The call takes some milliseconds for 100 MiB
    of free memory, and almost no time if this memory was given back before. Any thread may call this function; other
    threads that need memory wait until it has returned.
    """
    library = ctypes.CDLL(None)
    figures = getattr(library, "mallinfo2", None)
    if figures is None:
        return
    figures.restype = _HeapFigures
    if figures().fordblks > tuning.HEAP_KEPT_BYTES:
        library.malloc_trim(ctypes.c_size_t(tuning.HEAP_KEPT_BYTES))


def collect_later() -> None:
    """Stop garbage collection until `keep_for_good` is called. Called at the beginning of the broker's start: the
    objects that are created during the start are needed later, so collections would find no garbage and only make the
    start longer.
    """
    gc.disable()


def keep_for_good() -> None:
    """Collect garbage from now on, but never examine the objects that exist now. An object that is created later is
    examined by at most one full collection: if it is still in use afterwards, it is never examined again, either. To be
    called once, when the broker has read all its data at the start. Without this call each full collection would
    examine all objects, which takes half a second for 10,000 partitions and groups
    (docs/decisions/115-the-collector-leaves-the-start-alone.md).
    """
    gc.freeze()
    gc.callbacks.append(_put_aside)
    gc.enable()


def _put_aside(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
