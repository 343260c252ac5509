"""Read the profile file, in which a user writes the TLS settings and the login that all clients of this user read."""

from __future__ import annotations

import os
from configparser import ConfigParser, Error, MissingSectionHeaderError, ParsingError
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

__all__ = ["PROFILE", "ProfileSection", "read_section", "users_section"]

PROFILE = "METAQ_PROFILE"
"""The name of the environment variable that holds the path of the profile file."""

_KEYS = {
    "tls": ("ca", "certificate", "key"),
    "zookeeper": ("ca", "certificate", "key", "user", "passwordFile"),
    "user": ("name", "password", "passwordFile"),
    "client": ("listener",),
}
"""The keys of each section. In a profile, capital and small letters of a key are the same."""


class ProfileSection(NamedTuple):
    """One section of a profile file. path: the path of the profile. values: the values that are not empty, by the key
    as it is written in _KEYS.
    """

    path: str
    name: str
    values: dict[str, str]

    def beside(self, value: str) -> str:
        """Return the absolute path for a value that is a path; such a value is relative to the profile's directory."""
        return os.path.join(os.path.dirname(os.path.abspath(self.path)), value)


def read_section(path: str | os.PathLike[str], name: str) -> ProfileSection | None:
    """Return a section of a profile file, or None if the file does not have it. Raises ConfigError if the file cannot
    be used. No error text contains a line or a value of the file, because it may be a password.
    """
    path = os.fspath(path)
    parser = ConfigParser(interpolation=None)
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except OSError as error:
        raise ConfigError("profile", path, f"the profile cannot be read: {error.strerror}") from error
    except (Error, UnicodeDecodeError) as error:
        raise ConfigError("profile", path, f"it is no profile: {_told(error)}") from None
    if not parser.sections():
        raise ConfigError("profile", path, f"it is no profile: it has no section {_listed('or')}")
    if unknown := set(parser.sections()) - set(_KEYS):
        raise ConfigError("profile", path, f"it has a section [{min(unknown)}]: use {_listed('and')}")
    if not parser.has_section(name):
        return None
    keys = {key.lower(): key for key in _KEYS[name]}
    values = dict(parser[name])
    if others := values.keys() - keys.keys():
        remedy = f"is not a key of [{name}]: use {', '.join(_KEYS[name])}"
        raise ConfigError(f"{path}: {min(others)}", "…", remedy)  # the value may be a password under a misspelt key
    return ProfileSection(path, name, {keys[key]: value for key, value in values.items() if value})


def users_section(name: str) -> ProfileSection | None:
    """Return a section of the user's profile file. The environment variable METAQ_PROFILE names this file. If the
    variable is not set, the file is `metaq/profile.ini` in $XDG_CONFIG_HOME (default: `~/.config`), if that file
    exists. Return None if there is no profile or no such section, and if METAQ_PROFILE is empty. Raises ConfigError if
    the file cannot be used.
    """
    path = os.environ.get(PROFILE)
    if path is None:
        path = _users_profile()
        if not os.path.exists(path):
            return None
    return read_section(path, name) if path else None


def _told(error: Exception) -> str:
    """Return what is wrong with the file. The text contains no line of the file."""
    if isinstance(error, MissingSectionHeaderError):
        return f"line {error.lineno} stands before the first section, such as [tls]"
    if isinstance(error, ParsingError):
        return f"line {error.errors[0][0]} is no line of the form key = value"
    return str(error)


def _listed(word: str) -> str:
    *names, last = (f"[{name}]" for name in _KEYS)
    return f"{', '.join(names)} {word} {last}"


def _users_profile() -> str:
    """Return the path of the profile file that is used if METAQ_PROFILE is not set (XDG Base Directory
    Specification).
    """
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "metaq", "profile.ini")
