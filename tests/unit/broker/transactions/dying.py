"""A process that ends at a change of the disk, and what its directory then is."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from tests.doubles.store import FaultyFiles

__all__ = ["Died", "DyingFiles", "contents"]


class Died(BaseException):
    """The end of the process: nothing catches it, nothing is done after it."""


class DyingFiles(FaultyFiles):
    """From the n-th change on every one raises Died."""

    def _change(self, name: str) -> None:
        if self.fail_at is not None and self.changes + 1 >= self.fail_at:
            raise Died
        super()._change(name)


def contents(directory: Path) -> bytes:
    """A digest of the names and bytes below `directory`. What a start finds is the same where this is the same.

    A sync changes no byte, so about half of the changes after which a process dies leave what the one before left.
    """
    found = blake2b()
    for path in sorted(directory.rglob("*")):
        data = path.read_bytes() if path.is_file() else b"/"
        found.update(f"{path.relative_to(directory)}\0{len(data)}\0".encode() + data)
    return found.digest()
