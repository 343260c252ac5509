"""Detect requests to this broker that a foreign web page makes a browser send without the user's knowledge.

A foreign page can send requests by means of forms and images. The browser then names the page's site in the header
Origin. A foreign page can also use DNS rebinding: its owner makes the page's own domain point to this machine. The
browser then takes the broker's pages for pages of the foreign site, so the foreign page can send every request that the
broker's pages can send. But the header Host of such requests has the foreign domain. Programs other than browsers send
no header Origin. Their header Host contains the host name or address to which they have connected.
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
"""Matches the value of the header Host: an IPv6 address in brackets, or a name or an IPv4 address; then an optional
port (RFC 9112).
"""


def header_of(request: Request, name: str) -> str | None:
    """Return the value of the last header with this name. Invalid UTF-8 in the value is replaced. (If Twisted's
    `getHeader` is called with a str as the name, it raises an error for invalid UTF-8.)
    """
    value: bytes | None = request.getHeader(name.encode())
    return None if value is None else value.decode("utf-8", "replace")


class OwnNames:
    """The host names that requests to the broker's HTTP ports may have in the header Host. Allowed are IP addresses,
    names without a dot (every foreign domain has a dot), the machine's name, and the given names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """names: host names; case does not matter."""
        self._names = frozenset(each.lower() for each in (*names, socket.gethostname()))

    def refusal(self, request: Request) -> str | None:
        """Return the reason why the request must be refused, or None if it may be answered. If a request lacks the
        header Host or the header Origin, this is no reason to refuse it.
        """
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
    """Return the host and port in the value of a header Origin, or None if the value is not a valid URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
