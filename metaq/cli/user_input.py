"""Take passwords from files and from the terminal, and write the profile of a user. A password never comes from an
argument, because other users of the machine can see the arguments of a program.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import click

from metaq.client.settings.tls_config import profile_tls, profile_zookeeper_tls
from metaq.coordination.runtime.certificates import CertificateFiles, check_secret
from metaq.protocol.access import MAX_QUOTA, AccessGrant, AccessOperation, Quota, check_user
from metaq.protocol.errors import ConfigError

from .options import Parsed

__all__ = [
    "ADMIN_GRANT",
    "DURATION",
    "GRANT",
    "USER",
    "check_new_file",
    "expiry_of",
    "known_ca",
    "known_zookeeper",
    "profile_text",
    "prompted_password",
    "quota_change",
    "read_password",
    "write_profile",
    "zookeeper_section",
]

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_COUNT = re.compile(r"([0-9]{1,13})([KMG]?)")
_MULTIPLES = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_NONE = "none"
_STDIN = "-"
_CA = "ca.pem"
"""The path of the CA in a profile, beside the profile, if no other path is known."""

ADMIN_GRANT = AccessGrant(AccessOperation.ADMIN)

_PROFILE = """\
; export METAQ_PROFILE=this file; docs/security.md describes the keys
[user]
name = {name}
{password}

; A password is sent only over TLS. ca: the CA that signed the brokers' certificates (`metaq security init`).
[tls]
ca = {ca}
; brokers that require certificates of clients need these two, too (`metaq security client`):
; certificate = client.pem
; key = client.key
"""

_ZOOKEEPER = """
; TLS to ZooKeeper. A ZooKeeper that requires certificates of clients needs `certificate` and `key`, too.
[zookeeper]
"""


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a duration: write a number and m, h, d or w, like 12h or 30d")
    return int(found[1]) * _UNITS[found[2]]


def quota_change(text: str) -> tuple[Quota, int | None]:
    """Return the quota and its new value that a text like connections=50 or connections=none names; None: no value.
    Raises ValueError.
    """
    name, _, value = text.partition("=")
    if name not in set(Quota):
        raise ValueError(f"{text!r} is no quota: write one of {', '.join(Quota)} with =NUMBER or =none")
    if value == _NONE:
        return Quota(name), None
    found = _COUNT.fullmatch(value)
    number = -1 if found is None else int(found[1]) * _MULTIPLES[found[2]]
    quota = Quota(name)
    if not quota.least <= number <= MAX_QUOTA:
        least = "1 (a second; to allow nothing, revoke grants)" if quota.is_rate else "0 (nothing is allowed)"
        raise ValueError(
            f"{text!r} sets no quota: write a number from {least} to {MAX_QUOTA:,}, which may end with K, M or G, or "
            f"{_NONE}"
        )
    return quota, number


DURATION = Parsed("DURATION", _seconds)
GRANT = Parsed("GRANT", AccessGrant.parse)
USER = Parsed("USER", check_user)


def expiry_of(seconds: int | None) -> int | None:
    """Return the time that is `seconds` away, in milliseconds of the Unix epoch; None for None."""
    return None if seconds is None else int((time.time() + seconds) * 1000)


def read_password(path: str, option: str = "--password-file") -> str:
    """Return the password in a file, without the line's end. path: `-` for stdin. option: the name of the option in
    error messages. Raises ConfigError if the file cannot be read, or if others may read it.
    """
    if path == _STDIN:
        data = b"" if sys.stdin is None else sys.stdin.buffer.read()
    else:
        check_secret(option, path)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(option, path, f"it cannot be read: {error.strerror}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(option, path, "it is no UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


def prompted_password(name: str) -> str:
    """Ask for a new password twice, on the terminal, without showing it."""
    answer: str = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt="Again", err=True)
    return answer


def profile_text(
    name: str,
    password: str | None = None,
    password_file: str = "",
    ca: str = _CA,
    zookeeper: CertificateFiles | None = None,
) -> str:
    """Return the text of a profile of the user `name`, with the password, or with the path of the file that has it. ca:
    the path of the file with the CA of the brokers' certificates, which is absolute or relative to the profile.
    zookeeper: the files for TLS with ZooKeeper; None means that ZooKeeper is used without TLS.
    """
    line = f"passwordFile = {os.path.abspath(password_file)}" if password is None else f"password = {password}"
    text = _PROFILE.format(name=name, password=line, ca=ca)
    return text if zookeeper is None else text + zookeeper_section(zookeeper)


def zookeeper_section(files: CertificateFiles) -> str:
    """Return the section for TLS with ZooKeeper of a profile or a security.ini, after an empty line. Paths in `files`
    are absolute, or relative to the file with the section.
    """
    given = {"ca": files.ca, "certificate": files.certificate, "key": files.key}
    return _ZOOKEEPER + "".join(f"{key} = {path}\n" for key, path in given.items() if path)


def known_ca(chosen: Path | None) -> str:
    """Return the path of the CA for the profile of another user: the absolute path of the file that the user has
    chosen, or of the one in the profile of the user who runs this command; otherwise a path beside the new profile.
    """
    if chosen is not None:
        return os.path.abspath(chosen)
    tls = profile_tls()
    return tls.ca if tls is not None and tls.ca else _CA


def known_zookeeper() -> CertificateFiles | None:
    """Return the files for TLS with ZooKeeper for the profile of another user: the CA in the profile of the user who
    runs this command, but not his certificate. Return None if this profile uses no TLS with ZooKeeper.
    """
    tls = profile_zookeeper_tls()
    return None if tls is None else CertificateFiles(tls.ca)


def check_new_file(path: Path) -> None:
    """Raise ConfigError if there is a file with this path."""
    if os.path.lexists(path):
        remedy = "it is there already, and nothing is overwritten: choose another name, or remove it"
        raise ConfigError("--profile", path, remedy)


def write_profile(path: Path, text: str) -> None:
    """Write a new file that only its owner may read. Raises ConfigError if it exists or cannot be written."""
    check_new_file(path)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError("--profile", path, f"it cannot be written: {error.strerror}") from error
