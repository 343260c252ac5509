"""Build paths below the user's home directory, or raise a clear error if there is none (a user in a container often has
no home directory).
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from metaq.protocol.errors import ConfigError

__all__ = ["NO_HOME", "in_home"]

NO_HOME = "this user has no home directory (HOME is not set, and the system knows none)"


def in_home(path: str | PathLike[str], option: str, remedy: str) -> Path:
    """Return `path` with `~` replaced by the home directory. Raises ConfigError, which names `option` and contains the
    text `remedy`, if the user has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(option, path, f"{NO_HOME}: {remedy}") from error
