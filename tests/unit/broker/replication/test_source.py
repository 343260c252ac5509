"""What a slave makes of a master's answers that are none."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from metaq.broker.replication.master_source import FrameSource, TextSource
from metaq.protocol.errors import PeerRefused
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import Result

REFUSED = Frame(ResponseCode.SYSTEM_ERROR, 1, 1, "out of order", {}, memoryview(b""))


class Answering:
    """A connection to a master that answers everything alike."""

    name = "meta://m:1"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def frame(self, *_: object) -> Any:
        return self._answer

    async def text(self, *_: object) -> Any:
        return self._answer


def done(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        call.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


def test_a_refusal_in_a_frame_is_no_offset_and_no_data():
    peer: Any = Answering(REFUSED)
    with pytest.raises(PeerRefused, match=r"meta://m:1 answered .* out of order"):
        done(FrameSource(peer, "group").bounds("t", 0))
    with pytest.raises(PeerRefused, match=r"meta://m:1 answered .* out of order"):
        done(FrameSource(peer, "group").fetch("t", 0, 0, 1000))


@pytest.mark.parametrize("answer", [Result(500, 1, "7"), Result(200, 1, "seven"), Result(200, 1, "-7")])
def test_a_refusal_in_text_is_no_offset(answer: Result):
    peer: Any = Answering(answer)
    with pytest.raises(PeerRefused, match=r"meta://m:1 answered"):
        done(TextSource(peer, "group").bounds("t", 0))
