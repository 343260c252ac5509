"""How tests talk about transactions: text requests, a connection that waits for its answers, what consumers see."""

from __future__ import annotations

from typing import Any

from metaq.protocol.record import checksum, iter_headers
from metaq.protocol.text import Value, encode_get
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
