"""Reading a broker's frames, with the most frequent one recognised without decoding JSON: the answer to a send."""

from __future__ import annotations

import re
from typing import NamedTuple

from metaq.protocol.frames import Frame, FrameStream, parse_frame, parse_frame_parts

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


class ReplyReader(FrameStream[Frame | SentReply]):
    """A FrameReader that recognises the answer to a send."""

    def __init__(self) -> None:
        super().__init__(_parse, parse_frame_parts)


def _parse(data: bytes, position: int, length: int) -> Frame | SentReply:
    return _sent(data, position, position + length) or parse_frame(data, position, length)


def _sent(data: bytes, start: int, end: int) -> SentReply | None:
    if end - start > _LONGEST_SENT:
        return None
    match = _SENT.fullmatch(data, start, end)
    return None if match is None else SentReply(*map(int, match.groups()))
