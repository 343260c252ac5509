"""SEND headers written once per partition: what changes from message to message is filled in.

Encoding the same JSON again would cost more than everything else a blocking send does on the way out.
"""

from __future__ import annotations

from struct import Struct

from metaq.protocol.frames import PREFIX_BYTES, encode_frame
from metaq.protocol.sends import SendRequest
from metaq.protocol.statuses import RequestCode

from ..values import TopicPartition

__all__ = ["SendHeaders"]

_PREFIX = Struct(">II")
_LENGTH_WORD = 4
# the codec writes the template with these in it, so the two cannot differ
_OPAQUE, _FLAG, _CHECKSUM = 1_900_000_001, 1_900_000_002, 1_900_000_003
_HOLES = ((b'"opaque":%d', _OPAQUE), (b'"flag":"%d"', _FLAG), (b'"checksum":"%d"', _CHECKSUM))


class SendHeaders(dict[TopicPartition, bytes]):
    """Header JSON with %d for opaque, flag and checksum, by partition."""

    def __missing__(self, partition: TopicPartition) -> bytes:
        request = SendRequest(partition.topic, partition.partition, _FLAG, _CHECKSUM)
        json = encode_frame(RequestCode.SEND, _OPAQUE, request.to_ext())[PREFIX_BYTES:].replace(b"%", b"%%")
        for hole, mark in _HOLES:  # a quote inside a topic is escaped, so each is found once
            json = json.replace(hole % mark, hole, 1)
        self[partition] = json
        return json

    def encode(self, opaque: int, partition: TopicPartition, flag: int, checksum: int, body_bytes: int) -> bytes:
        """Prefix and header of a SEND frame, the same as `encode_frame` makes."""
        json = self[partition] % (opaque, flag, checksum)
        return _PREFIX.pack(_LENGTH_WORD + len(json) + body_bytes, len(json)) + json
