"""Producers in a process of its own that may be killed at any moment.

`python -m tests.delays.sender ADDRESS SEED FILE` sends until it is killed. A line of the file for each message that was
acknowledged, when it was: its payload, and when it is due (Unix ms).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from metaq import SendResult

from .life import TOPICS, Sending, due_ms_of


class Books(dict[bytes, SendResult]):
    """What was acknowledged, on the disk as soon as it is known here."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def __setitem__(self, payload: bytes, result: SendResult) -> None:
        self.update([(payload, result)])

    def update(self, pairs: Iterable[tuple[bytes, SendResult]]) -> None:  # type: ignore[override]
        lines = b"".join(b"%s %d\n" % (payload, due_ms_of(result)) for payload, result in pairs)
        with self._lock:
            self._file.write(lines)


def main(address: str, seed: int, path: Path) -> None:
    books = Books(path)
    threads = []
    for topic in TOPICS:
        for way in ("batched", "gathered"):
            sending = Sending(topic, way, address, seed, name=f"{path.stem}-{seed}")
            sending.acknowledged = books
            threads.append(sending)
    for each in threads:
        each.start()
    sys.stdin.read()  # until whoever started this has ended


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
