"""The user and password by which a process identifies itself to ZooKeeper (ZooKeeper's scheme `digest`)."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field

from metaq.protocol.errors import ConfigError

from .certificates import check_secret

__all__ = ["ZooKeeperLogin", "read_password"]

MIN_PASSWORD_CHARS = 16
"""Everybody can read the hash of this password in the policy, and the hash has no salt. So the password must be too
long to be found by trying.
"""

_MAX_LOGIN_CHARS = 256


@dataclass(frozen=True, slots=True)
class ZooKeeperLogin:
    """user, password: what the process sends to ZooKeeper at the beginning of each connection. option: the name of the
    setting in error messages. Raises ConfigError for a user or a password that cannot be used.
    """

    user: str
    password: str = field(repr=False)
    option: str = "zookeeper"

    def __post_init__(self) -> None:
        user = self.user
        if not user or ":" in user or not user.isprintable() or len(user) > _MAX_LOGIN_CHARS:
            raise ConfigError(f"{self.option}.user", user[:80], "write a name without a colon, such as metaq")
        if not MIN_PASSWORD_CHARS <= len(self.password) <= _MAX_LOGIN_CHARS:
            remedy = f"write {MIN_PASSWORD_CHARS} to {_MAX_LOGIN_CHARS} random characters: everybody can read its hash"
            raise ConfigError(f"{self.option}.passwordFile", "…", remedy)

    @property
    def credentials(self) -> str:
        return f"{self.user}:{self.password}"

    @property
    def identity(self) -> str:
        """This identity as a policy names it: `digest:USER:HASH`."""
        hashed = base64.b64encode(hashlib.sha1(self.credentials.encode()).digest()).decode()
        return f"digest:{self.user}:{hashed}"

    @classmethod
    def from_file(cls, user: str, path: str, option: str) -> ZooKeeperLogin:
        """Read the password from the first line of a file. Raises ConfigError."""
        return cls(user, read_password(f"{option}.passwordFile", path), option)


def read_password(option: str, path: str) -> str:
    """Return the first line of a file, which is a password. option: the name of the option in error messages. Raises
    ConfigError if the file cannot be used, and if users other than its owner may read it.
    """
    check_secret(option, path)
    try:
        with open(path, encoding="utf-8") as file:
            password = file.readline().rstrip("\r\n")
    except OSError as error:
        raise ConfigError(option, path, f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(option, path, "it is no text in UTF-8") from None
    if not password:
        raise ConfigError(option, path, "its first line is empty: write the password there")
    return password
