"""Build paths below the user's home directory, or raise a clear error if there is none (a user in a container often has
no home directory). Also create directories that no other user of the machine may read.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from metaq.protocol.errors import ConfigError

__all__ = ["NO_HOME", "in_home", "make_private_directory"]

NO_HOME = "this user has no home directory (HOME is not set, and the system knows none)"


def in_home(path: str | PathLike[str], option: str, remedy: str) -> Path:
    """Return `path` with `~` replaced by the home directory. Raises ConfigError, which names `option` and contains the
    text `remedy`, if the user has no home directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(option, path, f"{NO_HOME}: {remedy}") from error


def make_private_directory(path: Path) -> None:
    """Create a directory and the missing directories above it, all for their owner alone. Directories that exist are
    not changed. Raises OSError.
    """
    for above in reversed(path.parents):
        if not above.exists():
            above.mkdir(0o700, exist_ok=True)
    path.mkdir(0o700, exist_ok=True)
