"""The login of a client: the name and password of a user. Users write them in their program or in their profile."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from metaq.coordination.runtime.certificates import check_secret
from metaq.coordination.runtime.zookeeper_login import read_password
from metaq.protocol.access import check_user
from metaq.protocol.errors import ConfigError, InvalidName

from .profile import ProfileSection, read_section, users_section

__all__ = ["UserConfig", "profile_user", "profile_zookeeper_user"]


@dataclass(frozen=True, slots=True)
class UserConfig:
    """The user as whom a client logs in at each broker, with the user's password. The password is sent to no broker;
    the client proves by SCRAM that it knows the password. The repr of the object does not contain the password.
    """

    name: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError("user.name", repr(self.name), "write the name of a user, such as 'app'")
        try:
            check_user(self.name)
        except InvalidName as error:
            raise ConfigError("user.name", repr(self.name), str(error)) from None
        if not isinstance(self.password, str):
            raise ConfigError("user.password", type(self.password).__name__, "make it a str")
        if not self.password:
            raise ConfigError("user.password", "", "write the password of the user, which may not be empty")

    @classmethod
    def from_profile(cls, path: str | os.PathLike[str]) -> UserConfig:
        """Return the login in a profile file. Raises ConfigError if the file cannot be used, and if users other than
        the owner may read the file that contains the password.

        The password is in the profile itself or in a file, whose path is relative to the profile's directory:

            [user]
            name = app
            passwordFile = app.password
        """
        if (section := read_section(path, "user")) is None:
            raise ConfigError("profile", os.fspath(path), "it has no section [user]")
        return _user_of(section)


def profile_user() -> UserConfig | None:
    """Return the login in the user's profile file (profile.py); None if there is none. Raises ConfigError if the file
    cannot be used, and if users other than the owner may read the file that contains the password.
    """
    section = users_section("user")
    return None if section is None else _user_of(section)


def profile_zookeeper_user() -> UserConfig | None:
    """Return the user and password in the section [zookeeper] of the user's profile file; None if there are none.
    Raises ConfigError as profile_user does.
    """
    section = users_section("zookeeper")
    user, file = ("", "") if section is None else (section.values.get(key, "") for key in ("user", "passwordFile"))
    if section is None or not (user or file):
        return None
    if not (user and file):
        raise ConfigError(f"{section.path}: [zookeeper]", user or file, "write both user and passwordFile")
    return UserConfig(user, read_password(f"{section.path}: passwordFile", section.beside(file)))


def _user_of(section: ProfileSection) -> UserConfig:
    values, path = section.values, section.path
    if "name" not in values:
        raise ConfigError(f"{path}: name", "", "write the name of a user into [user], such as name = app")
    if ("password" in values) == ("passwordFile" in values):
        given = "password, passwordFile" if "password" in values else ""
        raise ConfigError(f"{path}: [user]", given, "write either password or passwordFile")
    if "password" in values:
        check_secret("profile", path)
        return UserConfig(values["name"], values["password"])
    return UserConfig(values["name"], read_password(f"{path}: passwordFile", section.beside(values["passwordFile"])))
