"""Transactions of a broker set whose leader is killed: prepared, decided, and under way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from metaq.protocol.frames import encode_frame
from metaq.protocol.remoting import CompleteTransactionRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import Connection, RunningBroker
from tests.integration.load import Load, kill_under
from tests.integration.set_helpers import NodeSet
from tests.integration.transaction_texts import bodies, ok, recover, tx, tx_put
from tests.waiting import eventually

TOPICS = {"fast": "numPartitions=2\nunflushThreshold=1000", "safe": "numPartitions=2\nunflushThreshold=0"}
PARTITIONS = [(topic, number) for topic in TOPICS for number in range(2)]
KILLS = 30
XID = "XID:4660:0a0b:0c:host"

Start = Callable[..., NodeSet]


@pytest.fixture
def start(chroot: str, tmp_path: Path) -> Iterator[Start]:
    started: list[NodeSet] = []

    def begin(**options: object) -> NodeSet:
        started.append(NodeSet(tmp_path, chroot, TOPICS, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for nodes in started:
        nodes.close()


def same_files(nodes: NodeSet) -> bool:
    first, *others = (nodes.fingerprints(name) for name in nodes.nodes)
    return all(other == first for other in others)


def test_a_prepared_transaction_is_committed_on_the_next_leader(start: Start) -> None:
    nodes = start()
    nodes.wait_in_sync()
    first = nodes.leader()
    with nodes.connect() as connection:
        ok(connection, tx(XID, "BEGIN", 60, "host"), tx_put(XID, "safe", 0, b"one"), tx_put(XID, "fast", 1, b"two"))
        ok(connection, tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "safe", 0, b"never prepared"))
        assert ok(connection, tx(XID, "PREPARE", "host")) == "0"
        nodes.kill(first)
    with nodes.connect() as connection:
        assert nodes.state().leader != first
        assert recover(connection) == [XID]
        assert bodies(connection, "safe", 0) == []
        assert connection.ask(tx("TX:s:1", "COMMIT_ONE_PHASE")).code != 200
        assert ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host")) == ""
        assert (bodies(connection, "safe", 0), bodies(connection, "fast", 1)) == ([b"one"], [b"two"])
    nodes.start(first)
    nodes.wait_in_sync()
    nodes.kill(nodes.leader())
    with nodes.connect() as connection:
        assert nodes.state().leader == first
        assert recover(connection) == []
        assert (bodies(connection, "safe", 0), bodies(connection, "fast", 1)) == ([b"one"], [b"two"])
    nodes.start(next(name for name in nodes.nodes if name != first))
    nodes.wait_in_sync()
    eventually(lambda: same_files(nodes), what="the same files on both nodes")


def test_the_decision_of_an_operator_survives_a_failover_until_the_coordinator_forgets_it(start: Start) -> None:
    nodes = start()
    nodes.wait_in_sync()
    keys = [f"XID:1:0{number}:0b:host" for number in range(3)]
    with nodes.connect() as connection:
        for key in keys:
            ok(
                connection,
                tx(key, "BEGIN", 60, "host"),
                tx_put(key, "safe", 0, key.encode()),
                tx(key, "PREPARE", "host"),
            )
        for key, action in zip(keys, ("commit", "rollback", "complete"), strict=True):
            request = CompleteTransactionRequest(key, action)
            decided = connection.ask_frame(encode_frame(RequestCode.COMPLETE_TRANSACTION, 1, request.to_ext()))
            assert decided.code == ResponseCode.SUCCESS, decided.remark
    nodes.kill(nodes.leader())
    with nodes.connect() as connection:
        assert sorted(recover(connection)) == keys
        codes = [connection.ask(tx(key, "COMMIT_TWO_PHASE", "host")).text.partition(",")[0] for key in keys]
        assert codes == [f"XAException:code={code}" for code in (7, 6, 8)]
        assert bodies(connection, "safe", 0) == [keys[0].encode()]
        ok(connection, *(tx(key, "FORGET", "host") for key in keys))
        assert recover(connection) == []


class Producer(Load):
    """Two messages in each of four partitions per transaction, one after the other until the leader is gone."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        super().__init__(broker)
        self.name_ = name
        self.acknowledged: list[str] = []
        self.prepared: list[str] = []
        """Keys whose preparation was acknowledged, and whose end was not."""
        self.begun: list[str] = []

    def send(self) -> None:
        for number in count():
            self.commit(number)

    def commit(self, number: int) -> None:
        name = f"{self.name_}.{number}"
        xa = number % 2
        key = f"XID:1:{number:06x}:{self.name_.encode().hex()}:host" if xa else f"TX:{self.name_}:{number}"
        ok(self.connection, tx(key, "BEGIN"))
        for part in range(2):
            for topic, partition in PARTITIONS:
                ok(self.connection, tx_put(key, topic, partition, f"{name} {part}".encode()))
        self.begun.append(name)
        if xa:
            ok(self.connection, tx(key, "PREPARE"))
            self.prepared.append(key)
            ok(self.connection, tx(key, "COMMIT_TWO_PHASE"))
            self.prepared.remove(key)
        else:
            ok(self.connection, tx(key, "COMMIT_ONE_PHASE"))
        self.acknowledged.append(name)


def test_every_transaction_is_there_whole_or_not_at_all_when_leaders_are_killed_again_and_again(start: Start) -> None:
    nodes = start()
    chance = random.Random(1)
    committed: set[str] = set()
    begun: set[str] = set()
    finished = 0
    for number in range(KILLS):
        nodes.wait_in_sync()
        leader = nodes.leader()
        producers = [Producer(nodes.nodes[leader], f"{number}.{each}") for each in range(3)]
        kill_under(nodes.nodes[leader], producers, chance.uniform(0.05, 0.3))
        in_doubt: set[str] = set()
        for producer in producers:
            committed.update(producer.acknowledged)
            begun.update(producer.begun)
            in_doubt.update(producer.prepared)
        with nodes.connect() as connection:
            assert nodes.state().leader != leader
            recovered = set(recover(connection))
            finished += len(recovered & in_doubt)
            for key in recovered:  # prepared, with or without an answer
                ok(connection, tx(key, "COMMIT_TWO_PHASE"))
            verify(connection, committed)
        nodes.start(leader)
    nodes.wait_in_sync()
    eventually(lambda: same_files(nodes), what="the same files on both nodes")
    with nodes.connect() as connection:
        assert verify(connection, committed) <= begun
    assert len(committed) > KILLS
    for name in nodes.nodes:
        assert "Traceback" not in nodes.log(name)


def verify(connection: Connection, committed: set[str]) -> set[str]:
    """Each transaction is whole, once, and those that were acknowledged are there; the names of all."""
    found = [bodies(connection, *place) for place in PARTITIONS]
    for each in found:
        assert len(each) == len(set(each)), "a message is there twice"
        names = [body.decode().rpartition(" ")[0] for body in each]
        assert names[::2] == names[1::2], "a transaction's messages are torn apart"
        assert [body[-2:] for body in each] == [b" 0", b" 1"] * (len(each) // 2)
        lost = committed - set(names)
        assert not lost, f"{len(lost)} acknowledged transactions are lost: {sorted(lost)[:3]}"
    sets = [{body.decode().rpartition(" ")[0] for body in each} for each in found]
    assert all(each == sets[0] for each in sets), "a transaction is in some partitions only"
    return sets[0]
