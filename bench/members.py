"""Run members of a shared group in a process (`python -m bench.members`), and control this process from another one.

A member is a SharedConsumer. Its work on a message is a sleep: waiting for another service, for example, costs this
process no more than a sleep.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from metaq import SharedConsumer
from metaq.client.transport.connection import Endpoint
from metaq.client.transport.metadata import DirectMetadata

__all__ = ["DIRECT", "Members", "Worked", "numbered"]

DIRECT = "direct:"
"""Prefix of an address that is the host:port of a broker instead of ZooKeeper's address."""
_NUMBER = struct.Struct(">q")


def numbered(number: int, size: int) -> bytes:
    """Return a payload of `size` bytes that contains the message's number."""
    return _NUMBER.pack(number) + bytes(size - _NUMBER.size)


class Worked(NamedTuple):
    """The work of a process's members. finished: number of finished messages; first, last: when they began the first
    message and had finished the last, by time.monotonic(), which all processes of the machine share; workers: number of
    threads that got a message; numbers: the numbers of the messages.
    """

    finished: int
    first: float
    last: float
    workers: int
    numbers: list[int]


@dataclass(slots=True)
class _Thread:
    """The work of one thread of a member; only this thread changes the object."""

    first: float = 0.0
    last: float = 0.0
    numbers: list[int] = field(default_factory=list)


class _Process:
    """The members, as seen inside their process."""

    def __init__(self, connect: str, topic: str, group: str, members: int, threads: int, work_ms: int) -> None:
        self._work_seconds = work_ms / 1000
        self._local = threading.local()
        self._threads: list[_Thread] = []
        self._runs: list[threading.Thread] = []
        self._count = threads
        self.consumers = [_member(connect, topic, group) for _ in range(members)]

    def begin(self) -> None:
        """Start a thread for each member that begins to request messages."""
        for consumer in self.consumers:
            run = threading.Thread(target=consumer.run, args=(self._handle,), kwargs={"threads": self._count})
            run.start()
            self._runs.append(run)

    def _handle(self, message: Any) -> None:
        mine: _Thread | None = getattr(self._local, "mine", None)
        if mine is None:
            mine = self._local.mine = _Thread(time.monotonic())
            self._threads.append(mine)
        time.sleep(self._work_seconds)
        mine.numbers.append(_NUMBER.unpack_from(message.payload)[0])
        mine.last = time.monotonic()

    def count(self) -> int:
        return sum(len(each.numbers) for each in self._threads)

    def end(self) -> Worked:
        """Close the members, so that all finished messages are acknowledged, and return their work."""
        for consumer in self.consumers:
            consumer.stop()
        for run in self._runs:
            run.join()
        for consumer in self.consumers:
            consumer.close()
        return Worked(
            self.count(),
            min((each.first for each in self._threads), default=0.0),
            max((each.last for each in self._threads), default=0.0),
            len(self._threads),
            [number for each in self._threads for number in each.numbers],
        )


def _member(connect: str, topic: str, group: str) -> SharedConsumer:
    if not connect.startswith(DIRECT):
        return SharedConsumer(connect, group=group, topics=[topic])
    host, _, port = connect.removeprefix(DIRECT).rpartition(":")
    return SharedConsumer(
        group=group, topics=[topic], metadata=DirectMetadata(Endpoint(host, int(port)), 0, {topic: 1})
    )


class Members:
    """Controls a process with members from the measuring process."""

    def __init__(self, connect: str, topic: str, group: str, members: int, threads: int, work_ms: int) -> None:
        arguments = map(str, (connect, topic, group, members, threads, work_ms))
        command = [sys.executable, "-m", "bench.members", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"a process with members ended with code {self.process.wait()} at {line!r}")
        return json.loads(answer)

    def begin(self) -> None:
        """Make the members request messages; return when they have begun."""
        self._ask("begin")

    def count(self) -> int:
        """Return the number of messages that the members have finished."""
        return int(self._ask("count"))

    def end(self) -> Worked:
        """Make the members leave, and return their work."""
        return Worked(*self._ask("end"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main() -> None:
    """Execute the commands from standard input, one per line, until the input ends."""
    connect, topic, group, *numbers = sys.argv[1:]
    members, threads, work_ms = map(int, numbers)
    process = _Process(connect, topic, group, members, threads, work_ms)
    for line in sys.stdin:
        answer: Any = None
        match line.strip():
            case "begin":
                process.begin()
            case "count":
                answer = process.count()
            case "end":
                answer = process.end()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
