"""The process that talks to each node by its address: `python -m tests.failovers.prober JSON`, see Task.

What it knows and a client does not: which node acknowledged, and which node showed which bytes. It ends at SIGTERM.

    put   begun, node, topic, number, code, id, offset        a message, and the node's answer
    get   begun, node, partition, offset, bytes, checksum     raw bytes of the log as the node showed them
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.record import checksum
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import Result, encode_put, parse_put_result
from tests.broker_process import Connection
from tests.history.facts import Name
from tests.kills.journal import Journal, clock
from tests.kills.programs import ProgramTask, begin_program

__all__ = ["ASKED_TOPICS", "Task"]

ASKED_TOPICS = ("asked", "told")
"""ack=in-sync and ack=leader."""
_ANSWER_SECONDS = 20.0
_PUT_PAUSE_SECONDS = 0.05
_GET_PAUSE_SECONDS = 0.1
_REFUSED_PAUSE_SECONDS = 0.1
_GET_BYTES = 256 << 10
_SUCCESS = 200


@dataclass(frozen=True, slots=True)
class Task(ProgramTask):
    """nodes: full name -> address. topics: name -> partitions, of what is read."""

    nodes: Mapping[str, str]
    topics: Mapping[str, int]
    journal: str


class _Node:
    """A connection to one node, made anew when it is lost. One thread."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._connection: Connection | None = None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Raises OSError and RemoteProtocolError; the next call connects again."""
        try:
            if self._connection is None:
                self._connection = Connection(int(self._port), host=self._host, timeout=_ANSWER_SECONDS)
            yield self._connection
        except (OSError, RemoteProtocolError):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise


class _Prober:
    def __init__(self, task: Task, journal: Journal, stopping: threading.Event) -> None:
        self._task = task
        self._journal = journal
        self._stopping = stopping

    def put(self, name: str, address: str, topic: str) -> None:
        """One message after the other to one node and topic: what waits for another node does not keep `ack=leader`
        from being asked for."""
        node = _Node(address)
        for number in itertools.count(1):
            if self._stopping.wait(_PUT_PAUSE_SECONDS):
                return
            message = Name(f"probe{name}", topic, number)
            body = f"{message} ".encode()
            begun = clock()
            try:
                with node.connection() as connection:
                    answer = connection.ask(encode_put(topic, 0, 0, checksum(body), number, body))
            except (OSError, RemoteProtocolError):
                self._journal.write("put", begun, name, topic, number, 0, 0, 0)
                self._stopping.wait(_REFUSED_PAUSE_SECONDS)
                continue
            assert isinstance(answer, Result)
            message_id = offset = 0
            if answer.code == _SUCCESS:
                message_id, _, offset = parse_put_result(answer.text)
            else:
                self._stopping.wait(_REFUSED_PAUSE_SECONDS)
            self._journal.write("put", begun, name, topic, number, answer.code, message_id, offset)

    def get(self, name: str, address: str) -> None:
        """Read every partition of one node as it grows, also while it is a follower."""
        node = _Node(address)
        places = [(topic, number) for topic, count in self._task.topics.items() for number in range(count)]
        at = dict.fromkeys(places, 0)
        while not self._stopping.wait(_GET_PAUSE_SECONDS):
            for topic, number in places:
                offset = at[topic, number]
                begun = clock()
                try:
                    pull = PullRequest(topic, number, offset, _GET_BYTES, group="prober", follower=True)
                    with node.connection() as connection:
                        answer = connection.ask_frame(encode_frame(RequestCode.PULL, 1, pull.to_ext()))
                except (OSError, RemoteProtocolError):
                    time.sleep(_REFUSED_PAUSE_SECONDS)
                    break
                if answer.code == ResponseCode.SUCCESS and len(answer.body):
                    partition = f"{topic} {name[:-1]}-{number}"
                    self._journal.write("get", begun, name, partition, offset, len(answer.body), crc32(answer.body))
                    at[topic, number] = offset + len(answer.body)


def main(task: Task) -> None:
    stopping = begin_program()
    journal = Journal(Path(task.journal))
    prober = _Prober(task, journal, stopping)
    threads = [
        threading.Thread(target=prober.put, args=(*node, topic), daemon=True)
        for node in task.nodes.items()
        for topic in ASKED_TOPICS
    ]
    threads += [threading.Thread(target=prober.get, args=node, daemon=True) for node in task.nodes.items()]
    for thread in threads:
        thread.start()
    stopping.wait()
    for thread in threads:
        thread.join(2 * _ANSWER_SECONDS)


if __name__ == "__main__":
    main(Task.told())
