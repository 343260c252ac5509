"""Environments with metaq installed as users install it, beside the one that runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from bench.processes import Server

from .doc_examples import ROOT

OURS = ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "VIRTUAL_ENV", "METAQ_ZK")
"""What no environment of a user's inherits from this one."""

COMMAND_SECONDS = 600.0
"""Longest time of a command: an installation may have to download, beside busy neighbours."""


class Ran(NamedTuple):
    """How a command ended; output is both streams."""

    code: int
    output: str


class Environment:
    """A virtual environment at `home`; commands run with its programs first, in `home`'s folder, which has no sources.

    libraries: with the libraries of this environment, but not its metaq.
    """

    def __init__(self, home: Path, *, pip: bool = True, libraries: bool = False) -> None:
        self.home = home
        without = () if pip else ("--without-pip",)
        subprocess.run([sys.executable, "-m", "venv", *without, str(home)], check=True)
        self.python = str(home / "bin" / "python")
        if libraries:
            self.add_libraries()

    def add_libraries(self) -> None:
        """A .pth file leads to them, read only where Python looks for those: an editable install is not found by it."""
        (packages,) = self.home.glob("lib/*/site-packages")
        folders = [path for path in sys.path if path.endswith("-packages") and not Path(path, "metaq").exists()]
        (packages / "libraries.pth").write_text("\n".join(folders))

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        return kept | {"PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def run(self, command: str, *, cwd: Path | None = None, **variables: str) -> Ran:
        """Run a line of a shell to its end."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.variables | variables,
            cwd=cwd or self.home.parent,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return Ran(done.returncode, done.stdout)

    def succeed(self, command: str, *, cwd: Path | None = None, **variables: str) -> str:
        """Run a line of a shell; what it printed."""
        ran = self.run(command, cwd=cwd, **variables)
        assert ran.code == 0, f"$ {command}\n{ran.output}"
        return ran.output

    def serve(self, command: str, log: Path, ready: str, *, cwd: Path | None = None, **variables: str) -> Server:
        """Start a line of a shell that goes on, once its output has `ready`. Close it, or use it in a `with`."""
        pairs = (f"{name}={value}" for name, value in (self.variables | variables).items())
        return Server(["env", "-i", *pairs, "bash", "-c", f"exec {command}"], log, ready, cwd or self.home.parent)


def copy_of_the_sources(directory: Path) -> Path:
    """What a build needs, without what it leaves behind."""
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "bench", "tests", "target", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, directory, ignore=unwanted)
    return directory


def build_distributions(directory: Path) -> None:
    """Build the sdist, and the wheel from it."""
    source = copy_of_the_sources(directory / "source")  # building leaves folders there
    command = [sys.executable, "-m", "build", "--outdir", str(directory), str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
