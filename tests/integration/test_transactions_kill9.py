"""Transactions of a real broker that is killed: between prepare and commit, and at any moment of a load of them."""

from __future__ import annotations

import time
from pathlib import Path

from tests.broker_process import Connection, server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.integration.load import kill_under
from tests.integration.transaction_texts import Transactions, bodies, check_whole, ok, recover, tx, tx_put
from tests.waiting import eventually

TOPICS = {"fast": "numPartitions=2\nunflushThreshold=1000", "safe": "numPartitions=2\nunflushThreshold=0"}
XID = "XID:4660:0a0b:0c:host"
PLACES = (("safe", 0), ("fast", 1))
ROUNDS = 6
PRODUCERS = 4
LOAD_SECONDS = 0.4


def test_a_prepared_transaction_survives_kill_9_and_is_committed_afterwards(tmp_path: Path) -> None:
    ini = server_ini(tmp_path / "data", TOPICS, system=f"dataLogPath={tmp_path / 'log'}")
    with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
        ok(connection, tx(XID, "BEGIN", 60, "host"), tx_put(XID, "safe", 0, b"one"), tx_put(XID, "fast", 1, b"two"))
        ok(connection, tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", "safe", 0, b"never prepared"))
        assert ok(connection, tx(XID, "PREPARE", "host")) == "0"
        broker.kill()
    assert (tmp_path / "log" / "transactions" / "redo.1").exists()
    with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
        assert recover(connection) == [XID]
        assert bodies(connection, "safe", 0) == []
        broker.kill()  # again, with nothing decided
    with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
        assert recover(connection) == [XID]
        assert ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host")) == ""
        broker.kill()
    with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
        assert (bodies(connection, "safe", 0), bodies(connection, "fast", 1)) == ([b"one"], [b"two"])
        assert recover(connection) == []
        assert connection.ask(tx(XID, "COMMIT_TWO_PHASE")).text.startswith("XAException:code=-4,")
        assert broker.stop() == 0


def test_every_transaction_is_there_whole_or_not_at_all_when_the_broker_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    ini = server_ini(tmp_path / "data", TOPICS)
    committed: set[str] = set()
    for number in range(ROUNDS + 1):
        with ForkedBroker(tmp_path, ini) as broker:
            with broker.connect() as connection:
                for key in recover(connection):
                    ok(connection, tx(key, "ROLLBACK"))
                verify(connection, committed)
            if number == ROUNDS:
                assert broker.stop() == 0
                break
            producers = [Transactions(broker, f"{number}.{each}", PLACES) for each in range(PRODUCERS)]
            kill_under(broker, producers, LOAD_SECONDS)
            for producer in producers:
                committed.update(producer.acknowledged)
    assert len(committed) > ROUNDS


def verify(connection: Connection, committed: set[str]) -> None:
    # what the start had to append to a partition with synchronous flush is shown when its sync ends
    eventually(lambda: len({len(bodies(connection, *place)) for place in PLACES}) == 1, 20, "what the start appended")
    check_whole(connection, PLACES, committed)


BODY_BYTES = 256 << 10
BLOCK = [bytes([number]) * BODY_BYTES for number in range(32)]
LARGE_ROUNDS = 5


def test_a_large_block_is_there_once_when_the_broker_is_killed_while_it_is_written(tmp_path: Path) -> None:
    """Whole records of it are at the end of the partition then."""
    ini = server_ini(tmp_path / "data", TOPICS)
    for number in range(LARGE_ROUNDS):
        key = f"TX:s:{number}"
        with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
            verify_large(bodies(connection, "fast", 0), number)
            ok(connection, tx(key, "BEGIN"), *(tx_put(key, "fast", 0, body + b"%d" % number) for body in BLOCK))
            before = data_bytes(tmp_path)
            connection.send(tx(key, "COMMIT_ONE_PHASE"))
            deadline = time.monotonic() + 60
            while data_bytes(tmp_path) == before:  # without a sleep: the write takes milliseconds
                assert time.monotonic() < deadline
            broker.kill()
    with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
        verify_large(bodies(connection, "fast", 0), LARGE_ROUNDS)
        assert broker.stop() == 0


def data_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in (tmp_path / "data" / "fast-0").glob("*.meta"))


def verify_large(found: list[bytes], rounds: int) -> None:
    assert found == [body + b"%d" % number for number in range(rounds) for body in BLOCK]
