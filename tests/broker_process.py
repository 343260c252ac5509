"""A real broker process for integration tests, and a bare connection to it."""

from __future__ import annotations

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from metaq.protocol.frames import Frame
from metaq.protocol.text import Answer, AnswerReader
from tests.frames import FrameReader
from tests.waiting import DEADLINE

READY = re.compile(r"metaq broker (\d+) serving meta://[^ ]*:(\d+) ")


def server_ini(
    data_path: Path | str,
    topics: Mapping[str, str],
    *,
    broker_id: int = 0,
    unflush_threshold: int = 0,
    system: str = "",
    zookeeper: str = "zk.zkEnable=false",
    max_segment_size: int = 1 << 30,
) -> str:
    """A small server.ini on a free port. topics: name -> lines of its section."""
    sections = "".join(f"[topic={name}]\n{lines}\n" for name, lines in topics.items())
    return (
        f"[system]\nbrokerId={broker_id}\nhostName=127.0.0.1\nserverPort=0\nnumPartitions=1\ndataPath={data_path}\n"
        f"unflushThreshold={unflush_threshold}\nunflushInterval=10000\nmaxSegmentSize={max_segment_size}\n"
        f"maxTransferSize=1048576\n{system}\n[zookeeper]\n{zookeeper}\n{sections}"
    )


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class RunningBroker:
    """`python -m metaq.broker`, ready to serve. `port` is where it listens."""

    def __init__(
        self, directory: Path, ini: str, *, module: tuple[str, ...] = ("-m", "metaq.broker"), deadline: float = DEADLINE
    ) -> None:
        self.directory = directory
        self.ini = directory / "server.ini"
        self.ini.write_text(ini)
        self.errors = directory / "stderr.log"
        started = time.monotonic()
        with self.errors.open("ab") as errors:
            self.process = self._begin([*module, str(self.ini)], errors)
        try:
            self.port = self._await_ready(started + deadline)
        except BaseException:
            self.kill()
            raise

    def _begin(self, words: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """`python WORDS…`, with pipes to stdin and from stdout."""
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, *words], stdin=pipe, stdout=pipe, stderr=errors, cwd=self.directory)

    def _await_ready(self, deadline: float) -> int:
        """Its port."""
        line = self._first_line(deadline)
        ready = READY.match(line)
        if ready is None:
            raise AssertionError(f"the broker said {line!r} instead of being ready; {self.errors.read_text()}")
        return int(ready[2])

    def _first_line(self, deadline: float) -> str:
        stdout = self.process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"the broker was not ready in time; {self.errors.read_text()}")
        return stdout.readline().decode()

    def connect(self, **options: Any) -> Connection:
        return Connection(self.port, **options)

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        return resident_bytes(self.process.pid)

    def stop(self, timeout: float = DEADLINE) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait(timeout)

    def kill(self) -> int:
        """SIGKILL; the exit code."""
        self.process.kill()
        return self._wait(DEADLINE)

    def _wait(self, timeout: float) -> int:
        try:
            return self.process.wait(timeout)
        finally:
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()

    def __enter__(self) -> RunningBroker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


class Connection:
    """A plain socket with both codecs. Every wait has a deadline."""

    def __init__(
        self, port: int, *, timeout: float = DEADLINE, receive_buffer: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(timeout)
        self.socket.connect((host, port))
        self._answers = AnswerReader()
        self._frames = FrameReader()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answers(self, count: int) -> list[Answer]:
        """The next text answers; at least `count`. Raises ConnectionError at the end of the stream."""
        found: list[Answer] = []
        while len(found) < count:
            found += self._answers.receive(self._receive())
        return found

    def ask(self, data: bytes) -> Any:
        """Send one text command, return its answer."""
        self.send(data)
        return self.answers(1)[0]

    def frames(self, count: int) -> list[Frame]:
        """The next frames; at least `count`. Raises ConnectionError at the end of the stream."""
        found: list[Frame] = []
        while len(found) < count:
            found += self._frames.receive(self._receive())
        return found

    def ask_frame(self, data: bytes) -> Frame:
        """Send one frame, return its answer."""
        self.send(data)
        return self.frames(1)[0]

    def closed_within(self, seconds: float) -> bool:
        """Whether the broker closes the connection in time; data in between is dropped."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except ConnectionError:
                return True
        return False

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return data

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
