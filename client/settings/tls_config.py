"""The TLS settings of a client. They are given in the program, or in a profile file that the environment variable
METAQ_PROFILE names.
"""

from __future__ import annotations

import os
from configparser import ConfigParser, Error
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.protocol.errors import ConfigError

if TYPE_CHECKING:
    import ssl

__all__ = ["PROFILE", "TlsConfig", "profile_tls"]

PROFILE = "METAQ_PROFILE"
"""The name of the environment variable that holds the path of the profile file."""

_KEYS = ("ca", "certificate", "key")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The TLS settings for the connections to all brokers. A client with TLS settings never communicates with a broker
    without TLS.

    The broker's certificate must be signed by a CA in the PEM file `ca`, and must contain the host name or address
    under which the broker is registered. Without `ca`, the system's CAs are used. certificate, key: PEM files with
    which this client authenticates itself to brokers; give both or none.
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

    def context(self) -> ssl.SSLContext:
        """Read the PEM files, and return the TLS context for new connections. Raises ConfigError if a file cannot be
        used.
        """
        return CertificateFiles(self.ca, self.certificate, self.key).client_context()


def profile_tls() -> TlsConfig | None:
    """Return the TLS settings of the profile file that METAQ_PROFILE names. Return None if this environment variable is
    not set. Raises ConfigError if the file cannot be used.

    Paths in the file are relative to the file's directory:

        [tls]
        ca = ca.pem
        certificate = client.pem
        key = client.key
    """
    path = os.environ.get(PROFILE)
    if not path:
        return None
    parser = ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except OSError as error:
        raise ConfigError(PROFILE, path, f"the profile cannot be read: {error.strerror}") from error
    except (Error, UnicodeDecodeError) as error:
        raise ConfigError(PROFILE, path, f"it is no profile: {error}") from error
    if not parser.has_section("tls"):
        raise ConfigError(PROFILE, path, "it is no profile: it has no section [tls]")
    values = dict(parser["tls"])
    if others := values.keys() - set(_KEYS):
        raise ConfigError(
            f"{path}: {min(others)}", values[min(others)], f"is not a key of [tls]: use {', '.join(_KEYS)}"
        )
    folder = os.path.dirname(os.path.abspath(path))
    return TlsConfig(**{name: os.path.join(folder, value) for name, value in values.items() if value})
