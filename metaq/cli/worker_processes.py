"""The processes of `metaq worker`: start them, start those again that end, and stop all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from metaq.coordination.runtime.backoff import Backoff

from .servers import Stop, signal_name

__all__ = ["Processes"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_RELOAD_LOOKS = 10
"""With --reload, the files are looked at once in so many looks at the processes."""
_PAUSES = (0.5, 30.0)
"""The first and the longest pause before a process that has ended is started again, in seconds."""
_STEADY_SECONDS = 60.0
"""After a process has run for this time, the pause after its end is the first one again."""
_EXIT_USAGE = 2
_KILL_SECONDS = 5.0
"""A process that has not ended this many seconds after its stop timeout gets SIGKILL."""


@dataclass
class _Place:
    """One of the processes, and the ones that replace it."""

    pauses: Backoff
    process: subprocess.Popen[bytes] | None = None
    begun: float = 0.0
    again_at: float = 0.0


class Processes:
    """Runs so many processes of the same command. Only the main thread may use the object, except for `health`."""

    def __init__(
        self,
        arguments: Sequence[str],
        count: int,
        stop_seconds: float,
        directory: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """arguments: those of this program, without its name. stop_seconds: the option --stop-timeout.
        directory: where the processes start.
        """
        own = ("--processes", "1", "--child-of", str(os.getpid()))
        self._command = [sys.executable, "-m", "metaq", *_without_parents(arguments), *own]
        self._stop_seconds = stop_seconds
        self._directory = directory
        self._clock = clock
        self._places = [_Place(Backoff(*_PAUSES)) for _ in range(count)]
        self._starts = 0

    def health(self) -> tuple[bool, dict[str, object]]:
        """Return whether all processes run, and their figures."""
        running = sum(each.process is not None for each in self._places)
        restarts = max(0, self._starts - len(self._places))
        return running == len(self._places), {
            "processes": running,
            "wanted": len(self._places),
            "restarts": restarts,
        }

    def run(self, stop: Stop, watched: str | None) -> int:
        """Keep the processes running until `stop` is set; return the exit code. If a process says that the command line
        is wrong, stop all and return its code. watched: the directory whose .py files are watched, or None. If files
        are watched, no exit code of a process ends the others, because the next change may mend it.
        """
        seen = _stamps(watched)
        looks = 0
        try:
            while not stop.is_set():
                if (code := self._look()) is not None and watched is None:
                    return code
                looks += 1
                if watched is not None and looks % _RELOAD_LOOKS == 0 and (now := _stamps(watched)) != seen:
                    seen = now
                    _log.info("a file has changed: starting again")
                    self._stop()
                stop.wait(_LOOK_SECONDS)
        finally:
            self._stop()
        return 0

    def _look(self) -> int | None:
        """Start what does not run. Return an exit code if a process says that the command line is wrong."""
        now = self._clock()
        wrong: int | None = None
        for place in self._places:
            if place.process is not None and (code := place.process.poll()) is not None:
                pid, place.process = place.process.pid, None
                if code == _EXIT_USAGE:
                    wrong = code
                if now - place.begun >= _STEADY_SECONDS:
                    place.pauses.reset()
                pause = place.pauses.next()
                place.again_at = now + pause
                how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
                _log.error("the worker process %d %s: another starts in %.1f s", pid, how, pause)
            if place.process is None and now >= place.again_at:
                # a session of its own: Ctrl-C on the terminal reaches this process alone, which stops the others
                place.process = subprocess.Popen(
                    self._command, cwd=self._directory, stdin=subprocess.DEVNULL, start_new_session=True
                )
                place.begun = now
                self._starts += 1
        return wrong

    def _stop(self) -> None:
        """Let the handlers end, and wait for all processes."""
        processes = [each.process for each in self._places if each.process is not None]
        for process in processes:
            process.terminate()
        deadline = self._clock() + self._stop_seconds + _KILL_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - self._clock()))
            except subprocess.TimeoutExpired:
                _log.error("the worker process %d does not end: it gets SIGKILL", process.pid)
                process.kill()
                process.wait()
        for place in self._places:
            place.process, place.again_at = None, 0.0


def _without_parents(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments that a child gets: all but --health and --reload, which are its parent's."""
    skip = False
    for each in arguments:
        if not (skip or each == "--reload" or each == "--health" or each.startswith("--health=")):
            yield each
        skip = each == "--health"


def _stamps(directory: str | None) -> dict[str, int]:
    """Return when each .py file below the directory was changed last, in ns. Directories whose names begin with a dot
    are left out.
    """
    if directory is None:
        return {}
    found = {}
    for root, directories, names in os.walk(directory):
        directories[:] = [each for each in directories if not each.startswith(".") and each != "__pycache__"]
        for name in names:
            if name.endswith(".py"):
                path = Path(root, name)
                try:
                    found[str(path)] = path.stat().st_mtime_ns
                except FileNotFoundError:  # it was deleted meanwhile
                    continue
    return found
