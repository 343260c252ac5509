"""Clients of a broker set whose leader goes: they follow it, and their users see a pause at most."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial

import pytest

from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, SendResult, TopicPartition
from metaq.broker.sets import tuning
from metaq.client.questions.admin import hand_over
from metaq.client.questions.cluster import Cluster
from metaq.client.questions.partition_bounds import partition_bounds
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.client.transport.metadata import parse_address
from metaq.protocol.errors import NoPartition, RequestRefused, TransactionLost
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.pulls import PullRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.broker_process import RunningBroker
from tests.integration.background import Repeating
from tests.integration.client_cluster import SHORT_SESSION_SECONDS
from tests.integration.set_nodes import SetNodes
from tests.waiting import DEADLINE, eventually

TOPIC = "t"
PARTITIONS = 4
ZONES = {"a": "east", "b": "west"}
SET_SETTINGS = {"zones": ZONES}


class Load:
    """A producer that waits for each message, one that does not, and a group of one, until `end`."""

    def __init__(self, connect: str) -> None:
        self.acknowledged: Counter[bytes] = Counter()
        self.received: Counter[bytes] = Counter()
        self.revoked: list[object] = []
        self.last_sent = self.last_received = self.longest_pause = 0.0
        self._futures: list[tuple[bytes, Future[SendResult]]] = []
        self._producer = Producer(connect)
        self._consumer = Consumer(connect, group="g", topics=[TOPIC], on_revoked=self.revoked.append)
        self._sending = [Repeating(self._send_and_wait, 0.002), Repeating(self._send, 0.001)]
        self._receiving = Repeating(self._consume, 0.0)
        for each in (*self._sending, self._receiving):
            each.start()

    @property
    def errors(self) -> list[Exception]:
        return [error for each in (*self._sending, self._receiving) for error in each.errors]

    def _send_and_wait(self, number: int) -> None:
        payload = b"waited-%d" % number
        started = time.monotonic()
        self._producer.send(TOPIC, payload)
        self.last_sent = time.monotonic()
        self.longest_pause = max(self.longest_pause, self.last_sent - started)
        self.acknowledged[payload] += 1

    def _send(self, number: int) -> None:
        payload = b"async-%d" % number
        self._futures.append((payload, self._producer.send_async(TOPIC, payload, key=str(number % 7))))

    def _consume(self, _step: int) -> None:
        for message in self._consumer.poll(timeout=0.1):
            self.received[bytes(message.payload)] += 1
            self.last_received = time.monotonic()

    def end(self) -> None:
        for each in self._sending:
            each.end()
        for payload, future in self._futures:
            future.result(DEADLINE)
            self.acknowledged[payload] += 1
        eventually(lambda: not self.acknowledged - self.received, what="all messages")
        self._receiving.end()
        self._consumer.close()
        self._producer.close()


def _terminate(node: RunningBroker) -> None:
    node.process.terminate()
    assert node.process.wait(DEADLINE) == 0


def _has_handed_over(nodes: SetNodes) -> bool:
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
    ("go", "seconds"),
    [(_terminate, 3.0), (RunningBroker.kill, 5.0), (_freeze, SHORT_SESSION_SECONDS + 4)],
    ids=["term", "kill", "freeze"],
)
def test_producers_and_consumers_follow_a_leader_that_goes(
    nodes: SetNodes, go: Callable[[RunningBroker], None], seconds: float
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


def test_a_reader_is_led_to_the_leader_by_any_node(nodes: SetNodes) -> None:
    with Producer(nodes.connect) as producer:
        partition = producer.send(TOPIC, b"first").partition
        for node in nodes.nodes.values():
            with PartitionReader(f"127.0.0.1:{node.port}", partition) as reader:
                assert [bytes(each.payload) for each in reader.poll(timeout=DEADLINE)] == [b"first"]
                assert [bytes(each.payload) for each in reader.fetch(0)] == [b"first"]


def test_transactions_and_questions_go_on_with_the_next_leader(nodes: SetNodes) -> None:
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
        master = nodes.view().master
        assert master is not None
        assert master.url is not None
        assert parse_address(master.url) != former


# --- reading from followers -------------------------------------------------------------------------------------------


def _code(node: RunningBroker, request: PullRequest) -> int:
    connection = open_connection(Endpoint("127.0.0.1", node.port), ConnectionConfig())
    try:
        reply = connection.call(lambda opaque: (encode_frame(RequestCode.PULL, opaque, request.to_ext()),))
        assert isinstance(reply, Frame)
        return reply.code
    finally:
        connection.close()


def test_a_follower_answers_only_those_that_ask_for_one(nodes: SetNodes) -> None:
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


def test_a_consumer_reads_from_the_follower_of_its_zone_while_there_is_one(nodes: SetNodes) -> None:
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
            where = consumer._core.nearest
            assert where is not None
            leader = consumer._member.endpoint_of(TopicPartition(TOPIC, 0, 0))
            chosen = where.choose(TopicPartition(TOPIC, 0, 0), leader, consumer._pool.down, time.monotonic())
            open_to = {each.endpoint.port for each in consumer._fetcher._connections if not each.closed}
            return chosen == Endpoint("127.0.0.1", node.port) and node.port in open_to

        eventually(lambda: read_from(nodes.nodes[name]))
        nodes.kill(name)
        eventually(lambda: read_from(nodes.nodes[former]))
        nodes.start(name)
        eventually(lambda: read_from(nodes.nodes[name]))
        assert nodes.leader == former
        _terminate(nodes.nodes[former])
        eventually(lambda: nodes.leader == name and read_from(nodes.nodes[name]))
        assert received == sent


def _hand_over(nodes: SetNodes, leader: str) -> None:
    eventually(lambda: _has_handed_over(nodes))


def _restart(nodes: SetNodes, leader: str) -> None:
    _terminate(nodes.nodes[leader])
    nodes.start(leader)


def _kill(nodes: SetNodes, leader: str) -> None:
    nodes.kill(leader)
    nodes.start(leader)


@pytest.mark.parametrize(
    ("go", "producers", "partitions", "may_lose"),
    [(_hand_over, 3, PARTITIONS, False), (_restart, 3, PARTITIONS, False), (_kill, 8, 1, True)],
    ids=["hands over", "stops", "is killed"],
)
def test_no_short_transaction_is_unknown_when_the_leader_goes(
    nodes: SetNodes, go: Callable[[SetNodes, str], None], producers: int, partitions: int, may_lose: bool
) -> None:
    """Many commits are under way each time. What they say is what readers see, and only a kill loses transactions."""
    committed: list[bytes] = []
    lost: list[bytes] = []
    places = [TopicPartition(TOPIC, 0, partition) for partition in range(partitions)]

    def transact(producer: Producer, name: int, number: int) -> None:
        payload = b"%d-%d" % (name, number)
        try:
            with producer.transaction() as transaction:
                for place in places:
                    transaction.send(TOPIC, payload, partition=place)
            committed.append(payload)
        except (TransactionLost, NoPartition):  # the latter with its first message: nobody leads yet
            lost.append(payload)

    with ExitStack() as working:
        work = []
        for name in range(producers):
            producer = working.enter_context(Producer(nodes.connect))
            work.append(working.enter_context(Repeating(partial(transact, producer, name), 0.0)))
        for _ in range(4):
            before = len(committed)
            eventually(lambda: len(committed) > before + 20)  # noqa: B023
            epoch = nodes.epoch
            go(nodes, nodes.leader)
            nodes.wait_in_sync("a", "b", after=epoch)
    assert [error for each in work for error in each.errors] == []
    for place in places:
        with Cluster(nodes.connect) as cluster:
            end = cluster.ask(place, lambda connection: partition_bounds(connection, place)).end  # noqa: B023
        with PartitionReader(f"127.0.0.1:{nodes.nodes[nodes.leader].port}", place) as reader:
            found: list[bytes] = []
            while reader.position < end:
                found += [bytes(each.payload) for each in reader.poll(timeout=1.0)]
        assert Counter(found) == Counter(committed)
    assert not set(lost) & set(committed)
    assert may_lose or lost == []


def test_a_hand_over_waits_for_an_open_transaction_and_new_ones_begin_with_the_next_leader(nodes: SetNodes) -> None:
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


def test_a_hand_over_does_not_wait_for_a_transaction_that_stays_open(nodes: SetNodes) -> None:
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
