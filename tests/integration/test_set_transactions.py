"""Transactions of a broker set whose leader is killed: prepared, decided, and under way."""

from __future__ import annotations

import random
import signal
from pathlib import Path

from metaq.broker.sets.transaction_mirror import is_mirrored
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.transaction_requests import CompleteTransactionRequest
from tests.integration.load import kill_under
from tests.integration.set_nodes import SetNodes
from tests.integration.transaction_texts import Transactions, bodies, check_whole, ok, recover, tx, tx_put
from tests.segment_files import contents
from tests.waiting import eventually

SET_TOPICS = {"fast": "numPartitions=2\nunflushThreshold=1000", "safe": "numPartitions=2\nunflushThreshold=0"}
PARTITIONS = [(topic, number) for topic in SET_TOPICS for number in range(2)]
KILLS = 12

XID = "XID:4660:0a0b:0c:host"


def other(name: str) -> str:
    return "b" if name == "a" else "a"


def leader(nodes: SetNodes, among: str = "ab") -> str:
    """The node that leads and serves clients."""

    def serves() -> str:
        name = nodes.leader
        if name not in among or not name:
            return ""
        with nodes.nodes[name].connect() as connection:
            return name if connection.ask(tx("null", "RECOVER")).code == 200 else ""

    return eventually(serves, what="a leader that serves")


def same_files(nodes: SetNodes) -> bool:
    """Segments and transaction logs."""
    first, second = ({**nodes.segments(name), **log_files(nodes.data(name) / "transactions")} for name in "ab")
    return first == second


def log_files(folder: Path) -> dict[str, bytes]:
    return contents((path for path in folder.iterdir() if is_mirrored(path.name)), folder)


def test_a_leader_that_is_deposed_forgets_what_was_under_way_and_leads_again_later(nodes: SetNodes) -> None:
    """In one life of its process, and with the same connections of clients."""
    first = leader(nodes)
    with nodes.nodes[first].connect() as old:
        ok(old, tx(XID, "BEGIN", 60, "host"), tx_put(XID, "safe", 0, b"prepared"), tx(XID, "PREPARE", "host"))
        ok(old, tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "safe", 0, b"open"))
        nodes.signal(first, signal.SIGSTOP)
        second = leader(nodes, other(first))
        with nodes.nodes[second].connect() as connection:
            assert recover(connection) == [XID]
            ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host"))
            ok(connection, tx("TX:s:2", "BEGIN"), tx_put("TX:s:2", "fast", 0, b"2"), tx("TX:s:2", "COMMIT_ONE_PHASE"))
            nodes.signal(first, signal.SIGCONT)
            nodes.wait_in_sync("a", "b")
            refused = old.ask(tx("TX:s:1", "COMMIT_ONE_PHASE"))
            assert refused.code != 200
            assert "does not lead" in refused.text
        eventually(lambda: same_files(nodes), what="the same files on both nodes")
        nodes.kill(second)
        assert leader(nodes, first) == first
        assert "has not been started" in old.ask(tx("TX:s:1", "COMMIT_ONE_PHASE")).text
        assert recover(old) == []
        assert (bodies(old, "safe", 0), bodies(old, "fast", 0)) == ([b"prepared"], [b"2"])


def test_the_decision_of_an_operator_survives_a_failover_until_the_coordinator_forgets_it(nodes: SetNodes) -> None:
    keys = [f"XID:1:0{number}:0b:host" for number in range(3)]
    first = leader(nodes)
    with nodes.nodes[first].connect() as connection:
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
    nodes.kill(first)
    with nodes.nodes[leader(nodes, other(first))].connect() as connection:
        assert sorted(recover(connection)) == keys
        codes = [connection.ask(tx(key, "COMMIT_TWO_PHASE", "host")).text.partition(",")[0] for key in keys]
        assert codes == [f"XAException:code={code}" for code in (7, 6, 8)]
        assert bodies(connection, "safe", 0) == [keys[0].encode()]
        ok(connection, *(tx(key, "FORGET", "host") for key in keys))
        assert recover(connection) == []


def test_every_transaction_is_there_whole_or_not_at_all_when_leaders_are_killed_again_and_again(
    nodes: SetNodes,
) -> None:
    chance = random.Random(1)
    committed: set[str] = set()
    begun: set[str] = set()
    for number in range(KILLS):
        name = leader(nodes)
        producers = [Transactions(nodes.nodes[name], f"{number}.{each}", PARTITIONS) for each in range(3)]
        kill_under(nodes.nodes[name], producers, chance.uniform(0.05, 0.3))
        for producer in producers:
            committed.update(producer.acknowledged)
            begun.update(producer.begun)
        with nodes.nodes[leader(nodes, other(name))].connect() as connection:
            for key in recover(connection):  # prepared, with or without an answer
                ok(connection, tx(key, "COMMIT_TWO_PHASE"))
            check_whole(connection, PARTITIONS, committed)
        nodes.start(name)
        nodes.wait_in_sync("a", "b")
    eventually(lambda: same_files(nodes), what="the same files on both nodes")
    with nodes.nodes[leader(nodes)].connect() as connection:
        assert check_whole(connection, PARTITIONS, committed) <= begun
    assert len(committed) > KILLS
    logs = [nodes.nodes[name].errors.read_text() for name in "ab"]
    assert not any("Traceback" in log for log in logs)
