"""A listener of a running broker: where it listens, and how many clients use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.coordination.records.payloads import ListenerAddress

from ..configuration.listeners_ini import MAIN, ListenerRules

if TYPE_CHECKING:
    from ..configuration.security_ini import Plain  # imports ssl: only if configured

__all__ = ["OpenListener"]


@dataclass(slots=True)
class OpenListener:
    """One listener of this broker, or its main port. Used only on the reactor thread."""

    rules: ListenerRules
    port: int
    """The number of the port; 0 for a Unix socket."""
    connections: int = 0
    """The number of open connections."""
    refused: int = 0
    """How many connections were closed at once since the start, because `networks` does not contain their address."""

    def address(self, host: str, plain: Plain) -> ListenerAddress | None:
        """Return what clients find in ZooKeeper; None for a Unix socket. host: hostName of server.ini. plain: the key
        `plain` of the section [tls], which is the rule of the main port.
        """
        rules = self.rules
        if rules.path:
            return None
        tls = rules.tls or ("required" if plain == "nowhere" else "optional")
        advertised, port = rules.advertise
        if rules.name == MAIN:
            advertised, port = host, self.port
        return ListenerAddress(rules.name, advertised or host, port or self.port, tls, tuple(sorted(rules.protocols)))
