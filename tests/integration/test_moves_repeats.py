"""A send whose answer was lost, of a partition that has moved away before the producer can ask again: stored once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from metaq import ConnectionConfig, Producer, ProducerConfig, TopicPartition
from metaq.client.questions.moves import MovesOfCluster
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.coordination.records.move_payloads import MoveState
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.client_cluster import running_brokers
from tests.integration.gate import Gate
from tests.integration.test_moves import FAST, TOPIC, stored
from tests.waiting import DEADLINE, eventually

LEFT = TopicPartition(TOPIC, 0, 0)
CONFIG = ProducerConfig(
    delivery_timeout_seconds=DEADLINE,
    retry_max_seconds=0.2,
    connection=ConnectionConfig(request_timeout_seconds=1.0, connect_timeout_seconds=1.0, reconnect_max_seconds=0.2),
)


class FromTheSource:
    """A selector that prefers the partition that will leave."""

    def select(self, topic: str, partitions: Any, message: object) -> TopicPartition:
        return LEFT if LEFT in partitions else partitions[0]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("fixed", [LEFT, None])
def test_a_repeat_behind_the_move_is_answered_as_the_first_send(
    chroot: str, tmp_path: Path, fixed: TopicPartition | None, restarted: bool
) -> None:
    with running_brokers(chroot, tmp_path, {TOPIC: 1}, count=2) as brokers:
        port = brokers.running[0].port
        with (
            Gate(f"127.0.0.1:{port}") as gate,
            Producer(chroot, selector=FromTheSource(), config=CONFIG) as producer,
            ZkSession(chroot) as session,
        ):

            def through_the_gate(endpoint: Endpoint, *rest: Any) -> Any:
                host, _, gate_port = gate.address.rpartition(":")
                return open_connection(Endpoint(host, int(gate_port)) if endpoint.port == port else endpoint, *rest)

            producer._pool._open = through_the_gate
            producer.send(TOPIC, b"0", partition=LEFT)
            brokers.running[0].process.send_signal(signal.SIGSTOP)
            passed = gate.passed
            future = producer.send_async(TOPIC, b"1", partition=fixed)
            eventually(lambda: gate.passed > passed, what="the request")
            gate.swallow(1 << 20)  # what was sent has reached the broker's socket; its answer finds nobody
            brokers.running[0].process.send_signal(signal.SIGCONT)
            moves = MovesOfCluster(session)
            eventually(lambda: stored(chroot, [LEFT])[LEFT] == ["0", "1"], what="the message")
            assert not future.done()
            move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
            eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
            if restarted:
                brokers.running[0].kill()
                brokers.start(0)
            eventually(lambda: LEFT not in producer.partitions(TOPIC), what="the producer to see it")
            assert not future.done()
            gate.swallow(0)
            result = future.result(DEADLINE)
            assert result.partition == LEFT
            assert producer.send(TOPIC, b"2").partition.broker == 1
            payloads = [each for found in stored(chroot, producer.partitions(TOPIC)).values() for each in found]
            assert sorted(payloads) == ["0", "1", "2"]
