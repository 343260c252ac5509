"""Reading a broker's frames, with the most frequent one recognised without decoding JSON: the answer to a send."""

from __future__ import annotations

import re
from typing import NamedTuple

from metaq.protocol.frames import Frame, frame_bytes, parse_frame

__all__ = ["ReplyReader", "SentReply"]


class SentReply(NamedTuple):
    """A successful answer to SEND or SEND_BATCH (remoting.SendReply), with its opaque."""

    opaque: int
    message_id: int
    partition: int
    offset: int


# exactly what protocol.frames.encode_frame writes for it; anything else is decoded as JSON
_SENT = re.compile(
    rb'.{8}\{"code":0,"language":"[A-Z]{1,16}","version":\d{1,9},"opaque":(\d{1,10}),"flag":1,"remark":"",'
    rb'"extFields":\{"msgId":"(\d{1,19})","partition":"(\d{1,9})","offset":"(\d{1,19})"\}\}',
    re.DOTALL,
)
_LONGEST_SENT = 256


class ReplyReader:
    """Turns a stream of bytes into frames; no I/O. As protocol.frames.FrameReader, and with its bounds.

    Cost: O(bytes), each byte is joined at most once.
    """

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._missing = 0

    def receive(self, data: bytes) -> list[Frame | SentReply]:
        """Take the next bytes; return the frames they complete. Raises RemoteProtocolError: close the connection."""
        if self._missing > len(data):
            self._chunks.append(data)
            self._missing -= len(data)
            return []
        if self._chunks:
            self._chunks.append(data)
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._missing = 0
        replies: list[Frame | SentReply] = []
        position = 0
        while position < len(data):
            length = frame_bytes(data, position)
            end = position + length
            if length == 0 or end > len(data):
                self._missing = max(0, end - len(data))
                self._chunks.append(data[position:] if position else data)
                break
            replies.append(_sent(data, position, end) or parse_frame(data, position, length))
            position = end
        return replies


def _sent(data: bytes, start: int, end: int) -> SentReply | None:
    if end - start > _LONGEST_SENT:
        return None
    match = _SENT.fullmatch(data, start, end)
    return None if match is None else SentReply(*map(int, match.groups()))
