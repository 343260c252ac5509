"""Write an HTTP page piece by piece, so that the reactor can serve other requests between the pieces. The page is not
written faster than the client receives it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from twisted.python.failure import Failure
from twisted.web.server import Request

from .. import tuning
from ..runtime.turns import ConnectionTurns
from .pages import Pieces

__all__ = ["Sheet", "encoded", "write_sheet"]

_log = logging.getLogger(__name__)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'"


class Sheet(NamedTuple):
    """A page as it is sent to the client: status, headers and pieces of text. status: the HTTP status."""

    content_type: str
    pieces: Pieces
    status: int = 200


def write_sheet(
    turns: ConnectionTurns, address: str, request: Request, sheet: Sheet, failed: Callable[[Failure], Sheet]
) -> None:
    """Write a sheet in turns, and finish the request. The time of these turns counts for `address`, the client address
    that asked for the page. failed: called if the first piece of the page cannot be made; the sheet that it returns is
    then written in place of the page. If a later piece cannot be made, the connection is closed, so that the client
    notices that the page is incomplete. Used only on the reactor thread.
    """
    _Writer(turns, address, request, sheet, failed).begin()


class _Writer:
    """Writes one sheet. Implements Twisted's IPushProducer."""

    def __init__(
        self, turns: ConnectionTurns, address: str, request: Request, sheet: Sheet, failed: Callable[[Failure], Sheet]
    ) -> None:
        self._turns = turns
        self._address = address
        self._request: Any = request
        self._sheet = sheet
        self._failed = failed
        self._paused = self._ended = self._planned = False

    def begin(self) -> None:
        request = self._request
        request.notifyFinish().addErrback(lambda _: self.stopProducing())
        request.registerProducer(self, True)
        try:
            text, more = self._some()
        except Exception:
            self._sheet = self._failed(Failure())
            text, more = self._some()
        request.setResponseCode(self._sheet.status)
        request.setHeader("content-type", self._sheet.content_type)
        request.setHeader("x-frame-options", "DENY")
        request.setHeader("content-security-policy", _POLICY)
        if not more:
            request.setHeader("content-length", str(len(text)))
        self._write(text, more and request.method != b"HEAD")

    def _go_on(self) -> None:
        self._planned = False
        if self._paused or self._ended:
            return
        try:
            text, more = self._some()
        except Exception:
            _log.error("a page of the dashboard failed half-way", exc_info=True)
            self._request.channel.forceAbortClient()
            return
        self._write(text, more)

    def _some(self) -> tuple[bytes, bool]:
        """Make as many pieces of the page as one turn may write. Return their bytes, and whether the page has more
        pieces.
        """
        seconds = self._turns.seconds
        until = seconds() + tuning.TURN_SECONDS
        texts: list[str] = []
        size = 0
        for piece in self._sheet.pieces:
            if piece is not None:
                texts.append(piece)
                size += len(piece)
            if size >= tuning.WRITE_BYTES or seconds() >= until:
                break
        else:
            return encoded(texts), False
        return encoded(texts), True

    def _write(self, text: bytes, more: bool) -> None:
        self._request.write(text)  # may pause
        if self._ended:
            return
        if more:
            self._plan()
        else:
            self._ended = True
            self._request.unregisterProducer()
            self._request.finish()

    def _plan(self) -> None:
        if not (self._paused or self._planned):
            self._planned = True
            self._turns.wait(self._go_on, 1, self._address)

    def pauseProducing(self) -> None:  # noqa: N802
        self._paused = True

    def resumeProducing(self) -> None:  # noqa: N802
        self._paused = False
        if not self._ended:
            self._plan()

    def stopProducing(self) -> None:  # noqa: N802
        """Twisted calls this when the client has closed the connection. Stop writing."""
        self._ended = True
        self._sheet = self._sheet._replace(pieces=iter(()))


def encoded(pieces: Iterable[str | None]) -> bytes:
    """Join pieces of a page and encode them in UTF-8. Characters that UTF-8 cannot encode are escaped, because they
    would break the whole page. Such characters can come from a path in another encoding, or from a name in a message
    that an earlier version accepted.
    """
    return "".join(piece for piece in pieces if piece).encode("utf-8", "backslashreplace")
