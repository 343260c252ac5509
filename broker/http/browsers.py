"""Which requests a web page of somebody else has a browser send here, without its user knowing.

Such a page can send what forms and images send (the browser names the page in Origin), and by DNS rebinding, pointing a
domain of its own to this machine, all that a page of ours can (Host is that domain then). Programs other than browsers
send no Origin, and as Host what they were told to connect to.
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
"""An IPv6 address in brackets, or a name or another address; and a port (RFC 9112)."""


def header_of(request: Request, name: str) -> str | None:
    """The last one of this name. What is not valid UTF-8 is replaced: twisted's `getHeader` of a str raises."""
    value: bytes | None = request.getHeader(name.encode())
    return None if value is None else value.decode("utf-8", "replace")


class OwnNames:
    """The names by which the broker's HTTP ports may be asked for: addresses, names without a dot, which no domain of
    somebody else is, the machine's name, and those that are given."""

    def __init__(self, names: Iterable[str]) -> None:
        """names: host names, in upper or lower case."""
        self._names = frozenset(each.lower() for each in (*names, socket.gethostname()))

    def refusal(self, request: Request) -> str | None:
        """Why the request is not answered; None: it is. A header that the request does not have refuses nothing."""
        for name in ("Host", "Origin"):
            if len(request.requestHeaders.getRawHeaders(name.encode(), ())) > 1:
                return f"the request has more than one {name}"
        host = header_of(request, "host")
        if host is not None and not self._is_own(host):
            return f"this broker is not {host}: start it with --http-name to be asked for by this name"
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
    """None: it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
