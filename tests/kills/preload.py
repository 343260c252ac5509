"""Compile C files that are loaded before the C library of a process (LD_PRELOAD)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["build_library"]


def build_library(source: Path) -> Path:
    """Compile the file, unless that was done before. Raises RuntimeError without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError(f"{source.name} is compiled: install gcc")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"metaq-{source.stem}-{os.getuid()}-{digest}.so"
    if not library.exists():
        fd, made = tempfile.mkstemp(".so")  # concurrent runs may have the same process id
        os.close(fd)
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", made, str(source), "-ldl", "-lpthread"], check=True)
        os.replace(made, library)
    return library
