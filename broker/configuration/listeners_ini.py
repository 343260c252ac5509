"""Read the sections `[listener NAME]` of security.ini: further ports of one broker, each with rules of its own.

    [listener app]
    port = 8124
    protocols = frames
    tls = required
    login = password, certificate
    networks = 10.0.0.0/8
    proxy = 10.0.0.7
    advertise = mq.example:443

    [listener local]
    path = /run/metaq/admin.sock
    admins = operator, 1001
    mode = 0660

The section `[listener main]` has rules of the main port, `serverPort`. docs/security.md describes the keys.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal, TypeAlias, cast, get_args

from metaq.protocol.errors import ConfigError

from .ini import Entry, Section, SectionValues, check_keys, wrong

__all__ = [
    "LISTENER_SECTION",
    "MAIN",
    "MAIN_RULES",
    "ListenerLogin",
    "ListenerProtocol",
    "ListenerRules",
    "ListenerTls",
    "Network",
    "read_listeners",
    "read_network",
]

Network: TypeAlias = IPv4Network | IPv6Network
ListenerTls = Literal["required", "optional", "none"]
ListenerProtocol = Literal["text", "frames"]
ListenerLogin = Literal["password", "certificate", "address"]
"""How a client can be known as a user: it logs in with a password, shows a certificate, or connects from an address
that the section [addresses] gives to the user.
"""

MAIN = "main"
"""The name of the broker's main port in rules, in statistics and in ZooKeeper."""

LISTENER_SECTION = re.compile(r"listener\s+(\S*)")
MAX_LISTENERS = 32
"""Largest number of sections [listener NAME]."""
_NAME = re.compile(r"[a-z0-9-]{1,32}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_MAX_PATH_BYTES = 107
"""Largest length of the path of a Unix socket in Linux."""
_PROTOCOLS: frozenset[ListenerProtocol] = frozenset(get_args(ListenerProtocol))
_LOGINS: frozenset[ListenerLogin] = frozenset(get_args(ListenerLogin))

_RULES = ("protocols", "login", "networks", "proxy")
_PORT_KEYS = frozenset(("port", "address", "tls", "advertise", *_RULES))
_MAIN_KEYS = frozenset(_RULES)
_LOCAL_KEYS = frozenset(("path", "admins", "mode"))


@dataclass(frozen=True, slots=True)
class ListenerRules:
    """One listener: a port or a Unix socket of the broker, and the rules for its connections."""

    name: str
    port: int = 0
    """The number of the port; 0 means that the operating system chooses a free one."""
    address: str = ""
    """The numeric address to listen on; "" means the broker's own (`--listen`)."""
    path: str = ""
    """The path of the Unix socket; "" if the listener is a port."""
    protocols: frozenset[ListenerProtocol] = _PROTOCOLS
    tls: ListenerTls | None = "required"
    """None for the main port, whose rule is the key `plain` of the section [tls]."""
    login: frozenset[ListenerLogin] = _LOGINS
    networks: tuple[Network, ...] = ()
    """The networks that may connect; if there is none, all may."""
    proxy: tuple[Network, ...] = ()
    """The networks of proxies, which must send a PROXY protocol header."""
    advertise: tuple[str, int | None] = ("", None)
    """The host and the port that clients use; "" means hostName of server.ini, and None the port that the broker
    listens on.
    """
    admins: frozenset[int] = frozenset()
    """The numbers of the local users who may connect to a Unix socket."""
    mode: int = 0o600
    """The mode of the file of a Unix socket."""

    def serves(self, address: IPv4Address | IPv6Address | None) -> bool:
        """Return whether a client with this address may connect. address: None if the client has no numeric address."""
        return not self.networks or (address is not None and any(address in each for each in self.networks))

    def is_proxy(self, address: IPv4Address | IPv6Address | None) -> bool:
        """Return whether the peer with this address is a proxy, which must send a header."""
        return address is not None and any(address in each for each in self.proxy)


MAIN_RULES = ListenerRules(MAIN, tls=None)
"""The rules of the main port if security.ini has no section [listener main]: only the section [tls] counts."""


def read_listeners(sections: Mapping[str, Section], path: str) -> tuple[ListenerRules, ...]:
    """Return the listeners in the order of the file. sections: all sections [listener NAME] of the file, by their
    names. path: the path of the file. Raises ConfigError.
    """
    found: dict[str, ListenerRules] = {}
    for title, section in sections.items():
        match = LISTENER_SECTION.fullmatch(title)
        name = match[1] if match else ""
        if not _NAME.fullmatch(name):
            remedy = "name the listener with 1 to 32 of the characters a-z 0-9 -, such as [listener app]"
            raise ConfigError(path, f"[{title}]", remedy)
        if name in found:
            raise ConfigError(path, f"[{title}]", "stands there a second time: give each listener a name of its own")
        found[name] = _listener(name, title, section, path)
    if len(found) > MAX_LISTENERS:
        raise ConfigError(path, len(found), f"has too many listeners: use at most {MAX_LISTENERS}")
    _refuse_same_place(found.values(), path)
    return tuple(found.values())


def read_network(entry: Entry, text: str) -> Network:
    """Return the network that one part of an entry's value names. Raises ConfigError."""
    try:
        return ip_network(text)
    except ValueError:
        remedy = "write networks such as 10.0.0.0/8 or addresses, with commas between them"
        raise ConfigError(f"{entry.where}: {entry.key}", text, remedy) from None


def _listener(name: str, title: str, section: Section, path: str) -> ListenerRules:
    is_local = "path" in section
    check_keys(section, title, _MAIN_KEYS if name == MAIN else _LOCAL_KEYS if is_local else _PORT_KEYS)
    if section.blank:
        raise wrong(next(iter(section.blank.values())), "is empty: write a value, or remove the line")
    if is_local:
        return _local(name, section, path)
    values = SectionValues(section, title, path)
    return ListenerRules(
        name,
        0 if name == MAIN else values.integer("port", None, 0, 65535),
        _address(section.get("address")),
        protocols=cast(frozenset[ListenerProtocol], _words(section.get("protocols"), _PROTOCOLS)),
        tls=None if name == MAIN else _tls(section.get("tls")),
        login=cast(frozenset[ListenerLogin], _words(section.get("login"), _LOGINS)),
        networks=_networks(section.get("networks")),
        proxy=_networks(section.get("proxy")),
        advertise=_advertised(section.get("advertise")),
    )


def _local(name: str, section: Section, path: str) -> ListenerRules:
    place = os.path.join(os.path.dirname(os.path.abspath(path)), section["path"].value)
    if len(os.fsencode(place)) > _MAX_PATH_BYTES:
        raise wrong(section["path"], f"is too long for a Unix socket: use at most {_MAX_PATH_BYTES} bytes")
    mode = section.get("mode")
    if mode is not None and not re.fullmatch(r"0?[0-7]{3}", mode.value):
        raise wrong(mode, "must be a mode of a file, such as 0600 or 0660")
    admins = section.get("admins")
    return ListenerRules(
        name,
        path=place,
        tls="none",
        admins=frozenset((os.geteuid(), 0) if admins is None else (_local_user(admins, one) for one in _split(admins))),
        mode=0o600 if mode is None else int(mode.value, 8),
    )


def _local_user(entry: Entry, text: str) -> int:
    """Return the number of a local user, which `text` names or is itself."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        remedy = "is no user of this machine: write names or numbers of local users, with commas between them"
        raise ConfigError(f"{entry.where}: {entry.key}", text, remedy) from None


def _split(entry: Entry) -> list[str]:
    return [part.strip() for part in entry.value.split(",")]


def _words(entry: Entry | None, allowed: frozenset[str]) -> frozenset[str]:
    if entry is None:
        return allowed
    words = frozenset(_split(entry))
    if not words <= allowed:
        raise wrong(entry, f"must be one or more of these, with commas between them: {', '.join(sorted(allowed))}")
    return words


def _tls(entry: Entry | None) -> ListenerTls:
    if entry is None:
        return "required"
    if entry.value not in get_args(ListenerTls):
        raise wrong(entry, f"must be one of: {', '.join(get_args(ListenerTls))}")
    return cast(ListenerTls, entry.value)


def _networks(entry: Entry | None) -> tuple[Network, ...]:
    return () if entry is None else tuple(read_network(entry, part) for part in _split(entry))


def _address(entry: Entry | None) -> str:
    if entry is None:
        return ""
    try:
        return str(ip_address(entry.value))
    except ValueError:
        raise wrong(entry, "must be a numeric address of this machine, such as 10.0.0.1 or 127.0.0.1") from None


def _advertised(entry: Entry | None) -> tuple[str, int | None]:
    if entry is None:
        return "", None
    host, colon, port = entry.value.rpartition(":")
    if not colon or entry.value.endswith("]"):
        host, port = entry.value, ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        is_host = _is_address(host)
    else:
        is_host = _HOST.fullmatch(host) is not None
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not is_host or not (is_port or (not port and not colon) or entry.value.endswith("]")):
        raise wrong(entry, "must be a host, or a host and its port, such as mq1.example:443 or [fd00::1]:443")
    return host, int(port) if port else None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _refuse_same_place(listeners: Iterable[ListenerRules], path: str) -> None:
    """Raise ConfigError if two listeners have the same port, or the same path."""
    seen: dict[str | int, ListenerRules] = {}
    for each in listeners:
        place = each.path or each.port
        if not place:
            continue
        other = seen.setdefault(place, each)
        if other is not each:
            key = "path" if each.path else "port"
            remedy = f"[listener {other.name}] has it, too: give each listener a {key} of its own"
            raise ConfigError(f"{path}: [listener {each.name}] {key}", place, remedy)
