"""Find out who has sent an HTTP request: by the connection's certificate, or by name and password."""

from __future__ import annotations

from typing import Any, cast

from twisted.web.server import Request

from metaq.protocol.access import ANYBODY

from ..access.logins import Logins
from ..requests.gate import HttpPeer
from .browsers import header_of

__all__ = ["ask_for_password", "host_of", "peer_of"]


def host_of(request: Request) -> str:
    """Return the numeric address of the client."""
    return cast(str, cast(Any, request.getClientAddress()).host)


def peer_of(request: Request, logins: Logins) -> HttpPeer:
    """Return the sender of a request. Raises AccessRefused for a wrong name or password."""
    transport: Any = cast(Any, request).channel.transport
    certified = getattr(transport, "principal", ANYBODY)
    host = host_of(request)
    header = header_of(request, "authorization")
    return HttpPeer(host, logins.by_basic(header, host, certified, getattr(transport, "is_encrypted", False)))


def ask_for_password(request: Request) -> bool:
    """If a refused request could be repeated with a name and a password, set the header that makes a browser ask for
    them, and return True: the answer should then have the status 401.
    """
    if not getattr(cast(Any, request).channel.transport, "is_encrypted", False):
        return False
    request.setHeader("www-authenticate", 'Basic realm="metaq", charset="UTF-8"')
    return True
