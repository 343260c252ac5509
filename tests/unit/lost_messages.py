"""A partition of a real broker without a port that has lost messages, and taken others in their place."""

from typing import Any

from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.protocol.message_id import counter_at, message_id
from tests.frames import FrameReader
from tests.unit.broker.harness import NOW, Harness, put

HERE = TopicPartition("t", 0, 0)
SIZE = 25


class Connection:
    """Asks the broker of a harness. A broker of an earlier version does not know lastId."""

    speaks_frames, knows_compressed, takes_where, endpoint = True, True, True, Endpoint("here", 1)

    def __init__(self, harness: Harness, earlier: bool = False) -> None:
        self._harness = harness
        self._peer = harness.connect()
        self._earlier = earlier
        self.codes: list[int] = []

    def call(self, build: Any, timeout: float | None = None) -> Any:
        raw = b"".join(map(bytes, build(1)))
        (frame,) = FrameReader().receive(raw)
        self.codes.append(frame.code)
        self._peer.send(raw.replace(b'"lastId"', b'"passId"') if self._earlier else raw)
        while not (frames := self._peer.frames()):
            self._harness.threads.run()
            self._harness.reactor.advance(0.01)
        return frames[0]


def store(harness: Harness, seconds: float, count: int = 1) -> list[int]:
    """Messages that are sent so long after the beginning; their ids."""
    harness.time = NOW + seconds
    peer = harness.connect()
    return [int(peer.ask(put("t", 0)).text.split()[0]) for _ in range(count)]


def lost(seconds: float) -> int:
    """The id of a message that only another node had."""
    return message_id(counter_at(int((NOW + seconds) * 1000)) + 7, 0)
