"""Runs `metaq` as users do: as a process."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from metaq.coordination.embedded import find_jars
from tests.waiting import DEADLINE

from .forked_processes import forked

METAQ = [sys.executable, "-m", "metaq"]
START_SECONDS = 2 * DEADLINE
STOP_SECONDS = 2 * DEADLINE
RUN_SECONDS = 4 * DEADLINE


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def run(*arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, timeout: float = RUN_SECONDS) -> Ran:
    """Run one command to its end, in a process that is spared the imports (forked_processes.py)."""
    code, out, err = forked().run(arguments, stdin, {**os.environ, **(env or {})}, timeout)
    return Ran(code, out.decode(), err.decode())


class Operator:
    """Runs commands on the cluster below a chroot."""

    def __init__(self, connect: str) -> None:
        self.connect = connect

    def ran(self, *arguments: str) -> Ran:
        return run(*arguments, env={"METAQ_ZK": self.connect})

    def json(self, *arguments: str) -> Any:
        ran = self.ran(*arguments, "--json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    def refused(self, *arguments: str) -> str:
        """Its one line on stderr."""
        ran = self.ran(*arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1), ran
        return ran.err


def start(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a command that goes on; in a session of its own, as from another terminal.

    It ends with the test run at the latest (a failed test may not have stopped it).
    """
    process = subprocess.Popen(
        [*METAQ, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    atexit.register(process.kill)
    return process


def first_line(process: subprocess.Popen[bytes], seconds: float = START_SECONDS) -> str:
    """The first line it prints; fails with what it said on stderr if it ends or is silent for that long."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    line = process.stdout.readline().decode() if ready else ""
    if not line:
        process.kill()
        _, said = process.communicate()
        raise AssertionError(f"it printed no line within {seconds:g} s, but: {said.decode()}")
    return line.strip()


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    """Send a signal and wait; the exit code."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.communicate(timeout=STOP_SECONDS)
    finally:
        process.kill()
    return process.returncode


class Up(NamedTuple):
    """A running `metaq up`."""

    process: subprocess.Popen[bytes]
    zookeeper: str
    broker_ports: list[int]
    data_dir: Path

    @property
    def env(self) -> dict[str, str]:
        return {"METAQ_ZK": self.zookeeper}

    def run(self, *arguments: str, stdin: bytes = b"", timeout: float = RUN_SECONDS) -> Ran:
        """Run a command against this cluster."""
        return run(*arguments, stdin=stdin, env=self.env, timeout=timeout)


def start_up(data_dir: Path, topics: Sequence[str], *more: str) -> Up:
    """`metaq up` on free ports, once it serves."""
    named = [argument for topic in topics for argument in ("--topic", topic)]
    process = start("up", "--data-dir", str(data_dir), "--port", "0", "--zookeeper-port", "0", *named, *more)
    line = first_line(process)
    zookeeper, *brokers = re.findall(r"127\.0\.0\.1:\d+", line)
    return Up(process, zookeeper, [int(address.rpartition(":")[2]) for address in brokers], data_dir)


@contextmanager
def serving_up(data_dir: Path, topics: Sequence[str], *more: str) -> Iterator[Up]:
    """`metaq up` as long as the block, behind which it stops cleanly."""
    up = start_up(data_dir, topics, *more)
    try:
        yield up
    finally:
        assert stop(up.process) == 0


def pids_of_children(pid: int) -> list[int]:
    """Direct children of a process, whichever of its threads started them."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def findings(looked: Mapping[str, Any]) -> list[dict[str, str]]:
    """What `metaq monitor --json` found, without its warning of the ZooKeeper's version, which is that of PySpark's
    jars."""
    return [each for each in looked["findings"] if "CVE-2026-79993" not in each["text"]]


def jars_of_apache(directory: Path, version: str) -> str:
    """PySpark's jars as the directory of a distribution that says this version."""
    directory.mkdir()
    for jar in find_jars(["*.jar"]):
        name = f"zookeeper-{version}.jar" if re.fullmatch(r"zookeeper-[0-9.]+\.jar", jar.name) else jar.name
        if jar.name.startswith(("zookeeper", "slf4j", "log4j", "metrics-core", "snappy", "commons-io", "netty")):
            (directory / name).symlink_to(jar)
    return f"apache:{directory}"
