"""The worst request of each verb from 200 connections: how much memory a broker takes for them, and what it may take.

`python -m bench.worst_memory [words]` measures the requests of bench/worst.py, those of verbs whose name has one of the
words, on a broker process with many partitions, groups and delayed messages. No connection reads an answer. Each brings
a request again and again, or all of it but the last byte; all come from one address, or each from one of twenty. The
peak of the resident memory is that of the kernel (VmHWM, which is set back before each case). A case that ends above
its bound is a defect of the account in broker/account.py.
"""

from __future__ import annotations

import re
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, cast

from bench.worst import FRAMES, GROUPS, PARTITIONS, PENDINGS, TEXTS, fill, filled_topics
from metaq.broker.account import Quotas
from metaq.broker.configuration.settings import DEFAULT_MAX_PENDING_PUT_BYTES
from metaq.broker.requests.reading import MAX_UNSENT_BYTES
from metaq.broker.tuning import HEAP_KEPT_BYTES
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode
from tests.broker_process import RunningBroker, server_ini
from tests.frames import FrameReader

__all__ = ["main"]

CONNECTIONS = 200
ADDRESSES = 20
SECONDS = 2.0
"""Each case brings requests for so long."""

SETTLED_SECONDS = 120.0
"""A broker has had this long to do what was brought."""

MEGABYTE = 1 << 20
_OPAQUE = 77_777
_TRANSACTIONS = ("TRANSACTION", "TRANSACTION_OUTCOME", "SEND", "SEND_BATCH", "Put", "PutRun", "TransactionCommand")
"""Verbs that may bring messages in a transaction."""
_SHARED = ("ACQUIRE", "SETTLE", "SHARED_STATUS", "SHARED_FORGET")
"""Verbs of shared groups."""


class _Case(NamedTuple):
    """What each connection brings. whole: again and again, or once without the last byte."""

    verb: str
    name: str
    data: bytes
    whole: bool
    addresses: int


def _cases(words: list[str]) -> Iterator[_Case]:
    tables = [(RequestCode(code).name, requests) for code, requests in FRAMES.items()]
    tables += [(kind.__name__, requests) for kind, requests in TEXTS.items()]
    for verb, requests in tables:
        if words and not any(word.lower() in verb.lower() for word in words):
            continue
        cases = [(name, data) for name, data in requests() if isinstance(data, bytes)]
        for addresses in (1, ADDRESSES):
            for name, data in cases:
                yield _Case(verb, name, data, True, addresses)
            if cases:
                name, data = max(cases, key=lambda case: len(case[1]))
                yield _Case(verb, f"{name}, unfinished", data[:-1], False, addresses)


def bound_bytes(verb: str) -> int:
    """What the limits imply for requests of this verb, beside what the broker has at rest: docs/broker.md."""
    limits = Quotas()
    bound = limits.unfinished_bytes + limits.waiting_bytes + DEFAULT_MAX_PENDING_PUT_BYTES + MAX_UNSENT_BYTES
    bound += HEAP_KEPT_BYTES + CONNECTIONS * MEGABYTE
    if verb in _TRANSACTIONS:
        bound += limits.transaction_bytes
    if verb in _SHARED:
        bound += limits.shared_bytes
    return bound


class _Broker:
    """A broker process with much in it."""

    def __init__(self, directory: Path) -> None:
        topics = {name: f"numPartitions={count}" for name, count in filled_topics(PARTITIONS).items()}
        topics |= {"t": "numPartitions=3", "safe": "numPartitions=2\nunflushThreshold=0"}
        limits = f"[limits]\nsharedGroups={2 * GROUPS}\n"
        self.running = RunningBroker(directory, server_ini(directory / "data", topics, unflush_threshold=1000) + limits)
        self.pid = self.running.process.pid

    def do(self, data: bytes, host: str = "127.0.0.1") -> None:
        """Send it and wait until all of it is answered."""
        with socket.create_connection(("127.0.0.1", self.running.port), 600, (host, 0)) as connection:
            end = encode_frame(RequestCode.HEARTBEAT, _OPAQUE, {})
            sending = threading.Thread(target=connection.sendall, args=(data + end,))
            sending.start()
            answers = FrameReader()
            while received := connection.recv(MEGABYTE):
                if any(frame.opaque == _OPAQUE for frame in answers.receive(received)):
                    break
            sending.join()

    def _connections(self) -> int:
        """How many the broker has, ours too: it works for those that have gone until it has read all they sent."""
        with self.running.connect(timeout=600) as connection:
            text = connection.ask(b"stats\r\n").text
        return int(re.search(r"curr_connections (\d+)", text)[1])  # type: ignore[index]

    def status(self, name: str) -> int:
        """A figure of /proc, bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

    def measure(self, case: _Case) -> tuple[int, int]:
        """The peak of the memory until all is done, and what is left of it a moment later, bytes above what there was
        before."""
        before = self.status("VmRSS")
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        _press(self.running.port, case)
        until = time.monotonic() + SETTLED_SECONDS
        while self._connections() > 1 and time.monotonic() < until:
            time.sleep(0.5)
        return self.status("VmHWM") - before, self.status("VmRSS") - before


def _press(port: int, case: _Case) -> None:
    """Bring the requests for SECONDS from all connections, then close them."""
    view = memoryview(case.data)
    with ExitStack() as connections, selectors.DefaultSelector() as selector:
        for number in range(CONNECTIONS):
            connection = connections.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.bind((f"127.0.0.{1 + number % case.addresses}", 0))
            connection.connect(("127.0.0.1", port))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE, 0)
        until = time.monotonic() + SECONDS
        while (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                connection, place = cast(socket.socket, key.fileobj), key.data
                try:
                    place += connection.send(view[place : place + MEGABYTE])
                except BlockingIOError:
                    continue
                except OSError:  # the broker has closed it
                    selector.unregister(connection)
                    continue
                if place < len(view) or case.whole:
                    selector.modify(connection, selectors.EVENT_WRITE, place % len(view))
                else:
                    selector.unregister(connection)


def main(words: list[str]) -> int:
    """The peak of each case beside its bound, MB; whether none is above it."""
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        broker = _Broker(Path(directory))
        with broker.running:
            fill(broker.do, PARTITIONS, GROUPS, PENDINGS)
            print(f"at rest {broker.status('VmRSS') / MEGABYTE:.0f} MB", flush=True)
            for case in _cases(words):
                peak, left = broker.measure(case)
                bound = bound_bytes(case.verb)
                failed += peak > bound
                mark = "  above" if peak > bound else ""
                print(
                    f"{peak / MEGABYTE:8.0f} of {bound / MEGABYTE:5.0f} MB, {left / MEGABYTE:6.0f} left, "
                    f"{case.addresses:2} addresses  {case.verb}, {case.name}{mark}",
                    flush=True,
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
