"""What both HTTP ports share: bounded requests, no answer for foreign web pages, and listening."""

from __future__ import annotations

import ipaddress
from typing import Any, cast
from urllib.parse import urlsplit

from twisted.internet.error import CannotListenError
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import MAX_BODY_BYTES

__all__ = ["BoundedRequest", "comes_from_own_page", "is_local_name", "listen_http"]

_IDLE_SECONDS = 60
"""A connection that sends nothing for this long is closed."""


class BoundedRequest(Request):
    """A request whose body has at most MAX_BODY_BYTES; a larger one closes the connection before it is kept."""

    _refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        super().gotLength(length)
        self._check(length or 0)

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        self._check(cast(Any, self.content).tell() + len(data))
        if not self._refused:
            super().handleContentChunk(data)

    def process(self) -> None:
        if not self._refused:
            super().process()

    def _check(self, body_bytes: int) -> None:
        if body_bytes > MAX_BODY_BYTES and not self._refused:
            self._refused = True
            cast(Any, self.channel).forceAbortClient()


def listen_http(root: IResource, option: str, port: int, reactor: Any, interface: str) -> Any:
    """Serve `root`; the listening port. Raises ConfigError naming `option` if it cannot listen there."""
    site = Site(cast(Any, root), requestFactory=BoundedRequest, timeout=_IDLE_SECONDS)
    site.noisy = False
    try:
        return reactor.listenTCP(port, site, interface=interface)
    except CannotListenError as error:
        reason = error.socketError.strerror if isinstance(error.socketError, OSError) else error.socketError
        remedy = f"cannot listen there ({reason}): stop the other program or set another {option}"
        raise ConfigError(option, port, remedy) from error


def is_local_name(host: str) -> bool:
    """Whether a Host header names an address or this machine, not a domain that somebody made point here.

    A browser that a foreign page sends here by DNS rebinding gives that page's domain.
    """
    name = urlsplit(f"//{host}").hostname or ""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def comes_from_own_page(request: Request, own_names: frozenset[str]) -> bool:
    """Whether a request that changes something was sent by a page of ours or by no page at all (curl).

    own_names: further host names under which the broker is known.
    """
    host = (request.getHeader("host") or "").lower()
    if not is_local_name(host) and (urlsplit(f"//{host}").hostname or "") not in own_names:
        return False
    origin = request.getHeader("origin")
    return origin is None or urlsplit(origin).netloc.lower() == host
