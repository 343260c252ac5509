"""`python -m tests.failovers.zookeeper DIRECTORY ADDRESS PORT`: ZooKeeper on a host of its own, until SIGTERM."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from metaq.coordination.embedded import EmbeddedZooKeeper

_START_SECONDS = 180.0


def main(directory: str, address: str, port: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    server = EmbeddedZooKeeper(Path(directory), int(port), address, tick_time_ms=500)
    server.start(_START_SECONDS)
    try:
        print(f"serving {server.connect_string}", flush=True)
        stopping.wait()
    finally:
        server.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
