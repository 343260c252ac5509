"""Nodes of an earlier release, for tests with nodes of different versions.

`python -m tests.integration.earlier_release COMMIT` writes the packages of that commit's broker into an archive beside
this file. The archive is kept in the repository, because a clone may have no history.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tests.broker_process import RunningBroker

__all__ = ["ReleasedBroker", "unpack"]

_ARCHIVE = Path(__file__).with_name("earlier_release.tar.xz")
_ROOT = Path(__file__).parents[2]
_FOLDERS = ("protocol", "coordination", "broker")
"""Folders of the checkout that are packages of `metaq` when it is installed."""
_TAKEN = ("metaq/__init__.py", "metaq/__main__.py", "metaq/version.py", "metaq/cli", *_FOLDERS)


class ReleasedBroker(RunningBroker):
    """A broker of the earlier release. `packages`: where `unpack` has put it."""

    def __init__(self, packages: Path, directory: Path, ini: str, *, module: tuple[str, ...]) -> None:
        self._packages = packages
        super().__init__(directory, ini, module=module)

    def _begin(self, words: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(self._packages), "PYTHONSAFEPATH": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, *words], stdin=pipe, stdout=pipe, stderr=errors, cwd=self.directory, env=environment
        )


def unpack(directory: Path) -> Path:
    """Unpack the earlier release. Return the folder for PYTHONPATH."""
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory


def pack(commit: str) -> None:
    """Write the archive from a commit of this repository."""
    command = ["git", "-C", str(_ROOT), "archive", "--format=tar", commit, *_TAKEN]
    tree = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tree)) as source, tarfile.open(_ARCHIVE, "w:xz", preset=9) as archive:
        for member in source:
            if not member.name.endswith(".py"):
                continue
            data: Any = source.extractfile(member)
            if member.name.split("/")[0] in _FOLDERS:
                member.name = f"metaq/{member.name}"
            archive.addfile(member, data)


if __name__ == "__main__":
    pack(sys.argv[1])
