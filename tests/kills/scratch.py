"""A directory for files that need not survive."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch_directory"]


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory, in memory if there is room; it is removed afterwards."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="metaq-scratch-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
