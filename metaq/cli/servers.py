"""Common code of commands that run until a signal stops them: signals, data directories and child processes."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

from metaq.coordination.runtime.home import make_private_directory
from metaq.protocol.errors import BrokerUnavailable, ConfigError, DirectoryInUse

__all__ = [
    "Child",
    "Stop",
    "die_with_parent",
    "locked_directory",
    "signal_name",
    "stop_all",
    "stop_signal",
    "wait_until",
]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Stop(threading.Event):
    """An event that is set when SIGTERM or SIGINT arrives. number: the number of the signal that arrived first; 0
    before a signal arrives.
    """

    number = 0

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C (SIGINT) has set the event."""
        return self.number == signal.SIGINT


@contextmanager
def stop_signal() -> Iterator[Stop]:
    """Within the `with` block, SIGTERM and SIGINT (Ctrl-C) set the yielded event instead of ending the process. This
    function may be called only by the main thread.
    """
    stop = Stop()

    def request_stop(number: int, _frame: FrameType | None) -> None:
        stop.number = stop.number or number
        stop.set()

    previous = {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def locked_directory(option: str, directory: Path) -> Iterator[Path]:
    """Create `directory` if it does not exist, and lock it for this process within the `with` block. Raises ConfigError
    and DirectoryInUse; the error texts name `option`.
    """
    try:
        make_private_directory(directory)
        lock = (directory / ".lock").open("a+")
    except OSError as error:
        remedy = f"cannot be written ({error.strerror}): choose another directory or change its permissions"
        raise ConfigError(option, directory, remedy) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DirectoryInUse(
                f"{option}={directory}: in use by another metaq process: stop it or choose another directory"
            ) from error
        yield directory


def wait_until(condition: Callable[[], bool], deadline: float, interval: float = 0.02) -> bool:
    """Call `condition` every `interval` seconds until it returns true or time.monotonic() reaches `deadline`. Return
    whether `condition` has returned true.
    """
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True


def die_with_parent(parent_pid: int, number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send the signal `number` to this process when its parent ends, even if SIGKILL ends the parent.
    If the parent has already ended, send the signal at once.

    The function has an effect only on Linux, where prctl(2) exists. On other systems a child continues to run after its
    parent was killed. The kernel sends the signal when the *thread* that started the child ends, so children must be
    started from the main thread.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent_pid:  # the parent ended before prctl
        os.kill(os.getpid(), number)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class Child:
    """A child process that runs `main(arguments)` of a module. The child process has its own session of the operating
    system, so that Ctrl-C on the terminal signals only the parent.

    The kernel ends the child when this process ends. The child's stdout and stderr go to the file `log`. This object
    may be created only by the main thread (see die_with_parent).
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, module: str = "metaq.cli.app") -> None:
        """name: the name of the child in error texts. module: the module that has the function `main`; the default is
        the command line.
        """
        self.name = name
        self.log = log
        # -P: do not import modules that happen to be in the user's directory
        command = [sys.executable, "-P", "-m", "metaq.cli.servers", str(os.getpid()), module, *arguments]
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def check(self) -> None:
        """Raise BrokerUnavailable if the child has ended. If a signal ended the child, the error text names the signal;
        otherwise it contains the last line of the child's log.
        """
        code = self.process.poll()
        if code is None:
            return
        if code < 0:  # the log of a killed process does not mention the signal
            raise BrokerUnavailable(f"{self.name} was ended by {signal_name(-code)} (log: {self.log})")
        raise BrokerUnavailable(f"{self.name} ended with exit code {code}: {self.last_words()} (log: {self.log})")

    def last_words(self) -> str:
        """Return the last line of the child's log that is not blank."""
        lines = [line for line in self.log.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing"

    def terminate(self) -> None:
        """Send SIGTERM to the child, and return without waiting for its end."""
        if self.running:
            self.process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the child, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 15.0) -> int:
        """Send SIGTERM to the child, and SIGKILL if it has not ended after `timeout` seconds. Return the exit code; if
        a signal ended the child, this is the negative number of the signal.
        """
        self.terminate()
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode


def _run_child() -> None:
    """Run the function `main` of a module in the child process. The child is started as `python -m` with the arguments
    PARENT_PID MODULE ARGUMENT …
    """
    gc.disable()  # as in cli/__init__.py; the standalone ZooKeeper leaves it off
    parent_pid, module, *arguments = sys.argv[1:]
    die_with_parent(int(parent_pid))
    import_module(module).main(arguments)


def stop_all(children: Sequence[Child], timeout: float = 15.0) -> None:
    """Send SIGTERM to all children at the same time. Send SIGKILL to each child that has not ended after `timeout`
    seconds.
    """
    for child in children:
        child.terminate()
    for child in children:
        child.stop(timeout)


if __name__ == "__main__":
    _run_child()
