"""Build the Java peers with Maven once, and again when a source file is newer. The jars come from Maven's central
repository.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

__all__ = ["JavaUnavailable", "build", "java_class_path"]


class JavaUnavailable(RuntimeError):
    """The JDK or Maven is missing, or the build failed. The message names the remedy or the build's output."""


def build(project: Path, peer: str) -> None:
    """Compile a Maven project unless it is up to date. peer: name of the built program for error messages. Raises
    JavaUnavailable.
    """
    for program, package in (("javac", "openjdk-17-jdk-headless"), ("mvn", "maven")):
        if shutil.which(program) is None:
            raise JavaUnavailable(f"{peer} needs '{program}': apt-get install {package}")
    target = project / "target"
    target.mkdir(exist_ok=True)
    with (target / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests may run in several processes
        stamp = target / ".built"
        if not (stamp.exists() and stamp.stat().st_mtime >= _newest(project)):
            _compile(project)
            stamp.touch()


def java_class_path(module: Path) -> str:
    """Return the class path of a built module: its classes and the jars of its dependencies."""
    target = module / "target"
    return f"{target / 'classes'}:{(target / 'classpath.txt').read_text().strip()}"


def _newest(project: Path) -> float:
    sources = [*project.rglob("pom.xml"), *(path for src in project.rglob("src") for path in src.rglob("*.*"))]
    return max(source.stat().st_mtime for source in sources)


def _compile(project: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(project / "pom.xml"), "compile"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise JavaUnavailable(f"{' '.join(command)} failed:\n{built.stdout[-4000:]}{built.stderr[-2000:]}")
