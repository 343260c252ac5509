"""The garbage collector looks at everything once (broker/runtime/heap.py): what lives then is to need it no more."""

import gc
import socket
import subprocess
import sys
import time
import weakref
from collections import Counter

import pytest

from metaq.broker.network.session import Session
from metaq.protocol.frames import encode_frame
from metaq.protocol.remoting import SearchByTimeRequest
from metaq.protocol.statuses import RequestCode
from tests.component.broker.test_half_closed_connections import SECONDS, harness  # noqa: F401
from tests.unit.broker.harness import pull, put

REQUESTS = {
    "nothing": b"",
    "a put": put("t", 0),
    "a refused put": put("nope", 0),
    "a pull": pull("t", 0, 0),
    "a pull that waits": pull("t", 0, 0, wait_ms=60_000),
    "half a frame": pull("t", 0, 0)[:-3],
    "a search": encode_frame(RequestCode.SEARCH_OFFSET_BY_TIME, 1, SearchByTimeRequest("t", 0, 1).to_ext()),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=list(REQUESTS))
def test_a_connection_that_has_ended_is_gone_without_the_collector(harness, request_):  # noqa: F811
    gc.collect()
    gc.disable()
    try:
        with socket.create_connection(("127.0.0.1", harness.broker.port), SECONDS) as client:
            client.sendall(request_)
            deadline = time.monotonic() + SECONDS
            while not (sessions := [weakref.ref(each) for each in gc.get_objects() if isinstance(each, Session)]):
                assert time.monotonic() < deadline
        while any(each() is not None for each in sessions):
            assert time.monotonic() < deadline, Counter(map(type, gc.get_referrers(sessions[0]())))
            time.sleep(0.01)
    finally:
        gc.enable()


def test_a_full_collection_looks_at_nothing_twice() -> None:
    """In a process of its own: what is put aside stays so."""
    script = """
import gc
from metaq.broker.runtime.heap import collect_later, keep_for_good
collect_later()
kept = [[] for _ in range(100_000)]
keep_for_good()
more = [[] for _ in range(200_000)]
started = gc.get_stats()[2]["collections"]
circle = []
circle.append(circle)
del circle
print(started > 0, gc.get_freeze_count() > 250_000, len(gc.get_objects()) < 100_000, gc.collect() > 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout.split() == ["True"] * 4, done.stdout
