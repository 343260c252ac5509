"""The certificates and the first admin of a cluster that `metaq up --secure` runs. Each file is made once, and the next
start uses it again; a file that is missing is made again.

<data>/security/                  ca.pem and ca.key: a certificate authority, as `metaq security init` makes it
<data>/security/broker-<id>/      certificate, key and security.ini of the broker process whose directory has this name
<data>/security/admin.ini         the profile of an admin
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metaq.client.settings.config import ConnectionConfig
from metaq.client.settings.tls_config import TlsConfig
from metaq.client.settings.user_config import UserConfig
from metaq.coordination.security.passwords import random_password
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.access import AccessMode
from metaq.protocol.errors import ConfigError

from .access_reports import ask_all
from .earlier_starts import SECURITY_DIRECTORY
from .user_input import ADMIN_GRANT, profile_text, write_profile

__all__ = ["ClusterSecurity"]

_ADMIN = "admin"
"""The name of the user that is made."""

_ASK_SECONDS = 0.5
"""Pause between two questions to brokers that are not ready for the admin yet."""

_MAX_REFUSALS = 10
"""After this number of refused logins the admin's profile counts as wrong. A broker that has just started refuses the
first ones, until it has read the users. The number is below MAX_FAILURES of broker/access/logins.py, so that the broker
does not refuse other users, too.
"""


class ClusterSecurity:
    """Makes the files and the admin of one cluster, and asks its brokers as this admin."""

    def __init__(self, data_dir: Path, tell: Callable[[str], None]) -> None:
        """tell: called with a text for the user about what was changed at a later start."""
        self._data_dir = data_dir
        self._tell = tell
        self._directory = data_dir / SECURITY_DIRECTORY
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

    def make_files(self, names: Iterable[str], host: str) -> None:
        """Make the files that are missing. names: the names of the directories of the broker processes. host: the
        address of the brokers. Raises ConfigError.
        """
        with _of_data_dir():
            if not self._directory.exists():
                from .authority import make_authority  # a later start does not need it, nor the library cryptography

                make_authority(self._directory)
            for name in names:
                if not self.security_ini(name).exists():
                    from .authority import make_broker

                    make_broker(self._directory, name, [host])
            if not self.profile.exists():
                write_profile(self.profile, profile_text(_ADMIN, random_password()))
                self._is_new = True

    def enforce(self, session: ZkSession) -> None:
        """Let ZooKeeper have the admin and the mode ENFORCE. Brokers must not run yet. Raises ConfigError if the
        profile names a user who does not exist any more, and the errors of SecurityAdmin.
        """
        user, admin = self._user(), SecurityAdmin(session)
        state = admin.read()
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


@contextmanager
def _of_data_dir() -> Iterator[None]:
    """Let a ConfigError of the `with` block name the option of `metaq up` to which the file belongs."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError("--data-dir", error.value, error.remedy) from error
