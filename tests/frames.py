"""Frames as they are, without a client's or a broker's shortcuts: the reference for both."""

from metaq.protocol.frames import Frame, FrameStream, parse_frame, parse_frame_parts

__all__ = ["FrameReader"]


class FrameReader(FrameStream[Frame]):
    def __init__(self) -> None:
        super().__init__(parse_frame, parse_frame_parts)
