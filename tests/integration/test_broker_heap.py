"""Memory that threads have used and freed lies in one heap, and what a start has made is no work for the collector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import server_ini
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


FREE_BELOW_WHAT_LIVES = """
import ctypes, re
from metaq.broker.runtime.heap import give_back_spare, set_up_heap

def taken():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

set_up_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
before = taken()
*blocks, last = [libc.malloc(1 << 20) for _ in range(151)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
for block in blocks:
    libc.free(block)
print(taken() - before)
give_back_spare()
print(taken() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_much_free_memory_is_given_back_whatever_lives_behind_it() -> None:
    command = [sys.executable, "-c", FREE_BELOW_WHAT_LIVES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE)
    freed, still_taken = map(int, done.stdout.split())
    assert freed >= 145
    assert still_taken <= 5


COLLECTOR_WHEN_SERVING = """
import gc, sys
from twisted.internet import reactor
from metaq.broker.main import run as run_broker

def served(**options):
    frozen = gc.get_freeze_count()
    print(gc.isenabled(), frozen > 10 * len(gc.get_objects()))

reactor.run = served
sys.exit(run_broker(sys.argv[1]))
"""


def test_the_collector_works_when_the_broker_serves_but_not_on_what_the_start_has_made(tmp_path: Path) -> None:
    ini = tmp_path / "server.ini"
    ini.write_text(server_ini(tmp_path / "data", {"t": ""}))
    command = [sys.executable, "-c", COLLECTOR_WHEN_SERVING, str(ini)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.stdout, done.returncode) == ("True True\n", 0), done.stderr
