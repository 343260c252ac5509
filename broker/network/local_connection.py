"""The connections of a Unix socket, by which local users administer the broker. The kernel says who the peer is."""

from __future__ import annotations

import pwd
import socket
import struct
from typing import TYPE_CHECKING, Any, ClassVar, cast

from twisted.internet.error import ConnectionDone, ConnectionLost

from metaq.protocol.access import Principal
from metaq.protocol.errors import AccessRefused

from ..configuration.listeners_ini import ListenerRules
from ..runtime.account import LOCAL_HOST
from .transport import FastConnection

if TYPE_CHECKING:
    from .session import Session

__all__ = ["local_connection_class"]

_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group


class LocalConnection(FastConnection):
    """An accepted connection of a Unix socket. Its peer is an operator if the listener names him."""

    rules: ClassVar[ListenerRules]

    def __init__(self, sock: socket.socket, protocol: Any, client: object, *others: Any) -> None:
        """Accepts the arguments that Twisted passes to a connection. client: the address of the peer, which a Unix
        socket does not have; getPeer() returns LOCAL_HOST in place of it.
        """
        super().__init__(sock, protocol, (LOCAL_HOST, 0), *others)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, self._uid, _ = _CREDENTIALS.unpack(credentials)
        self.principal = Principal("local", _name(self._uid))
        self._is_checked = False

    def _set_options(self, sock: socket.socket) -> None:
        """Set no option: those of TCP do not apply."""

    def doRead(self) -> ConnectionLost | ConnectionDone | None:  # type: ignore[override]  # noqa: N802
        if not self._is_checked:
            self._is_checked = True
            if self._uid not in self.rules.admins:
                why = (
                    f"{self.principal} may not administer this broker: name this user under admins in the section "
                    f"[listener {self.rules.name}] of security.ini"
                )
                cast("Session", self.protocol).refuse(AccessRefused(why), ends=True)
        return super().doRead()


def local_connection_class(rules: ListenerRules) -> type[LocalConnection]:
    """Return the transport class for a Unix socket. rules: the rules of the listener."""
    return type("LocalConnection", (LocalConnection,), {"rules": rules})


def _name(uid: int) -> str:
    """Return the name of a user of this machine, or the number if there is no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
