"""Memory that threads have used and freed: it lies in one heap."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import DEADLINE

HEAPS_AFTER_THREADS = """
import ctypes, sys
from threading import Barrier, Thread
from metaq.broker.runtime.heap import set_up_heap

if "shared" in sys.argv and not set_up_heap():
    sys.exit("not glibc")
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
together = Barrier(4)

def use_memory():
    together.wait()
    block = libc.malloc(50_000)
    together.wait()
    libc.free(block)

threads = [Thread(target=use_memory) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


def heaps(*arguments: str) -> int:
    command = [sys.executable, "-c", HEAPS_AFTER_THREADS, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE).stdout.count(
        "<heap nr="
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_threads_set_up_heap() -> None:
    assert heaps() > 1
    assert heaps("shared") == 1
