"""Records as brokers send them, and a consumer's core whose requests a test sees, and answers as it likes."""

import numpy as np
import pytest

from metaq import ConsumerConfig, TopicPartition
from metaq.client.fetching.chunk import Chunk
from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.cursor import Ask, Request
from metaq.protocol.errors import CorruptRecord
from metaq.protocol.record import encode_attributes, encode_body, encode_record

HERE, THERE = TopicPartition("t", 0, 1), TopicPartition("t", 1, 0)


def record(payload, identity=1, **attributes):
    flag, raw = encode_attributes(**attributes)
    return encode_record(encode_body(payload, flag, raw), identity, flag)


def damaged(raw):
    return raw[:-1] + bytes([raw[-1] ^ 1])


def chunk_of(*records, offset=1000, end=None):
    data = b"".join(records)
    return Chunk.of(data, offset, offset + len(data) if end is None else end)


def sized(*records, offset=1000):
    """The chunk of an answer with a table of sizes, behind what else was received."""
    data = b"header" + b"".join(records)
    return Chunk.of(memoryview(data)[6:], offset, offset + len(data) - 6, np.array([len(each) for each in records]))


def payloads(messages):
    return [message.payload for message in messages]


def damage_of(take, *arguments, **options) -> CorruptRecord:
    """What it tells of."""
    with pytest.raises(CorruptRecord) as caught:
        take(*arguments, **options)
    return caught.value


class Bench:
    """A core that begins at the offset 1000 of HERE."""

    def __init__(self, damage="stop", on_damaged=None, **options):
        config = ConsumerConfig(damage=damage, on_damaged=on_damaged, max_buffered_bytes=1)
        self.core = ConsumerCore("g", config, **options)
        self.cursor = self.claim(HERE)

    def claim(self, partition):
        (cursor,) = self.core.claim([partition], [1000], announced=True)
        self.requests()
        return cursor

    def requests(self):
        """What is to be asked now. It is answered with nothing."""
        found = []
        while (cursor := self.core.next_wanting()) is not None:
            request = cursor.next_request(0.0)
            if request is not None:
                found.append(request)
        for request in found:
            request.cursor.answered(request, 0.0)
        return found

    def examined(self):
        return [(request.ask, request.offset, request.verify) for request in self.requests()]

    def arrive(self, *chunks, cursor=None):
        cursor = cursor or self.cursor
        for chunk in chunks:
            assert cursor.arrived(Request(cursor, cursor._generation, Ask.PULL, chunk.offset), chunk)
            self.core.make_ready(cursor)

    def take(self, limit=10):
        messages = self.core.take(limit)
        self.core.under_way = False
        return payloads(messages)

    def take_batch(self, limit=10):
        batch = self.core.take_batch(limit)
        self.core.under_way = False
        return batch["payload"].to_pylist()

    @property
    def consumed(self):
        """As the next call finds it."""
        self.core.acknowledge()
        return self.cursor.consumed
