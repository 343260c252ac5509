"""Find the address under which other hosts reach this host. The address is chosen in the same way as in metaq 1.x
(zookeeper.md §3).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
import sys

__all__ = ["address_in_java", "is_loopback", "local_address"]

_SIOCGIFADDR = 0x8915  # netdevice(7)


def local_address() -> str:
    """Return the first IPv4 address of a network interface that is not a loopback address. If there is none, return the
    first address of the host's name that is not a loopback address. If there is none either, return 127.0.0.1.
    """
    return _first(_candidates())


def address_in_java() -> str:
    """Return an address as local_address() does, but examine the network interfaces in the order that Java uses: the
    interface with the highest index first.

    On a host with Docker, the result is the address of Docker's bridge. Use this function only for a name that contains
    the address and that a Java process on this host makes in the same way, independently of this process.
    """
    return _first(_candidates()[::-1])


def is_loopback(host: str) -> bool:
    """Return whether a name or address in a setting is certainly this machine. The function looks up no name."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _first(candidates: list[str]) -> str:
    return next((each for each in (*candidates, *_named_addresses()) if not each.startswith("127.")), "127.0.0.1")


def _candidates() -> list[str]:
    return _interface_addresses() if sys.platform.startswith("linux") else []


def _interface_addresses() -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


def _named_addresses() -> list[str]:
    try:
        return socket.gethostbyname_ex(socket.gethostname())[2]
    except OSError:  # the host does not know its own name
        return []
