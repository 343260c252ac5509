"""The TLS settings of a client. Users write them in their program, or in a profile file that all their clients read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.protocol.errors import ConfigError

from .profile import ProfileSection, read_section, users_section

if TYPE_CHECKING:
    import ssl

__all__ = ["TlsConfig", "profile_tls", "profile_zookeeper_tls"]

_KEYS = ("ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The TLS settings for the connections to all brokers. A client with these settings uses TLS for every broker, and
    never falls back to an unencrypted connection.

    The broker's certificate must be signed by a CA in the PEM file `ca`, and must contain the host name or address
    under which the broker is registered. If `ca` is not given, the system's CAs are used. certificate, key: PEM files
    with the certificate and private key by which brokers recognize this client; give both or none.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        for name in _KEYS:
            if not isinstance(value := getattr(self, name), str):
                raise ConfigError(f"tls.{name}", repr(value), "name a PEM file by its path")
        if bool(self.certificate) != bool(self.key):
            missing = "key" if self.certificate else "certificate"
            raise ConfigError(f"tls.{missing}", "", "name a PEM file: a certificate and its key go together")

    @classmethod
    def from_profile(cls, path: str | os.PathLike[str]) -> TlsConfig:
        """Return the TLS settings for brokers in a profile file. Raises ConfigError if the file cannot be used.

        Paths in the file are relative to the file's directory:

            [tls]
            ca = ca.pem
            certificate = client.pem
            key = client.key
        """
        if (found := _tls_of(read_section(path, "tls"))) is None:
            raise ConfigError("profile", os.fspath(path), "it has no section [tls]")
        return found

    @classmethod
    def zookeeper_from_profile(cls, path: str | os.PathLike[str]) -> TlsConfig | None:
        """Return the TLS settings for ZooKeeper in a profile file: the section [zookeeper], with the same keys as
        [tls]. Return None if the file does not have this section, or the section has only a user. Raises ConfigError if
        the file cannot be used.
        """
        return _tls_of(read_section(path, "zookeeper"))

    def files(self, option: str = "tls") -> CertificateFiles:
        """Return the paths of the PEM files. option: the name of the option in error messages."""
        return CertificateFiles(self.ca, self.certificate, self.key, option)

    def context(self) -> ssl.SSLContext:
        """Read the PEM files, and return the TLS context for new connections. Raises ConfigError if a file cannot be
        used.
        """
        return self.files().client_context()


def profile_tls() -> TlsConfig | None:
    """Return the TLS settings for brokers in the user's profile file (profile.py); None if there are none. Raises
    ConfigError if the file cannot be used.
    """
    return _tls_of(users_section("tls"))


def profile_zookeeper_tls() -> TlsConfig | None:
    """Return the TLS settings for ZooKeeper in the user's profile file, as profile_tls returns the TLS settings for
    brokers.
    """
    return _tls_of(users_section("zookeeper"))


def _tls_of(section: ProfileSection | None) -> TlsConfig | None:
    """Return the TLS settings in a section of a profile; None if there is no section."""
    if section is None:
        return None
    files = {name: section.beside(value) for name, value in section.values.items() if name in _KEYS}
    # A section with a login and no files is for a ZooKeeper on this machine, without TLS.
    return None if section.values and not files else TlsConfig(**files)
