"""Read the files that configure a broker: server.ini, and filters.ini in the directory of server.ini."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

from .filter_map import FILTERS_FILE

__all__ = ["ConfigFiles", "ConfigTexts"]


class ConfigTexts(NamedTuple):
    """The bytes of server.ini and of filters.ini; `filters` is empty if there is no filters.ini."""

    ini: bytes
    filters: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The paths of the configuration files. filters: the path of the filters file. None means `filters.ini` in the
    directory of server.ini, if it exists.
    """

    ini: str
    filters: str | None = None

    @property
    def filters_path(self) -> str:
        """The path of the file that maps Java's filter classes to Python callables. The file need not exist."""
        return self.filters or os.path.join(os.path.dirname(os.path.abspath(self.ini)), FILTERS_FILE)

    @property
    def provided_path(self) -> str | None:
        """The directory `provided` next to the directory of server.ini, or None if `provided` does not exist. If the
        key appClassPath is not set, the filters' modules are taken from this directory, as in 1.x.
        """
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(self.ini))), "provided")
        return path if os.path.isdir(path) else None

    def read(self) -> ConfigTexts:
        """Read server.ini and filters.ini. The call blocks. Raises ConfigError for a file that cannot be read."""
        if self.filters is None and not os.path.exists(self.filters_path):
            return ConfigTexts(_read("server.ini", self.ini))
        return ConfigTexts(_read("server.ini", self.ini), _read("--filters", self.filters_path))


def _read(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(option, path, f"cannot be read ({error.strerror}): give the path of a file") from error
