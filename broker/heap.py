"""One heap of the C library for all threads, so that memory which a worker thread has freed serves the others."""

from __future__ import annotations

import ctypes

__all__ = ["share_one_heap"]

_M_ARENA_MAX = -8  # malloc.h of glibc


def share_one_heap() -> bool:
    """Whether the C library knows the setting: glibc does. To be called before threads are started.

    Otherwise glibc gives threads heaps of their own, eight for a processor, and each keeps up to 64 MiB of what was
    freed in it: a broker that needed 100 MB held 480 MB. Threads seldom wait for the one heap, because nearly all of
    its users hold the interpreter's lock anyway.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, 1))
