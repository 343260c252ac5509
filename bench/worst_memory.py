"""Measure the memory that a broker uses for the worst request of each verb from 200 connections, and compare it with
the bound for this verb.

`python -m bench.worst_memory [words]` sends the requests of bench/worst.py to a broker process with many partitions,
groups and delayed messages. It sends only requests of verbs whose name contains one of the words. No connection reads
an answer. Each connection sends a request repeatedly, or once without its last byte; all connections come from one
address, or from twenty. The peak is the kernel's peak of the resident memory (VmHWM, reset before each case) minus the
memory at rest after the broker's start. Memory that one case does not free counts for the next case, too, and is
printed. Delayed and half messages take memory as long as they wait, so a broker that holds more than LEFT_BYTES is
replaced by a new one. A case above its bound is a defect of the account in broker/runtime/account.py.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, cast

from bench.processes import free_port
from bench.worst import FRAMES, GROUPS, HALVES, PAGES, PARTITIONS, TEXTS, fill, filled_topics
from metaq.broker.configuration.settings import DEFAULT_MAX_PENDING_PUT_BYTES
from metaq.broker.runtime.account import SPACE_READ_BYTES, Quotas
from metaq.broker.tuning import HEAP_KEPT_BYTES, LARGE_READ_BYTES, WRITE_BYTES
from metaq.protocol.frames import encode_frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.statuses import RequestCode
from tests.broker_process import RunningBroker, server_ini
from tests.frames import FrameReader

__all__ = ["main"]

CONNECTIONS = 200
ADDRESSES = 20
SECONDS = 1.5
"""A case ends after this many seconds of the broker's processor time. It also ends when the broker takes no more
requests.
"""

MOST_SECONDS = 10.0
"""Longest time of a case in seconds."""

STILL_SECONDS = 1.0
"""A broker that has received nothing for this many seconds is assumed to take no more requests."""

SETTLED_SECONDS = 120.0
"""Seconds within which a broker must finish the sent requests."""

LEFT_BYTES = 128 << 20
ANSWER_SECONDS = 600.0
OWN_ADDRESS = "127.0.0.9"
"""Address of the connection that checks whether the broker serves. It differs from the other connections' addresses, so
their limits per address do not affect it.
"""

MEGABYTE = 1 << 20
CONNECTION_BYTES = LARGE_READ_BYTES + SPACE_READ_BYTES + WRITE_BYTES
"""Bytes that a connection may use and that the account does not count: one read before it is counted, space for a large
frame, and an answer.
"""

_OPAQUE = 77_777
_TRANSACTIONS = ("TRANSACTION", "TRANSACTION_OUTCOME", "SEND", "SEND_BATCH", "Put", "PutRun", "TransactionCommand")
"""Verbs that may send messages in a transaction."""
_SHARED = ("ACQUIRE", "SETTLE", "SHARED_STATUS", "SHARED_FORGET")
"""Verbs of shared groups."""


class _Case(NamedTuple):
    """What each connection sends. whole: the request is sent repeatedly; otherwise once, without its last byte.
    addresses: number of addresses from which the connections come.
    """

    verb: str
    name: str
    data: bytes
    whole: bool
    addresses: int


def _cases(words: list[str]) -> Iterator[_Case]:
    tables = [(RequestCode(code).name, requests) for code, requests in FRAMES.items()]
    tables += [(kind.__name__, requests) for kind, requests in TEXTS.items()]
    tables += PAGES.items()
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


def bound_bytes(case: _Case) -> int:
    """Return how many bytes of memory requests of this verb may use above the broker's memory at rest. docs/broker.md
    derives this bound from the limits.
    """
    limits = Quotas()
    bound = 2 * limits.unfinished_bytes + 2 * case.addresses * MAX_FRAME_BYTES + limits.waiting_bytes
    bound += DEFAULT_MAX_PENDING_PUT_BYTES + limits.unsent_bytes + HEAP_KEPT_BYTES + CONNECTIONS * CONNECTION_BYTES
    if case.verb in _TRANSACTIONS:
        bound += limits.transaction_bytes
    if case.verb in _SHARED:
        bound += limits.shared_bytes
    return bound


class _Broker:
    """A broker process that can hold many objects, and a connection to it from OWN_ADDRESS."""

    def __init__(self, directory: Path, children: ExitStack) -> None:
        topics = {name: f"numPartitions={count}" for name, count in filled_topics(PARTITIONS).items()}
        topics |= {"t": "numPartitions=3", "safe": "numPartitions=2\nunflushThreshold=0"}
        pages, gateway = free_port(), free_port()
        system = f"dashboardHttpPort={pages}\n"
        ini = server_ini(directory / "data", topics, unflush_threshold=1000, system=system)
        ini += f"[limits]\nsharedGroups={2 * GROUPS}\n"
        plugin = directory / "gateway.properties"
        plugin.write_text(f"serverPort={gateway}\n")
        module = ("-m", "metaq", "broker", f"-FjettyBroker={plugin}", "-f")
        self.running = children.enter_context(RunningBroker(directory, ini, module=module))
        self.ports = {"pages": pages, "gateway": gateway}
        self._own = self._connect(OWN_ADDRESS)
        self._ask(self._own, b"")
        self._sockets = self._count_sockets()

    def _connect(self, host: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.running.port), ANSWER_SECONDS, (host, 0))

    def _ask(self, connection: socket.socket, data: bytes) -> None:
        """Send requests and wait until all of them are answered."""
        end = encode_frame(RequestCode.HEARTBEAT, _OPAQUE, {})
        sending = threading.Thread(target=connection.sendall, args=(data + end,))
        sending.start()
        answers = FrameReader()
        while received := connection.recv(MEGABYTE):
            if any(frame.opaque == _OPAQUE for frame in answers.receive(received)):
                break
        else:
            raise ConnectionError(f"the broker closed our connection: {self.running.errors.read_text()[-2000:]}")
        sending.join()

    def do(self, data: bytes, host: str = "127.0.0.1") -> None:
        """Send a request and wait until it is done."""
        with self._connect(host) as connection:
            self._ask(connection, data)

    def _count_sockets(self) -> int:
        count = 0
        for descriptor in Path(f"/proc/{self.running.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor was closed meanwhile
                count += str(descriptor.readlink()).startswith("socket:")
        return count

    def _worked(self) -> float:
        """Return the broker's processor time in seconds."""
        times = Path(f"/proc/{self.running.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def memory(self, name: str) -> int:
        """Return a memory figure of the broker's /proc/PID/status in bytes. name: of its line, such as VmRSS."""
        lines = Path(f"/proc/{self.running.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

    def measure(self, case: _Case) -> tuple[int, int, float]:
        """Send a case's requests. Return the peak of the memory until all requests are finished and the memory that is
        used then, both in bytes, and the seconds that the broker needed to finish after the connections were closed.
        """
        Path(f"/proc/{self.running.process.pid}/clear_refs").write_text("5")
        _press(self.ports.get(case.verb, self.running.port), case, self._worked)
        closed = time.monotonic()
        while self._count_sockets() > self._sockets and time.monotonic() < closed + SETTLED_SECONDS:
            time.sleep(0.1)
        self._ask(self._own, b"")
        return self.memory("VmHWM"), self.memory("VmRSS"), time.monotonic() - closed


def _press(port: int, case: _Case, worked: Callable[[], float]) -> None:
    """Send the requests from all connections, then close the connections. worked: returns the broker's processor time
    so far.
    """
    view = memoryview(case.data)
    with ExitStack() as connections, selectors.DefaultSelector() as selector:
        for number in range(CONNECTIONS):
            connection = connections.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.bind((f"127.0.1.{1 + number % case.addresses}", 0))
            connection.connect(("127.0.0.1", port))
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE, 0)
        started = taken = time.monotonic()
        enough = worked() + SECONDS
        while worked() < enough and time.monotonic() < min(started + MOST_SECONDS, taken + STILL_SECONDS):
            for key, _ in selector.select(0.1):
                connection, place = cast(socket.socket, key.fileobj), key.data
                try:
                    place += connection.send(view[place : place + MEGABYTE])
                except BlockingIOError:
                    continue
                except OSError:  # the broker has closed it
                    selector.unregister(connection)
                    continue
                taken = time.monotonic()
                if place < len(view) or case.whole:
                    selector.modify(connection, selectors.EVENT_WRITE, place % len(view))
                else:
                    selector.unregister(connection)


def main(words: list[str]) -> int:
    """Print the peak and the bound of each case in MB. Return 1 if a case is above its bound or was not finished in
    time.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the broker ends, too
    failed = 0
    cases = list(_cases(words))
    while cases:
        with tempfile.TemporaryDirectory(prefix="metaq-worst-memory-") as directory, ExitStack() as children:
            broker = _Broker(Path(directory), children)
            fill(broker.do, PARTITIONS, GROUPS, halves=HALVES, timers=HALVES)
            rest = left = broker.memory("VmRSS")
            print(f"at rest {rest / MEGABYTE:.0f} MB; above that:", flush=True)
            while cases and left - rest <= LEFT_BYTES:
                case = cases.pop(0)
                peak, left, settled = broker.measure(case)
                failed += not _holds(case, peak - rest, left - rest, settled)
    return 1 if failed else 0


def _holds(case: _Case, peak: int, left: int, settled: float) -> bool:
    """Print the figures of a case. Return whether the peak is within the bound and the requests were finished in
    time.
    """
    bound = bound_bytes(case)
    mark = "  above" if peak > bound else "  not done" if settled > SETTLED_SECONDS else ""
    figures = [f"{size / MEGABYTE:6.0f}" for size in (peak, bound, left)]
    print(
        f"{figures[0]} of {figures[1]} MB,{figures[2]} left after {settled:5.1f} s, "
        f"{case.addresses:2} addresses  {case.verb}, {case.name}{mark}",
        flush=True,
    )
    return not mark


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
