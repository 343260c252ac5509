"""security.ini has the settings that protect the broker's port. These settings are not in server.ini for two reasons:
Java brokers and 1.x's replication read server.ini and do not know the settings, and `stats config` shows the whole
server.ini to every client.

    [tls]
    certificate = broker.pem
    key = broker.key
    ca = ca.pem
    clientCertificates = optional
    plain = loopback
    brokers = required

    [zookeeper]
    ca = ca.pem
    certificate = broker.pem
    key = broker.key
    user = metaq
    passwordFile = zookeeper.password

    [addresses]
    legacy = 10.0.0.0/8, 192.168.1.7

    [audit]
    file = audit.log
    maxBytes = 16777216
    files = 8

    [listener app]
    port = 8124

Paths are relative to the directory of this file. docs/security.md describes the keys.
listeners_ini.py reads the sections [listener NAME].
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from metaq.coordination.runtime.certificates import CertificateFiles, ClientCertificates
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.protocol.access import is_user
from metaq.protocol.errors import ConfigError

from .ini import Section, SectionValues, check_keys, parse_ini
from .listeners_ini import LISTENER_SECTION, ListenerRules, Network, read_listeners, read_network

__all__ = ["AuditSettings", "Plain", "Security", "read_security"]

Plain = Literal["loopback", "everywhere", "nowhere"]
"""Which clients may connect without TLS: only clients on this machine, all clients, or no client."""
Brokers = Literal["required", "tls", "plain"]
"""How this broker connects to other brokers: with TLS or without TLS. `required` means with TLS. In addition, with
`required` this broker checks requests of the types that only brokers send: it refuses such a request if the peer has
not shown a broker's certificate.
"""

_SECTIONS = ("tls", "zookeeper", "addresses", "audit")
_FILES = ("ca", "certificate", "key")
_LOGIN_KEYS = ("user", "passwordFile")
_KEYS = (*_FILES, "clientCertificates", "plain", "brokers")
_AUDIT_KEYS = ("file", "maxBytes", "files")
_MIN_AUDIT_BYTES = 4096
_MAX_AUDIT_FILES = 10_000


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The settings of the audit log, from the section [audit]."""

    file: str
    max_bytes: int = 16 << 20
    """When a file would become larger than this, the broker begins a new one."""
    files: int = 8
    """The broker keeps this number of files, and deletes older ones."""


@dataclass(frozen=True, slots=True)
class Security:
    """The settings in security.ini."""

    files: CertificateFiles
    client_certificates: ClientCertificates = "none"
    plain: Plain = "loopback"
    brokers: Brokers = "plain"
    addresses: tuple[tuple[Network, str], ...] = ()
    """The users whom only the client's address names, from the section [addresses]. The smallest network comes first.
    """
    zookeeper: CertificateFiles | None = None
    """The files for TLS with ZooKeeper, from the section [zookeeper]. If it is None, ZooKeeper is used without TLS."""
    zookeeper_login: ZooKeeperLogin | None = None
    """The user and password by which the broker identifies itself to ZooKeeper, from the section [zookeeper]."""
    audit: AuditSettings | None = None
    """The settings of the audit log. If it is None, the broker writes none."""
    listeners: tuple[ListenerRules, ...] = ()
    """The listeners, from the sections [listener NAME]."""


def read_security(path: str) -> Security:
    """Read security.ini, and check that its certificates can be used. The call blocks. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError("--security", path, f"cannot be read: {error.strerror}") from error
    sections = parse_ini(text, path)
    _refuse_repeated(text, path)
    listeners = {name: section for name, section in sections.items() if LISTENER_SECTION.fullmatch(name)}
    if others := sections.keys() - set(_SECTIONS) - listeners.keys():
        known = ", ".join(f"[{name}]" for name in (*_SECTIONS, "listener NAME"))
        raise ConfigError(path, f"[{min(others)}]", f"is not a section of this file: use {known}")
    section = sections.get("tls", Section())
    check_keys(section, "tls", frozenset(_KEYS))

    def files_of(section: Section, option: str) -> CertificateFiles:
        folder = os.path.dirname(os.path.abspath(path))
        found = {key: os.path.join(folder, section[key].value) for key in _FILES if key in section}
        return CertificateFiles(**found, option=option)

    def chosen(key: str, allowed: tuple[str, ...], default: str) -> str:
        value = section[key].value if key in section else default
        if value not in allowed:
            raise ConfigError(f"{section[key].where}: {key}", value, f"must be one of: {', '.join(allowed)}")
        return value

    asked = cast(ClientCertificates, chosen("clientCertificates", get_args(ClientCertificates), "none"))
    if asked != "none" and "ca" not in section:
        raise ConfigError(f"{path}: ca", "", f"name the CA of the clients' certificates: clientCertificates={asked}")
    security = Security(
        files_of(section, path),
        asked,
        cast(Plain, chosen("plain", get_args(Plain), "loopback")),
        cast(Brokers, chosen("brokers", get_args(Brokers), "tls" if "ca" in section else "plain")),
    )
    if (zookeeper := sections.get("zookeeper")) is not None:
        check_keys(zookeeper, "zookeeper", frozenset((*_FILES, *_LOGIN_KEYS)))
        login = _zookeeper_login(zookeeper, path)
        if login is None or any(key in zookeeper for key in _FILES):  # with a login alone: without TLS, to this machine
            security = replace(security, zookeeper=files_of(zookeeper, f"{path}: zookeeper"))
        security = replace(security, zookeeper_login=login)
    security = replace(security, addresses=_addresses(sections.get("addresses", Section())))
    if (audit := sections.get("audit")) is not None:
        security = replace(security, audit=_audit(audit, path))
    security = replace(security, listeners=read_listeners(listeners, path))
    if security.brokers != "plain" and "ca" not in section:
        remedy = f"name the CA of the other brokers' certificates: brokers={security.brokers}"
        raise ConfigError(f"{path}: ca", "", remedy)
    if security.brokers == "required" and asked == "none":
        remedy = "must be optional or required: with brokers=required brokers have to show their certificates"
        raise ConfigError(f"{path}: clientCertificates", asked, remedy)
    security.files.server_context(asked)
    if security.zookeeper is not None:
        security.zookeeper.client_context()
    return security


def _zookeeper_login(section: Section, path: str) -> ZooKeeperLogin | None:
    user, file = (section[key].value if key in section else "" for key in _LOGIN_KEYS)
    if not user and not file:
        return None
    option = f"{path}: zookeeper"
    if not user or not file:
        raise ConfigError(f"{option}.{'passwordFile' if user else 'user'}", "", "write both user and passwordFile")
    return ZooKeeperLogin.from_file(user, os.path.join(os.path.dirname(os.path.abspath(path)), file), option)


def _audit(section: Section, path: str) -> AuditSettings:
    check_keys(section, "audit", frozenset(_AUDIT_KEYS))
    if "file" not in section:
        raise ConfigError(f"{path}: file", "", "name the file of the audit log in the section [audit]")
    values = SectionValues(section, "audit", path)
    settings = AuditSettings(os.path.join(os.path.dirname(os.path.abspath(path)), section["file"].value))
    return replace(
        settings,
        max_bytes=values.integer("maxBytes", settings.max_bytes, _MIN_AUDIT_BYTES),
        files=values.integer("files", settings.files, 2, _MAX_AUDIT_FILES),
    )


def _addresses(section: Section) -> tuple[tuple[Network, str], ...]:
    found: dict[Network, str] = {}
    for user in section:
        entry = section[user]
        if not is_user(user):
            raise ConfigError(entry.where, user, "is no name of a user: write USER = NETWORK, NETWORK …")
        for text in entry.value.split(","):
            network = read_network(entry, text.strip())
            if network in found:
                raise ConfigError(f"{entry.where}: {user}", network, f"is given to the user {found[network]} already")
            found[network] = user
    return tuple(sorted(found.items(), key=lambda each: -each[0].prefixlen))


def _refuse_repeated(text: str, path: str) -> None:
    """Raise ConfigError for a section that occurs twice, and for a key that occurs twice in a section.

    In server.ini the last value counts, as in 1.x. That would be dangerous in security.ini, because the last value
    could allow what the first value forbids.
    """
    seen: set[str] = set()
    sections: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().startswith("["):
            seen.clear()
            if (title := line.strip()) in sections:
                raise ConfigError(f"{path}:{number}", title, "stands there a second time: write one section")
            sections.add(title)
        key, assigned, value = line.partition("=")
        key = key.strip()
        if assigned and key[:1] not in ";#" and key in seen:
            raise ConfigError(
                f"{path}:{number}: {key}", value.strip(), "stands there a second time: remove one of them"
            )
        seen.add(key)
