"""Choose TCP ports for servers that are started on this machine."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

from metaq.protocol.errors import ConfigError

__all__ = ["ready_port", "ready_ports"]

_FREE_PORTS = range(10_000, 32_768)
"""The code looks for a free port in this range. All ports of the range are below the range from which Linux by default
takes the ports of outgoing connections (net.ipv4.ip_local_port_range).
"""

_TRIES = 100

_kept: list[socket.socket] = []
"""Sockets bound to the free ports that this process has chosen. These sockets never listen, so a server can still
listen on the same port. When another process looks for a free port, it skips the ports of these sockets, even while no
server listens on them. Each socket takes one file descriptor until the process ends.
"""


def ready_port(option: str, port: int, host: str = "127.0.0.1") -> int:
    """Return `port` if a server can listen on it, or a free port if `port` is 0. Raises ConfigError, which names
    `option`, if no server can listen on the port.
    """
    return ready_ports(option, port, 1, host)[0]


def ready_ports(option: str, first: int, count: int, host: str = "127.0.0.1") -> list[int]:
    """Check that servers can listen on the `count` successive ports from `first` on, and return these ports. If `first`
    is 0, return free ports instead. As long as this process runs, another process that calls this function does not get
    the same free ports.

    Raises ConfigError, which names `option` and the port that is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not first:
        return [_keep_free_port(option, host, family) for _ in range(count)]
    with ExitStack() as probes:
        return [
            _probe(option, first + number, host, probes.enter_context(socket.socket(family))) for number in range(count)
        ]


def _probe(option: str, port: int, host: str, probe: socket.socket) -> int:
    if port > 65535:
        raise ConfigError(option, port, "is above 65535: choose a lower one")
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, so that TIME_WAIT is no obstacle
    try:
        probe.bind((host, port))
        probe.listen(1)
    except OSError as error:
        raise _cannot_listen(option, port, host, error) from error
    return port


def _keep_free_port(option: str, host: str, family: socket.AddressFamily) -> int:
    """Choose a free port, bind a socket to it, and return the port. If possible, choose a port outside of the range
    that the system uses for outgoing connections, because an outgoing connection could take the port before the server
    does.
    """
    holder = socket.socket(family)
    try:
        for _ in range(_TRIES):
            with suppress(OSError):
                holder.bind((host, random.choice(_FREE_PORTS)))
                break
        else:
            holder.bind((host, 0))
        # The option is set only now, because with it a bind to another holder's port would succeed. Servers set this
        # option, so they may listen on the port.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        holder.close()
        raise _cannot_listen(option, 0, host, error) from error
    _kept.append(holder)
    port: int = holder.getsockname()[1]
    return port


def _cannot_listen(option: str, port: int, host: str, error: OSError) -> ConfigError:
    remedy = f"cannot listen on {host}:{port} ({error.strerror}): stop the other program or choose another port"
    return ConfigError(option, port, remedy)
