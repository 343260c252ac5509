"""Find out who has sent an HTTP request: by the connection's certificate, or by name and password."""

from __future__ import annotations

from typing import Any, cast

from twisted.web.http import UNAUTHORIZED
from twisted.web.server import Request

from metaq.protocol.access import ANYBODY
from metaq.protocol.statuses import Status

from ..access.logins import Logins
from ..requests.gate import HttpPeer
from .browsers import header_of

__all__ = ["host_of", "peer_of", "refusal_status"]


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


def refusal_status(request: Request, peer: HttpPeer | None) -> int:
    """Return the HTTP status for a refused request. If the client can repeat the request with name and password, the
    status is 401, and this function sets the header that makes a browser ask for them. peer: the sender of the request,
    or None if its name or password was wrong.
    """
    if not getattr(cast(Any, request).channel.transport, "is_encrypted", False):
        return Status.FORBIDDEN
    if peer is not None and peer.principal != ANYBODY:
        return Status.FORBIDDEN
    request.setHeader("www-authenticate", 'Basic realm="metaq", charset="UTF-8"')
    return UNAUTHORIZED
