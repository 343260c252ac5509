"""A move that transactions hold in `closing`, while the leader of one end is killed: the partitions stay closed, and
the move ends when the transactions have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.record import checksum
from metaq.protocol.text import encode_put
from tests.broker_process import Connection, RunningBroker
from tests.integration.background import Repeating
from tests.integration.client_cluster import running_brokers
from tests.integration.set_nodes import SetNodes
from tests.integration.test_moves import FAST, TOPIC, Load
from tests.integration.transaction_texts import ok, tx, tx_put
from tests.waiting import eventually

XID = "XID:4660:0a0b:0c:host"
LOCAL = "TX:s:1"
PROBE = b"probe:1"
SET_TOPICS = {TOPIC: "numPartitions=2"}


class Probing(Repeating):
    """Puts into the closed partition at each process of the source, all the time. `taken`: what was not refused."""

    def __init__(self, processes: Callable[[], list[RunningBroker]]) -> None:
        super().__init__(self.probe, 0.002)
        self.taken: list[str] = []
        self.refused = 0
        self._processes = processes

    def probe(self, _step: int) -> None:
        for process in self._processes():
            with suppress(OSError), process.connect(timeout=5.0) as connection:  # it may be dead now
                answer = connection.ask(encode_put(TOPIC, 0, 0, checksum(PROBE), 1, PROBE))
                if answer.code == 200:
                    self.taken.append(answer.text)
                self.refused += answer.code != 200


def hold(source: RunningBroker) -> Connection:
    """Transactions with a message for the partition: a prepared one, and one that ends with the connection."""
    connection = source.connect()
    ok(connection, tx(XID, "BEGIN", 300, "host"), tx_put(XID, TOPIC, 0, b"xa:1"), tx(XID, "PREPARE", "host"))
    ok(connection, tx(LOCAL, "BEGIN"), tx_put(LOCAL, TOPIC, 0, b"local:1"))
    return connection


class Held:
    """A move of TOPIC from 0 to 1 under load, held in `closing`."""

    def __init__(self, connect: str, moves: MovesOfCluster, move: Move, probing: Probing) -> None:
        self.connect = connect
        self.moves = moves
        self.move = move
        self.probing = probing

    def wait_for(self, *transactions: str) -> None:
        """Until the move waits in `closing` for exactly these."""

        def waits() -> bool:
            progress = self.moves.look(self.move)
            assert progress.move.state is MoveState.CLOSING
            named = progress.waits_for.partition("transactions that have messages of ")[2].partition(": ")[2]
            return sorted(named.split(", ")) == sorted(transactions)

        eventually(waits, what=f"the wait for {transactions}")

    def end(self) -> None:
        """The transactions have ended: the move does, too."""
        eventually(lambda: self.moves.look(self.move).move.state is MoveState.DONE, what="the move")


@contextmanager
def held_move(connect: str, processes: Callable[[], list[RunningBroker]], expected: list[str]) -> Iterator[Held]:
    """expected: payloads of the transactions that are stored in the end, filled by the test."""
    load = Load(connect)
    probing = Probing(processes)
    with ZkSession(connect) as session:
        moves = MovesOfCluster(session)
        held = Held(connect, moves, moves.begin(moves.plan(TOPIC, 0, 1, FAST)), probing)
        eventually(lambda: moves.look(held.move).move.state is MoveState.CLOSING, what="the closing")
        held.wait_for(XID, LOCAL)
        probing.start()
        yield held
        held.end()
    load.end(4, expected)
    probing.end()
    assert probing.errors == []
    assert probing.refused > 50
    assert probing.taken == []


def test_the_next_leader_of_the_source_keeps_the_partitions_closed(
    chroot: str, sets: tuple[SetNodes, SetNodes]
) -> None:
    source, _ = sets
    first = source.leader
    second = "b" if first == "a" else "a"
    expected = ["xa:1"]  # the other one ends with its connection
    old = hold(source.nodes[first])
    with held_move(chroot, lambda: list(source.nodes.values()), expected) as held:
        source.kill(first)
        source.wait_for_leader(second)
        held.wait_for(XID)
        refused = held.probing.refused
        eventually(lambda: held.probing.refused > refused + 50, what="refusals of the next leader")
        source.start(first)
        source.wait_in_sync("a", "b")
        held.wait_for(XID)
        with source.nodes[second].connect() as connection:
            ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host"))
    old.close()


def test_the_next_leader_of_the_target_goes_on_with_the_move(chroot: str, sets: tuple[SetNodes, SetNodes]) -> None:
    source, target = sets
    first = target.leader
    expected = ["xa:1", "local:1"]
    with (
        hold(source.nodes[source.leader]) as connection,
        held_move(chroot, lambda: list(source.nodes.values()), expected) as held,
    ):
        target.kill(first)
        target.wait_for_leader("c" if first == "d" else "d")
        held.wait_for(XID, LOCAL)
        target.start(first)
        ok(connection, tx(LOCAL, "COMMIT_ONE_PHASE"))
        held.wait_for(XID)
        ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host"))


def test_a_lone_source_is_killed_and_comes_back_closed(chroot: str, tmp_path: Path) -> None:
    with running_brokers(chroot, tmp_path, {TOPIC: 2}, count=2) as brokers:
        old = hold(brokers.running[0])
        with held_move(chroot, lambda: [brokers.running[0]], ["xa:1"]) as held:
            brokers.running[0].kill()
            refused = held.probing.refused
            brokers.start(0)
            held.wait_for(XID)
            eventually(lambda: held.probing.refused > refused + 50, what="refusals after the restart")
            with brokers.running[0].connect() as connection:
                ok(connection, tx(XID, "COMMIT_TWO_PHASE", "host"))
        old.close()
