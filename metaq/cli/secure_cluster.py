"""The certificates and the first admin of a cluster that `metaq up --secure` runs. Each file is made once, and the next
start uses it again; a file that is missing is made again.

<data>/security/                  ca.pem and ca.key: a certificate authority, as `metaq security init` makes it
<data>/security/broker-<id>/      certificate, key and security.ini of the broker process whose directory has this name
<data>/security/zookeeper/        certificate and key of ZooKeeper
<data>/security/admin.ini         the profile of an admin
<data>/security/admin/            certificate and key by which the admin identifies himself to ZooKeeper

The standalone ZooKeeper serves only TLS, and asks for certificates of clients; users with passwords have none. Apache's
ZooKeeper is started without TLS, so the two folders are not made for it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.tls_config import TlsConfig
from metaq.client.settings.user_config import UserConfig
from metaq.coordination.records.acl_policy import ANYBODY
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.security.passwords import random_password
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.security.zookeeper_acls import apply_policy, read_policy
from metaq.coordination.servers.server_tls import ServerTls
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.standalone.distinguished_names import certificate_name
from metaq.protocol.access import AccessMode
from metaq.protocol.errors import ConfigError

from .access_reports import ask_all
from .earlier_starts import SECURITY_DIRECTORY
from .user_input import ADMIN_GRANT, profile_text, write_profile, zookeeper_section

__all__ = ["ClusterSecurity"]

_ADMIN = "admin"
"""The name of the user that is made, and of the folder with his certificate for ZooKeeper."""

_ZOOKEEPER = "zookeeper"
"""The name of the folder with ZooKeeper's certificate."""

_CA = "ca.pem"

_ASK_SECONDS = 0.5
"""Pause between two questions to brokers that are not ready for the admin yet."""

_MAX_REFUSALS = 10
"""After this number of refused logins the admin's profile counts as wrong. A broker that has just started refuses the
first ones, until it has read the users. The number is below MAX_FAILURES of broker/access/logins.py, so that the broker
does not refuse other users, too.
"""


class ClusterSecurity:
    """Makes the files and the admin of one cluster, and asks its brokers as this admin."""

    def __init__(self, data_dir: Path, tell: Callable[[str], None], *, zookeeper_tls: bool) -> None:
        """tell: called with a text for the user about what was changed at a later start. zookeeper_tls: whether the
        cluster's ZooKeeper serves only TLS.
        """
        self._data_dir = data_dir
        self._tell = tell
        self._directory = data_dir / SECURITY_DIRECTORY
        self._zookeeper_tls = zookeeper_tls
        self._names: list[str] = []
        self._old_files: list[Path] = []
        """The profile and the files security.ini that earlier starts have made."""
        self._is_new = False
        """Whether `make_files` has made the profile, so that ZooKeeper does not have its password yet."""
        self._ask_at = 0.0
        self._refusals = 0
        self.silence = ""
        """Why `serves_admin` has returned False the last time; empty if there is no reason to tell."""

    @property
    def profile(self) -> Path:
        """The path of the admin's profile."""
        return self._directory / "admin.ini"

    def security_ini(self, name: str) -> Path:
        """Return the path of a broker's security.ini. name: the name of the directory of the broker process."""
        return self._directory / name / "security.ini"

    @property
    def server_tls(self) -> ServerTls | None:
        """The TLS settings of ZooKeeper; None if it has no TLS."""
        if not self._zookeeper_tls:
            return None
        own = self._directory / _ZOOKEEPER
        files = (str(self._directory / _CA), str(own / "zookeeper.pem"), str(own / "zookeeper.key"))
        return ServerTls(CertificateFiles(*files, "zookeeper"), "optional")

    @property
    def session_tls(self) -> CertificateFiles | None:
        """The files for the admin's session with ZooKeeper; None if it has no TLS. Raises ConfigError."""
        tls = TlsConfig.zookeeper_from_profile(self.profile)
        return None if tls is None else tls.files("zookeeper")

    @property
    def identities(self) -> list[str]:
        """The identities of the brokers and the admin in ACLs of ZooKeeper, such as `x509:CN=broker-0`. There are none
        if ZooKeeper has no TLS. Raises ConfigError.
        """
        admin = self.session_tls
        if admin is None:
            return []
        paths = [*(str(self.security_ini(name).with_name("broker.pem")) for name in self._names), admin.certificate]
        return [f"x509:{_subject(path)}" for path in paths]

    def make_files(self, names: Iterable[str], host: str) -> None:
        """Make the files that are missing. names: the names of the directories of the broker processes. host: the
        address of the brokers and of ZooKeeper. Raises ConfigError.
        """
        self._names = list(names)
        files = [self.profile, *map(self.security_ini, self._names)]
        self._old_files = [path for path in files if path.exists()]
        if not self._zookeeper_tls and self.profile.exists() and self.session_tls is not None:
            remedy = (
                "its ZooKeeper has TLS, and --zookeeper apache:DIR starts one without TLS: leave out --zookeeper, or "
                "choose another directory"
            )
            raise ConfigError("--data-dir", self._data_dir, remedy)
        with _of_data_dir():
            if not self._directory.exists():
                from .authority import make_authority  # a later start does not need it, nor the library cryptography

                make_authority(self._directory)
            for name in self._names:
                if not self.security_ini(name).exists():
                    from .authority import make_broker

                    make_broker(self._directory, name, [host])
            if not self.profile.exists():
                write_profile(self.profile, profile_text(_ADMIN, random_password()))
                self._is_new = True
            if self.server_tls is not None:
                self._make_zookeeper(host)

    def _make_zookeeper(self, host: str) -> None:
        if all((self._directory / name).exists() for name in (_ZOOKEEPER, _ADMIN)):
            return
        from .authority import make_zookeeper, make_zookeeper_client

        if not (self._directory / _ZOOKEEPER).exists():
            make_zookeeper(self._directory, _ZOOKEEPER, [host])
        if not (self._directory / _ADMIN).exists():
            make_zookeeper_client(self._directory, _ADMIN)

    def name_zookeeper(self) -> None:
        """Add the section for TLS with ZooKeeper to the admin's profile and to each security.ini that has none. Earlier
        versions made these files without it. Raises ConfigError.
        """
        if not self._zookeeper_tls:
            return
        own = CertificateFiles(_CA, "broker.pem", "broker.key")
        files = {self.security_ini(name): own for name in self._names}
        files[self.profile] = CertificateFiles(_CA, f"{_ADMIN}/client.pem", f"{_ADMIN}/client.key")
        with _of_data_dir():
            changed = [path for path, named in files.items() if _add_zookeeper(path, named)]
        if old := [str(path) for path in changed if path in self._old_files]:
            section = f"[zookeeper] with the line ca = {self._directory / _CA}"
            self._tell(
                f"ZooKeeper has TLS now: {', '.join(old)} got the section [zookeeper]; add to the profiles of users "
                f"the section {section}"
            )

    def enforce(self, session: ZkSession) -> None:
        """Let ZooKeeper have the ACLs, the admin and the mode ENFORCE. Brokers must not run yet. Raises ConfigError if
        the profile names a user who does not exist any more, and the errors of SecurityAdmin and apply_policy().
        """
        user, admin = self._user(), SecurityAdmin(session)
        state = admin.read()
        self._protect_znodes(session)
        is_known = user.name in state.users or user.name in state.damaged
        if self._is_new or state.mode is None:
            if is_known:
                admin.delete_user(user.name, force=True)
                self._tell(f"the user {user.name} has a new password, in {self.profile}")
            elif not self._is_new:
                self._tell(f"ZooKeeper has no users: the user {user.name} of {self.profile} is made again")
            admin.add_user(user.name, user.password, [ADMIN_GRANT], first_mode=AccessMode.ENFORCE)
        elif not is_known:
            raise self._wrong_profile(f"there is no user {user.name} any more")
        if state.mode not in (None, AccessMode.ENFORCE) or "" in state.damaged:
            admin.set_mode(AccessMode.ENFORCE)
            self._tell(f"the mode was {'damaged' if '' in state.damaged else state.mode}: it is enforce again")

    def _protect_znodes(self, session: ZkSession) -> None:
        """Give the brokers and the admin all rights on all znodes, besides those who have them already."""
        identities = self.identities
        if not identities:
            return
        policy = read_policy(session)
        if policy is None:
            cluster, clients = identities, [str(ANYBODY)]
        else:
            cluster = list(dict.fromkeys([*map(str, policy.cluster), *identities]))
            clients = list(map(str, policy.clients))
        apply_policy(session, cluster, clients, first_mode=AccessMode.ENFORCE)

    def serves_admin(self, session: ZkSession, processes: int) -> bool:
        """Return whether this number of broker processes let the admin log in, and enforce grants. The brokers are
        asked at most once in _ASK_SECONDS. Raises ConfigError if they refuse the admin again and again.
        """
        if time.monotonic() < self._ask_at:
            return False
        tls = TlsConfig.from_profile(self.profile)
        answers = ask_all(session, ConnectionConfig(tls=tls, zookeeper_tls=None, user=self._user()))
        self.silence = "; ".join(f"{name}: {why}" for name, why in answers.silent.items())
        if answers.refused:
            self._refusals += 1
            if self._refusals == _MAX_REFUSALS:
                raise self._wrong_profile(f"the brokers refuse its user: {self.silence}")
        self._ask_at = time.monotonic() + _ASK_SECONDS
        modes = [report.mode for report in answers.reports.values()]
        return modes == [AccessMode.ENFORCE] * processes

    def _user(self) -> UserConfig:
        return UserConfig.from_profile(self.profile)

    def _wrong_profile(self, why: str) -> ConfigError:
        remedy = (
            f"{self.profile} cannot be used, because {why}: write the login of an admin there, or remove the file: the "
            f"next start makes it again, and gives the user {_ADMIN} a new password"
        )
        return ConfigError("--data-dir", self._data_dir, remedy)


def _add_zookeeper(path: Path, files: CertificateFiles) -> bool:
    """Append the section for TLS with ZooKeeper to a profile or a security.ini, and return True; return False if the
    file has this section. Raises ConfigError.
    """
    try:
        with path.open("r+", encoding="utf-8", errors="surrogateescape") as file:
            if any(line.strip().startswith("[zookeeper]") for line in file.read().splitlines()):
                return False
            file.write(zookeeper_section(files))
            return True
    except OSError as error:
        remedy = f"the section [zookeeper] cannot be added to it: {error.strerror}"
        raise ConfigError("--data-dir", path, remedy) from error


def _subject(path: str) -> str:
    """Return the name of the first certificate in a PEM file, as ACLs of ZooKeeper write it. Raises ConfigError."""
    try:
        text = Path(path).read_text("ascii")
        first, end, _ = text[text.index("-----BEGIN CERTIFICATE") :].partition("-----END CERTIFICATE-----")
        return certificate_name(ssl.PEM_cert_to_DER_cert(first + end))
    except (OSError, ValueError) as error:
        raise ConfigError("--data-dir", path, f"it has no certificate: {error}") from error


@contextmanager
def _of_data_dir() -> Iterator[None]:
    """Let a ConfigError of the `with` block name the option of `metaq up` to which the file belongs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError("--data-dir", error.value, error.remedy) from error
