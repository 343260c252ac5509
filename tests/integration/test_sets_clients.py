"""Clients of a broker set whose leader goes: they follow it, and their users see a pause at most."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, TopicPartition
from metaq.broker.sets import tuning
from metaq.client.config import ConnectionConfig
from metaq.client.connection import Endpoint, open_connection
from metaq.client.metadata import parse_address
from metaq.client.questions.admin import hand_over
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partitions import partition_bounds
from metaq.coordination.session import ZkSession
from metaq.coordination.set_view import SetView, read_set
from metaq.protocol.errors import NoPartition, RequestRefused, TransactionLost
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import RunningBroker, server_ini
from tests.waiting import DEADLINE, eventually

TOPIC = "t"
PARTITIONS = 4
SESSION_SECONDS = 2.0


class BrokerSet:
    """Nodes of the set 0. settings: more lines of the topic's section in server.ini."""

    def __init__(self, connect: str, directory: Path, settings: str = "") -> None:
        self.connect = connect
        self._settings = f"numPartitions={PARTITIONS}\n{settings}"
        self._directory = directory
        self.nodes: dict[str, RunningBroker] = {}
        self._session = ZkSession(connect)

    def start(self, name: str, zone: str = "") -> RunningBroker:
        directory = self._directory / name
        (directory / "data").mkdir(parents=True, exist_ok=True)
        zookeeper = f"zk.zkConnect={self.connect}\nzk.zkSessionTimeoutMs={int(SESSION_SECONDS * 1000)}"
        ini = server_ini(directory / "data", {TOPIC: self._settings}, zookeeper=zookeeper)
        if name in self.nodes:  # where it was
            ini = ini.replace("serverPort=0", f"serverPort={self.nodes[name].port}")
        module = ("-m", "metaq", "broker", "--node", name, "--zone", zone, "-f")
        self.nodes[name] = RunningBroker(directory, ini, module=module)
        return self.nodes[name]

    def begin(self) -> None:
        self._session.start(DEADLINE)
        eventually(lambda: len(self.in_sync) == len(self.nodes) and self.view.master is not None)

    @property
    def view(self) -> SetView:
        return read_set(self._session, 0)

    @property
    def in_sync(self) -> tuple[str, ...]:
        state = self.view.state
        return () if state is None else tuple(state.in_sync)

    @property
    def leader(self) -> str:
        state = self.view.state
        assert state is not None
        return state.leader

    @property
    def epoch(self) -> int:
        state = self.view.state
        assert state is not None
        return state.epoch

    def wait_for_election(self, after: int) -> None:
        """Until a leader of a later epoch has all nodes in sync. It may be the former one: a node that was killed and
        started again may win the election, and does if it was alone in the in-sync set."""
        eventually(
            lambda: self.epoch > after and len(self.in_sync) == len(self.nodes),
            what=f"an election after epoch {after} and a whole in-sync set",
        )

    def stop(self) -> None:
        self._session.close()
        for node in self.nodes.values():
            node.process.kill()
            node.process.wait(DEADLINE)


@pytest.fixture
def nodes(chroot: str, tmp_path: Path) -> Iterator[BrokerSet]:
    found = BrokerSet(chroot, tmp_path)
    try:
        found.start("a", "east")
        found.start("b", "west")
        found.begin()
        yield found
    finally:
        found.stop()


class Load:
    """A producer that waits for each message, one that does not, and a group of one, until `end`."""

    def __init__(self, connect: str) -> None:
        self.acknowledged: Counter[bytes] = Counter()
        self.received: Counter[bytes] = Counter()
        self.revoked: list[int] = []
        self.errors: list[BaseException] = []
        self.last_sent = self.last_received = 0.0
        self.longest_pause = 0.0
        self._connect = connect
        self._ended, self._sent = threading.Event(), threading.Event()
        self._producer = Producer(connect)
        work = (self._send_and_wait, self._send, self._consume)
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]
        for each in self._threads:
            each.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.errors.append(error)

    def _send_and_wait(self) -> None:
        number = 0
        while not self._ended.wait(0.002):
            payload = b"waited-%d" % number
            started = time.monotonic()
            self._producer.send(TOPIC, payload)
            self.longest_pause = max(self.longest_pause, time.monotonic() - started)
            self.last_sent = time.monotonic()
            self.acknowledged[payload] += 1
            number += 1

    def _send(self) -> None:
        number = 0
        futures = []
        while not self._ended.wait(0.001):
            payload = b"async-%d" % number
            futures.append((payload, self._producer.send_async(TOPIC, payload, key=str(number % 7))))
            number += 1
        for payload, future in futures:
            future.result(DEADLINE)
            self.acknowledged[payload] += 1

    def _consume(self) -> None:
        def revoked(partitions: object) -> None:
            self.revoked.append(1)

        with Consumer(self._connect, group="g", topics=[TOPIC], on_revoked=revoked) as consumer:
            while not self._sent.is_set() or self.acknowledged - self.received:
                for message in consumer.poll(timeout=0.1):
                    self.received[bytes(message.payload)] += 1
                    self.last_received = time.monotonic()

    def end(self) -> None:
        self._ended.set()
        for each in self._threads[:-1]:
            each.join(DEADLINE)
        self._sent.set()
        self._threads[-1].join(DEADLINE)
        assert not any(each.is_alive() for each in self._threads), "some messages did not come"
        self._producer.close()


def _terminate(node: RunningBroker) -> None:
    node.process.terminate()
    assert node.process.wait(DEADLINE) == 0


def _kill(node: RunningBroker) -> None:
    node.process.kill()
    node.process.wait(DEADLINE)


def _has_handed_over(nodes: BrokerSet) -> bool:
    """False: the other node is not live yet."""
    with Cluster(nodes.connect) as cluster:
        try:
            hand_over(cluster.connection(0))
        except RequestRefused as error:
            if "no other node is in sync" not in str(error):
                raise
            return False
        return True


def _freeze(node: RunningBroker) -> None:
    node.process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize(
    ("go", "seconds"), [(_terminate, 3.0), (_kill, 5.0), (_freeze, SESSION_SECONDS + 4)], ids=["term", "kill", "freeze"]
)
def test_producers_and_consumers_follow_a_leader_that_goes(
    nodes: BrokerSet, go: Callable[[RunningBroker], None], seconds: float
) -> None:
    load = Load(nodes.connect)
    eventually(lambda: len(load.received) > 200)
    leader = nodes.leader
    gone = time.monotonic()
    go(nodes.nodes[leader])
    eventually(lambda: load.last_sent > gone + seconds and load.last_received > gone + seconds)
    load.end()
    assert load.errors == []
    assert nodes.leader != leader
    assert not load.acknowledged - load.received
    assert load.revoked == []
    assert load.longest_pause < seconds


def test_a_reader_is_led_to_the_leader_by_any_node(nodes: BrokerSet) -> None:
    with Producer(nodes.connect) as producer:
        partition = producer.send(TOPIC, b"first").partition
        for node in nodes.nodes.values():
            with PartitionReader(f"127.0.0.1:{node.port}", partition) as reader:
                assert [bytes(each.payload) for each in reader.poll(timeout=DEADLINE)] == [b"first"]
                assert [bytes(each.payload) for each in reader.fetch(0)] == [b"first"]


def test_transactions_and_questions_go_on_with_the_next_leader(nodes: BrokerSet) -> None:
    with Producer(nodes.connect) as producer, Cluster(nodes.connect) as cluster:
        partition = TopicPartition(TOPIC, 0, 0)
        producer.send(TOPIC, b"before", partition=partition)
        former = cluster.endpoint(0)
        assert cluster.ask(partition, lambda connection: partition_bounds(connection, partition)).end > 0
        _terminate(nodes.nodes[nodes.leader])
        with producer.transaction() as transaction:
            transaction.send(TOPIC, b"in it", partition=partition)
        survey = cluster.survey()
        assert survey.answer(partition, partition_bounds).end == 51
        master = nodes.view.master
        assert master is not None
        assert master.url is not None
        assert parse_address(master.url) != former


# --- reading from followers -------------------------------------------------------------------------------------------

ZONES = {"a": "east", "b": "west"}


def _code(node: RunningBroker, request: PullRequest) -> int:
    connection = open_connection(Endpoint("127.0.0.1", node.port), ConnectionConfig())
    try:
        reply = connection.call(lambda opaque: (encode_frame(RequestCode.PULL, opaque, request.to_ext()),))
        assert isinstance(reply, Frame)
        return reply.code
    finally:
        connection.close()


def test_a_follower_answers_only_those_that_ask_for_one(nodes: BrokerSet) -> None:
    with Producer(nodes.connect) as producer:
        partition = producer.send(TOPIC, b"first").partition
    (follower,) = (node for name, node in nodes.nodes.items() if name != nodes.leader)
    request = PullRequest(TOPIC, partition.partition, 0, 1000, wait_ms=1000)
    assert _code(follower, request) == ResponseCode.NOT_LEADER
    request.follower = True
    assert _code(follower, request) == ResponseCode.SUCCESS
    request.offset = 25
    assert _code(follower, request) == ResponseCode.PULL_NOT_FOUND
    request.offset = 26  # behind all that it has: another node may know
    assert _code(follower, request) == ResponseCode.NOT_LEADER


def test_a_consumer_reads_from_the_follower_of_its_zone_while_there_is_one(nodes: BrokerSet) -> None:
    former = nodes.leader
    (name,) = nodes.nodes.keys() - {former}
    received: list[bytes] = []
    config = ConsumerConfig(read_from="nearest", zone=ZONES[name], error_max_seconds=0.5)
    with (
        Producer(nodes.connect) as producer,
        Consumer(nodes.connect, group="near", topics=[TOPIC], config=config) as consumer,
    ):
        sent: list[bytes] = []

        def read_from(node: RunningBroker) -> bool:
            """Whether the last messages came from this node."""
            sent.append(b"%d" % len(sent))
            producer.send(TOPIC, sent[-1], partition=TopicPartition(TOPIC, 0, 0))
            while len(received) < len(sent):
                received.extend(bytes(each.payload) for each in consumer.poll(timeout=1.0))
            where = consumer._fetcher._nearest
            assert where is not None
            leader = consumer._member.endpoint_of(TopicPartition(TOPIC, 0, 0))
            chosen = where.choose(TopicPartition(TOPIC, 0, 0), leader, consumer._pool.down)
            open_to = {each.endpoint.port for each in consumer._fetcher._connections if not each.closed}
            return chosen == Endpoint("127.0.0.1", node.port) and node.port in open_to

        eventually(lambda: read_from(nodes.nodes[name]))
        _kill(nodes.nodes[name])
        eventually(lambda: read_from(nodes.nodes[former]))
        nodes.start(name, ZONES[name])
        eventually(lambda: read_from(nodes.nodes[name]))
        assert nodes.leader == former
        _terminate(nodes.nodes[former])
        eventually(lambda: nodes.leader == name and read_from(nodes.nodes[name]))
        assert received == sent


@pytest.mark.parametrize("hands_over", [True, False])
def test_short_transactions_are_committed_while_the_leader_hands_over(nodes: BrokerSet, hands_over: bool) -> None:
    """None is lost or unknown, and what the commits say is what readers see."""
    committed: list[bytes] = []
    lost: list[bytes] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def work(name: str) -> None:
        number = 0
        try:
            with Producer(nodes.connect) as producer:
                while not ended.is_set():
                    payload = b"%s-%d" % (name.encode(), number)
                    number += 1
                    try:
                        with producer.transaction() as transaction:
                            for partition in range(PARTITIONS):
                                transaction.send(TOPIC, payload, partition=TopicPartition(TOPIC, 0, partition))
                        committed.append(payload)
                    except TransactionLost:
                        lost.append(payload)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
    for each in threads:
        each.start()
    for _ in range(4):
        before = len(committed)
        eventually(lambda: len(committed) > before + 20 or errors)  # noqa: B023
        leader, epoch = nodes.leader, nodes.epoch
        if hands_over:
            eventually(lambda: _has_handed_over(nodes))
        else:
            _terminate(nodes.nodes[leader])
            nodes.start(leader, ZONES[leader])
        nodes.wait_for_election(epoch)
    ended.set()
    for each in threads:
        each.join(DEADLINE)
    assert errors == []
    for partition in range(PARTITIONS):
        with Cluster(nodes.connect) as cluster:
            place = TopicPartition(TOPIC, 0, partition)
            end = cluster.ask(place, lambda connection: partition_bounds(connection, place)).end  # noqa: B023
            with PartitionReader(f"127.0.0.1:{nodes.nodes[nodes.leader].port}", place) as reader:
                found: list[bytes] = []
                while reader.position < end:
                    found += [bytes(each.payload) for each in reader.poll(timeout=1.0)]
        assert Counter(found) == Counter(committed)
    assert lost == []


def test_a_hand_over_waits_for_an_open_transaction_and_new_ones_begin_with_the_next_leader(nodes: BrokerSet) -> None:
    former = nodes.leader
    place = TopicPartition(TOPIC, 0, 0)
    with Producer(nodes.connect) as producer, Producer(nodes.connect) as other:
        transaction = producer.transaction()
        transaction.send(TOPIC, b"1", partition=place)
        nodes.nodes[former].process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert nodes.leader == former
        other.send(TOPIC, b"single", partition=place)  # meanwhile everything else goes on
        transaction.send(TOPIC, b"2", partition=place)
        transaction.commit()
        with other.transaction() as following:
            following.send(TOPIC, b"3", partition=place)
        assert nodes.leader != former
        assert nodes.nodes[former].process.wait(DEADLINE) == 0
        with PartitionReader(f"127.0.0.1:{nodes.nodes[nodes.leader].port}", place) as reader:
            found = [bytes(each.payload) for each in reader.fetch(0)]
        assert found == [b"single", b"1", b"2", b"3"]


def test_a_hand_over_does_not_wait_for_a_transaction_that_stays_open(nodes: BrokerSet) -> None:
    former = nodes.leader
    with Producer(nodes.connect) as producer:
        transaction = producer.transaction()
        transaction.send(TOPIC, b"1", partition=TopicPartition(TOPIC, 0, 0))
        begun = time.monotonic()
        assert _has_handed_over(nodes)
        assert time.monotonic() - begun >= tuning.TRANSACTIONS_SECONDS
        assert nodes.leader != former
        with pytest.raises(TransactionLost):
            transaction.commit()
        with producer.transaction() as following:
            following.send(TOPIC, b"2", partition=TopicPartition(TOPIC, 0, 0))


def test_what_became_of_a_commit_is_learnt_from_the_next_leader_when_its_own_is_killed(nodes: BrokerSet) -> None:
    """Many commits are under way at each kill, and none of them stays unknown."""
    committed: list[bytes] = []
    lost: list[bytes] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def work(name: str) -> None:
        place = TopicPartition(TOPIC, 0, 0)
        try:
            with Producer(nodes.connect) as producer:
                for number in count():
                    if ended.is_set():
                        return
                    payload = b"%s-%d" % (name.encode(), number)
                    try:
                        with producer.transaction() as transaction:
                            transaction.send(TOPIC, payload, partition=place)
                        committed.append(payload)
                    except (TransactionLost, NoPartition):  # the latter with its first message: nobody leads yet
                        lost.append(payload)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
    for each in threads:
        each.start()
    for _ in range(4):
        before = len(committed)
        eventually(lambda: len(committed) > before + 20 or errors)  # noqa: B023
        leader, epoch = nodes.leader, nodes.epoch
        _kill(nodes.nodes[leader])
        nodes.start(leader, ZONES[leader])
        nodes.wait_for_election(epoch)
    ended.set()
    for each in threads:
        each.join(DEADLINE)
    assert errors == []
    place = TopicPartition(TOPIC, 0, 0)
    with Cluster(nodes.connect) as cluster:
        end = cluster.ask(place, lambda connection: partition_bounds(connection, place)).end
    with PartitionReader(f"127.0.0.1:{nodes.nodes[nodes.leader].port}", place) as reader:
        found: list[bytes] = []
        while reader.position < end:
            found += [bytes(each.payload) for each in reader.poll(timeout=1.0)]
    assert Counter(found) == Counter(committed)
    assert not set(lost) & set(committed)
