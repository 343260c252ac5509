"""Detects requests that a foreign web page has made a browser send here, without its user knowing.

Such a page can send the requests of forms and images; the browser then names the page in Origin. By DNS rebinding,
which points the page's own domain to this machine, it can send all requests of our own pages; Host is then that domain.
Programs other than browsers send no Origin, and as Host the name to which they connect.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from twisted.web.server import Request

__all__ = ["OwnNames", "header_of"]

_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:/?#@]+))(?::[0-9]*)?", re.ASCII)
"""An IPv6 address in brackets, or a name or another address; then a port (RFC 9112)."""


def header_of(request: Request, name: str) -> str | None:
    """Return the last header with this name. Invalid UTF-8 is replaced, where twisted's `getHeader` of a str raises."""
    value: bytes | None = request.getHeader(name.encode())
    return None if value is None else value.decode("utf-8", "replace")


class OwnNames:
    """The names that requests to the broker's HTTP ports may use: addresses, names without a dot (no foreign domain is
    one), the machine's name, and the given names."""

    def __init__(self, names: Iterable[str]) -> None:
        """names: host names; case does not matter."""
        self._names = frozenset(each.lower() for each in (*names, socket.gethostname()))

    def refusal(self, request: Request) -> str | None:
        """Return why the request is not answered; None if it is. A missing header is no reason."""
        for name in ("Host", "Origin"):
            if len(request.requestHeaders.getRawHeaders(name.encode(), ())) > 1:
                return f"the request has more than one {name}"
        host = header_of(request, "host")
        if host is not None and not self._is_own(host):
            return f"this broker is not {host}: start it with --http-name to accept this name"
        origin = header_of(request, "origin")
        if origin is not None and _place(origin) != (host or "").lower():
            return f"a page of {origin} sent this request"
        return None

    def _is_own(self, host: str) -> bool:
        if (found := _HOST.fullmatch(host)) is None:
            return False
        name = (found[1] or found[2]).lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return "." not in name or name in self._names
        return True


def _place(origin: str) -> str | None:
    """Return the host of an origin; None if it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
