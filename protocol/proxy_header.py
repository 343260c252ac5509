"""The header by which a proxy tells a broker the client's address: version 2 of the PROXY protocol, which haproxy,
stunnel and load balancers of clouds send as the first bytes of a connection. Without I/O.

    signature (12 bytes: CR LF CR LF NUL CR LF "QUIT" LF)
    version and command (1 byte: 0x20 LOCAL, 0x21 PROXY)
    family and transport (1 byte: 0x11 TCP over IPv4, 0x21 TCP over IPv6)
    length of the rest (2 bytes, most significant byte first)
    addresses: source, destination (4 or 16 bytes each); ports: source, destination (2 bytes each)
    further fields, which the broker ignores

Source: "The PROXY protocol, versions 1 & 2", section 2.2, of the haproxy project.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple

from .errors import RemoteProtocolError

__all__ = ["MAX_PROXY_HEADER_BYTES", "ProxyHeaderReader", "ProxySource"]

MAX_PROXY_HEADER_BYTES = 536
"""Largest header that is accepted. The protocol's authors recommend that senders stay below this size."""

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_BYTES = 16
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}
_PORTS_BYTES = 4


class ProxySource(NamedTuple):
    """The end of a connection behind a proxy. host: a numeric address."""

    host: str
    port: int


class ProxyHeaderReader:
    """Reads one header. The caller receives at most `missing` bytes and passes them to `receive`, until `missing` is 0.
    So it never receives bytes that follow the header.
    """

    def __init__(self) -> None:
        self._data = b""
        self.missing = _FIXED_BYTES
        """How many bytes the caller may receive now; 0 when the header is complete."""
        self.source: ProxySource | None = None
        """The client's address. It is None before the header is complete, and for a connection that the proxy has
        opened for itself (the command LOCAL), for example to check the broker's health.
        """

    def receive(self, data: bytes) -> None:
        """Take the next bytes, at most `missing`. Raises RemoteProtocolError as soon as they cannot be a header of a
        TCP connection.
        """
        self._data += data
        self.missing -= len(data)
        seen = self._data
        if seen[: len(_SIGNATURE)] != _SIGNATURE[: len(seen)]:
            raise RemoteProtocolError("the connection does not begin with a PROXY protocol header of version 2")
        if self.missing:
            return
        if len(seen) == _FIXED_BYTES and (rest := int.from_bytes(seen[14:16])):
            self._check_rest(rest)
            self.missing = rest
            return
        self._parse()

    def _check_rest(self, rest: int) -> None:
        if _FIXED_BYTES + rest > MAX_PROXY_HEADER_BYTES:
            raise RemoteProtocolError(
                f"its PROXY protocol header has {_FIXED_BYTES + rest} bytes, more than {MAX_PROXY_HEADER_BYTES}"
            )

    def _parse(self) -> None:
        command, family, rest = self._data[12], self._data[13], self._data[_FIXED_BYTES:]
        if command == _LOCAL:
            return
        if command != _PROXY:
            raise RemoteProtocolError(f"its PROXY protocol header has the unknown version or command 0x{command:02x}")
        size = _ADDRESS_BYTES.get(family)
        if size is None:
            raise RemoteProtocolError(f"its PROXY protocol header is not of a TCP connection (family 0x{family:02x})")
        if len(rest) < 2 * size + _PORTS_BYTES:
            raise RemoteProtocolError(f"its PROXY protocol header is too short for its addresses: {len(rest)} bytes")
        self.source = ProxySource(str(ip_address(rest[:size])), int.from_bytes(rest[2 * size : 2 * size + 2]))
