"""The Java client 1.4.6.2 while the partitions that it sends to and reads move to another broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from bench.javapeer import JavaClient
from bench.processes import ProcessFailed
from metaq import Producer
from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.records.move_payloads import MoveState
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.background import Repeating
from tests.integration.client_cluster import running_brokers
from tests.integration.java_peers import require_java
from tests.integration.test_moves import FAST, TOPIC, stored
from tests.waiting import eventually

_STUCK_SECONDS = 20.0


class JavaSending(Repeating):
    """Puts numbered messages, one after the other, within `with`. `sent`: payload -> when it was acknowledged.

    An error that leaves `with` has a note of what the client and its log said last.
    """

    def __init__(self, client: JavaClient, first: int = 0) -> None:
        """first: the number of the first message."""
        super().__init__(self.put, 0.01)
        self.sent: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self._client = client
        self._first = first
        self._last_failure = "no put failed"

    def __exit__(self, *raised: object) -> None:
        super().__exit__()
        if isinstance(error := raised[1], BaseException):
            reasons = Counter(self.failed.values())
            error.add_note(f"{len(self.sent)} puts succeeded, failed: {reasons}; the last: {self._last_failure}")

    def put(self, step: int) -> None:
        payload = f"{self._first + step}"
        try:
            self._client.put(TOPIC, payload.encode())
            self.sent[payload] = time.monotonic()
        except ProcessFailed as error:
            self._last_failure = f"put {payload}, with the end of the log:\n{error}"
            self.failed[payload] = str(error).partition("\n")[0].partition(": ")[2]

    @property
    def is_stuck(self) -> bool:
        return is_stuck(self.sent.values())


class JavaReading(Repeating):
    """What a member of a group gets: `got` has (payload, when it was seen)."""

    def __init__(self, client: JavaClient, group: str, got: Sequence[tuple[str, float]] = ()) -> None:
        """got: by an earlier life."""
        super().__init__(self.receive, 0.02)
        self.got = list(got)
        self._client = client
        self._group = group
        client.join(TOPIC, group)

    def receive(self, _step: int) -> None:
        found = self._client.received(self._group)
        self.got += [(message["data"].decode(), time.monotonic()) for message in found]

    @property
    def is_stuck(self) -> bool:
        return is_stuck(when for _, when in self.got)


def is_stuck(times: Iterable[float]) -> bool:
    """Whether nothing has happened for long."""
    return time.monotonic() - max(times) > _STUCK_SECONDS


def longest_gap(times: list[float]) -> float:
    return max(after - before for before, after in pairwise(times))


def test_a_java_producer_and_a_java_group_go_through_a_move(chroot: str, tmp_path: Path) -> None:
    require_java()
    with (
        running_brokers(chroot, tmp_path, {TOPIC: 2}, count=2) as brokers,
        JavaClient(chroot, tmp_path / "producer.log") as producing,
        JavaClient(chroot, tmp_path / "consumer.log") as consuming,
        ZkSession(chroot) as session,
        JavaSending(producing) as sending,
        ExitStack() as ending,
    ):
        reading = JavaReading(consuming, "java")
        reading.start()
        eventually(lambda: len(sending.sent) > 200 and len(reading.got) > 100, what="messages")
        moves = MovesOfCluster(session)
        begun = time.monotonic()
        move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
        eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
        took = time.monotonic() - begun
        before = len(sending.sent)
        eventually(lambda: len(sending.sent) > before + 200 or sending.is_stuck, what="messages behind the move")
        sending.end()
        sent, failed = sending.sent, sending.failed
        url = f"meta://127.0.0.1:{brokers.running[1].port}"
        if len(sent) <= before + 200:
            # docs/moving.md: the client may close its connections for good, and starting it again helps
            assert producing.connections(url) == 0
            client = ending.enter_context(JavaClient(chroot, tmp_path / "restarted.log"))
            again = ending.enter_context(JavaSending(client, len(sent) + len(failed)))
            eventually(lambda: len(again.sent) > 200, what="messages of the application that was started again")
            again.end()
            sent, failed = sent | again.sent, failed | again.failed
        brokers.running[0].kill()  # nobody needs it any more

        def missing() -> set[str]:
            return sent.keys() - {payload for payload, _ in reading.got}

        eventually(lambda: not missing() or reading.is_stuck, what="all messages")
        reading.end()
        if missing():
            assert consuming.connections(url) == 0
            consuming.leave("java")
            client = ending.enter_context(JavaClient(chroot, tmp_path / "restarted-consumer.log"))
            reading = JavaReading(client, "java", reading.got)
            reading.start()
            eventually(lambda: not missing(), what="all messages of the application that was started again")
            reading.end()
        with Producer(chroot) as producer:
            partitions = producer.partitions(TOPIC)
        assert [(each.broker, each.partition) for each in partitions] == [(1, each) for each in range(4)]
        there = [payload for payloads in stored(chroot, partitions).values() for payload in payloads]
        assert len(there) == len(set(there))
        assert sent.keys() <= set(there) <= sent.keys() | failed.keys()
        print(
            f"the move took {took:.1f} s; {len(failed)} of {len(sent) + len(failed)} sends "
            f"failed: {sorted(set(failed.values()))}; longest pause of sends "
            f"{longest_gap(list(sent.values())):.2f} s, of what the group gets "
            f"{longest_gap([when for _, when in reading.got]):.2f} s; {len(reading.got) - len(set(there))} came twice"
        )
