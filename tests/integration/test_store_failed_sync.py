"""A disk that cannot write back what the page cache has: a real ext4 on a loop device whose backing store runs full.

Linux marks pages clean after a failed write-back. Reads go on finding them, and a later fdatasync succeeds without
writing anything: a start that believed them would drop the journal, the only good copy.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMAGE_BYTES = 32 << 20
BACKING_BYTES = 40 << 20

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


class FailingDisk:
    """An ext4 at `path`, whose backing store has no more room while `is_full`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "disk"
        self._backing = directory / "backing"
        self._image = self._backing / "image"
        self._filler = self._backing / "filler"
        for each in (self.path, self._backing):
            each.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={BACKING_BYTES}", "tmpfs", str(self._backing))
        # everything has room at first, then the free blocks give it back: only data meet the full disk, no metadata
        self._image.write_bytes(bytes(IMAGE_BYTES))
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", str(self._image))
        self.mount()
        _run("fstrim", str(self.path))

    def mount(self) -> None:
        _run("mount", "-o", "loop,errors=continue", str(self._image), str(self.path))

    def unmount(self) -> None:
        _run("umount", str(self.path))

    def fill(self) -> None:
        filler = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            with suppress(OSError):
                while os.write(filler, bytes(1 << 16)):
                    pass
            assert os.statvfs(self._backing).f_bavail == 0
        finally:
            os.close(filler)

    def free(self) -> None:
        self._filler.unlink()

    def close(self) -> None:
        for each in (self.path, self._backing):
            subprocess.run(["umount", str(each)], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    made = FailingDisk(tmp_path)
    yield made
    made.close()


def _store(action: str, disk: FailingDisk, *, asynchronous: bool) -> list[tuple[int, int, str]]:
    environment = dict(os.environ) | ({"ASYNCHRONOUS": "1"} if asynchronous else {})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.failed_sync_store", action, str(disk.path / "data")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(tuple(json.loads(line)))
        if action == "write" and len(found) == 240:
            disk.fill()
            process.stdin.write("go on\n")
            process.stdin.flush()
    assert process.wait() == 0
    return found


@pytest.mark.parametrize("asynchronous", [False, True], ids=["journaled", "asynchronous"])
def test_what_a_failed_write_back_has_left_in_the_page_cache_reaches_the_disk_at_the_next_start(
    disk: FailingDisk, *, asynchronous: bool
) -> None:
    acknowledged = _store("write", disk, asynchronous=asynchronous)
    assert len(acknowledged) == 240
    disk.free()
    _store("start", disk, asynchronous=asynchronous)
    disk.unmount()  # so much for the page cache
    disk.mount()
    assert sorted(_store("read", disk, asynchronous=asynchronous)) == sorted(acknowledged)
