"""Finding a Java that can run what PySpark ships, and the jars it ships."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from metaq.protocol.errors import ConfigError

__all__ = ["MIN_JAVA", "find_jars", "find_java"]

MIN_JAVA = 17
"""What PySpark 4 needs; ZooKeeper's server alone would do with less."""

_REMEDY = f"Java {MIN_JAVA} or newer is needed: apt-get install openjdk-17-jre-headless, or point JAVA_HOME to one"
_VERSION = re.compile(r'"(?:1\.)?([0-9]+)')


def find_java(environment: Mapping[str, str] | None = None) -> str:
    """Path of the java program: JAVA_HOME's, as PySpark chooses it, else the first on PATH.

    Raises ConfigError naming what was found when there is none, or it is older than MIN_JAVA.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    wanted = str(Path(home, "bin", "java")) if home else "java"
    java = shutil.which(wanted, path=environment.get("PATH", ""))
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise ConfigError("java", f"none in {where}", _REMEDY)
    version = _java_version(java)
    if version < MIN_JAVA:
        raise ConfigError("java", f"{java} (version {version or 'unknown'})", _REMEDY)
    return java


def _java_version(java: str) -> int:
    """Major version, 0 if it does not say: from the `release` file beside it, which costs no start of a JVM."""
    release = Path(os.path.realpath(java)).parent.parent / "release"
    said = release.read_text("utf-8").partition("JAVA_VERSION=")[2] if release.is_file() else ""
    found = _VERSION.search(said) or _VERSION.search(_ask_java(java))
    return int(found[1]) if found else 0


def _ask_java(java: str) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def find_jars(patterns: Sequence[str]) -> list[Path]:
    """The jars of PySpark that match `patterns`, found without importing it. Raises ConfigError."""
    spec = find_spec("pyspark")
    remedy = (
        "metaq starts ZooKeeper from PySpark's jars: pip install 'metaq[spark]',"
        " or run metaq broker with a ZooKeeper of your own"
    )
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("pyspark", "not installed", remedy)
    directory = Path(next(iter(spec.submodule_search_locations)), "jars")
    jars = [sorted(directory.glob(pattern)) for pattern in patterns]
    missing = [pattern for pattern, found in zip(patterns, jars, strict=True) if not found]
    if missing:
        raise ConfigError("pyspark", directory, f"it has no {', '.join(missing)}: {remedy}")
    return [jar for found in jars for jar in found]
