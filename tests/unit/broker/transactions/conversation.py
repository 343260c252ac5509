"""How tests talk about transactions: text requests, a connection that waits for its answers, what consumers see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metaq.broker.store.files import REAL_FILES, Files
from metaq.protocol.record import checksum, iter_headers
from metaq.protocol.text import Value, encode_get
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness

XID = "XID:100:0a0b:0c:host"


def tx(key: str, verb: str, *optional: object, opaque: int = 1) -> bytes:
    return " ".join(["transaction", key, "s", verb, *map(str, optional), f"{opaque}\r\n"]).encode()


def tx_put(key: str, topic: str, partition: int, body: bytes, opaque: int = 1, crc: int | None = None) -> bytes:
    crc = checksum(body) if crc is None else crc
    return f"put {topic} {partition} {len(body)} 0 {crc} {key} {opaque}\r\n".encode() + body


class Asker:
    """A connection whose requests are answered when the worker threads have run."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.peer = harness.connect()

    def __call__(self, data: bytes) -> Any:
        self.peer.send(data)
        self.harness.threads.run()
        (answer,) = self.peer.answers()
        return answer

    def ok(self, *requests: bytes) -> str:
        """The text of the last answer; all must be 200."""
        for data in requests:
            answer = self(data)
            assert answer.code == 200, answer.text
        return str(answer.text)

    def refused(self, data: bytes) -> str:
        answer = self(data)
        assert answer.code == 500
        return str(answer.text)


class Lives:
    """Of a broker in one directory, and of each its first connection, `ask`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs = False

    def start(self, files: Files = REAL_FILES, **more: Any) -> Asker:
        """more: of Harness."""
        self.harness = Harness(self.directory, files=files, **more)
        self.runs, self.files, self.ask = True, files, Asker(self.harness)
        return self.ask

    def again(self, **more: Any) -> Asker:
        self.stop()
        return self.start(**more)

    def stop(self) -> None:
        self.runs = False
        self.harness.threads.run()
        self.harness.close()

    def kill(self) -> None:
        """Nothing is settled."""
        self.runs = False
        if isinstance(self.files, FaultyFiles):
            self.files.kill()
        else:
            self.harness.store.close()

    def lose_power(self) -> None:
        assert isinstance(self.files, FaultyFiles)
        self.runs = False
        self.files.lose_power()


def bodies(harness: Harness, topic: str, partition: int) -> list[bytes]:
    """What consumers can read."""
    peer = harness.connect()
    found: list[bytes] = []
    offset = 0
    while isinstance(answer := peer.ask(encode_get(topic, "g", partition, offset, 1 << 20, 1)), Value):
        headers = list(iter_headers(answer.data))
        found += [bytes(answer.data[each.end - each.length : each.end]) for each in headers]
        offset += headers[-1].end
    return found
