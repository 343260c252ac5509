"""Describe the machine and the versions of the programs; results are printed with this description."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from .peers import peer_versions

__all__ = ["environment"]

LIBRARIES = (
    "metaq",
    "twisted",
    "kazoo",
    "numpy",
    "pyarrow",
    "simplejson",
    "isal",
    "kafka-python",
    "aiokafka",
    "confluent-kafka",
)


def environment() -> dict[str, str]:
    """Return the description of the machine and the versions that is printed with the results."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "java metaq": "1.4.6.2",
        **peer_versions(),
        **{name: version(name) for name in LIBRARIES},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _java() -> str:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return said.split('"')[1]  # java may first print a line about options that it has picked up
