"""Install PySpark (500 MB) while the demo is already running, because only the last step of the demo needs it."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

from metaq.protocol.errors import ClientError, RequestTimedOut

from ..servers import Child
from .report import Report

__all__ = ["SparkInstallation", "is_missing", "main", "requirements"]

INSTALL_SECONDS = 1800.0
"""Maximum seconds from the start of the demo to the end of the installation. The limit is long, so that the demo does
not fail on a slow network.
"""


def is_missing() -> bool:
    """Whether a module that metaq's extra `spark` installs is missing."""
    return any(find_spec(module) is None for module in ("pyspark", "pyarrow", "pandas"))


def requirements(extra: str) -> list[str]:
    """Return the packages that one of metaq's extras requires."""
    marked = (each.partition(";") for each in requires("metaq") or ())
    return [name.strip() for name, _, marker in marked if f"extra == '{extra}'" in marker.replace('"', "'")]


class SparkInstallation:
    """An installation of PySpark by pip in a child process, which starts when this object is created. This object may
    be used only by the main thread.
    """

    def __init__(self, directory: Path) -> None:
        """directory: the folder for pip's log."""
        self._pip = Child("pip", requirements("spark"), directory / "pip.log", module=__name__)

    def finish(self, report: Report, ended: bool) -> None:
        """Print that PySpark is installed. Raises ClientError if pip has failed, and RequestTimedOut if pip has not
        ended within INSTALL_SECONDS.
        ended: whether pip has ended.
        """
        if not ended:
            raise RequestTimedOut(f"PySpark was not installed within {INSTALL_SECONDS:.0f} s: {self._pip.last_words()}")
        if code := self._pip.stop():
            raise ClientError(f"pip ended with exit code {code}: {self._pip.last_words()} (log: {self._pip.log})")
        report.say("PySpark is installed")

    @property
    def running(self) -> bool:
        return self._pip.running

    def stop(self) -> None:
        """End pip if it still runs."""
        self._pip.stop()


def main(arguments: Sequence[str]) -> None:
    """Run `pip install ARGUMENT …`; this is the main function of the child process."""
    sys.argv = ["pip", "install", "--disable-pip-version-check", *arguments]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
