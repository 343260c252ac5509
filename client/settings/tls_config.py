"""The TLS settings of a client. Users write them in their program, or in a profile file that all their clients read."""

from __future__ import annotations

import os
from configparser import ConfigParser, Error
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.protocol.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["PROFILE", "TlsConfig", "profile_tls", "profile_zookeeper_tls"]

PROFILE = "METAQ_PROFILE"
"""The name of the environment variable that holds the path of the profile file."""

_KEYS = ("ca", "certificate", "key")
_SECTIONS = ("tls", "zookeeper")


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
        if (found := cls._of_section(path, "tls")) is None:
            raise ConfigError("profile", os.fspath(path), "it has no section [tls]")
        return found

    @classmethod
    def zookeeper_from_profile(cls, path: str | os.PathLike[str]) -> TlsConfig | None:
        """Return the TLS settings for ZooKeeper in a profile file: the section [zookeeper], with the same keys as
        [tls]. Return None if the file does not have this section. Raises ConfigError if the file cannot be used.
        """
        return cls._of_section(path, "zookeeper")

    @classmethod
    def _of_section(cls, path: str | os.PathLike[str], section: str) -> TlsConfig | None:
        path = os.fspath(path)
        parser = ConfigParser(interpolation=None)
        try:
            with open(path, encoding="utf-8") as file:
                parser.read_file(file)
        except OSError as error:
            raise ConfigError("profile", path, f"the profile cannot be read: {error.strerror}") from error
        except (Error, UnicodeDecodeError) as error:
            raise ConfigError("profile", path, f"it is no profile: {error}") from error
        if not parser.sections():
            raise ConfigError("profile", path, "it is no profile: it has no section [tls] or [zookeeper]")
        if unknown := set(parser.sections()) - set(_SECTIONS):
            raise ConfigError("profile", path, f"it has a section [{min(unknown)}]: use [tls] and [zookeeper]")
        if not parser.has_section(section):
            return None
        values = dict(parser[section])
        if others := values.keys() - set(_KEYS):
            remedy = f"is not a key of [{section}]: use {', '.join(_KEYS)}"
            raise ConfigError(f"{path}: {min(others)}", values[min(others)], remedy)
        folder = os.path.dirname(os.path.abspath(path))
        return cls(**{name: os.path.join(folder, value) for name, value in values.items() if value})

    def files(self, option: str = "tls") -> CertificateFiles:
        """Return the paths of the PEM files. option: the name of the option in error messages."""
        return CertificateFiles(self.ca, self.certificate, self.key, option)

    def context(self) -> ssl.SSLContext:
        """Read the PEM files, and return the TLS context for new connections. Raises ConfigError if a file cannot be
        used.
        """
        return self.files().client_context()


def profile_tls() -> TlsConfig | None:
    """Return the TLS settings for brokers in the user's profile file. The environment variable METAQ_PROFILE names this
    file. If the variable is not set, the file is `metaq/profile.ini` in $XDG_CONFIG_HOME (default: `~/.config`). Return
    None if this default file does not exist, if the profile has no section [tls], or if METAQ_PROFILE is empty. Raises
    ConfigError if the file cannot be used.
    """
    return _profiled("tls")


def profile_zookeeper_tls() -> TlsConfig | None:
    """Return the TLS settings for ZooKeeper in the user's profile file, as profile_tls returns the TLS settings for
    brokers.
    """
    return _profiled("zookeeper")


def _profiled(section: str) -> TlsConfig | None:
    path = os.environ.get(PROFILE)
    if path is None:
        path = _users_profile()
        if not os.path.exists(path):
            return None
    return TlsConfig._of_section(path, section) if path else None


def _users_profile() -> str:
    """Return the path of the profile file that is used if METAQ_PROFILE is not set (XDG Base Directory
    Specification).
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "metaq", "profile.ini")
