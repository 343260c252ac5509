"""TCP ports for servers that are started on this machine."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

from metaq.protocol.errors import ConfigError

__all__ = ["ready_port", "ready_ports"]

_FREE_PORTS = range(10_000, 32_768)
"""Below Linux's default net.ipv4.ip_local_port_range."""

_TRIES = 100


def ready_port(option: str, port: int, host: str = "127.0.0.1") -> int:
    """`port` if a server can listen there, or a free one if it is 0. Raises ConfigError naming `option`."""
    return ready_ports(option, port, 1, host)[0]


def ready_ports(option: str, first: int, count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` ports from `first` on that servers can listen on, or free ones if it is 0.

    Raises ConfigError naming `option` and the port that is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as probes:
        return [
            _bind(option, first and first + number, host, probes.enter_context(socket.socket(family)))
            for number in range(count)
        ]


def _bind(option: str, port: int, host: str, probe: socket.socket) -> int:
    if port > 65535:
        raise ConfigError(option, port, "is above 65535: choose a lower one")
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do: TIME_WAIT is no obstacle
    try:
        if port:
            probe.bind((host, port))
        else:
            _bind_anywhere(host, probe)
        probe.listen(1)
    except OSError as error:
        remedy = f"cannot listen on {host}:{port} ({error.strerror}): stop the other program or choose another port"
        raise ConfigError(option, port, remedy) from error
    bound: int = probe.getsockname()[1]
    return bound


def _bind_anywhere(host: str, probe: socket.socket) -> None:
    """Bind a free port below those that the system gives to outgoing connections: one of these could take it before
    the server that it is for. Raises OSError.
    """
    for _ in range(_TRIES):
        with suppress(OSError):
            probe.bind((host, random.choice(_FREE_PORTS)))
            return
    probe.bind((host, 0))
