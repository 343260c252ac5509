"""Partitions move between real brokers while our producers and consumers run: nothing is lost, and nothing repeated."""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from itertools import pairwise

import pytest

from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, ProducerConfig, TopicPartition
from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.brokers import ClusterView
from metaq.coordination.move_records import MoveState
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import ConfigError
from tests.integration.client_cluster import running_brokers
from tests.waiting import DEADLINE, eventually

TOPIC = "trades"
KEYS = 20
FAST = 1 << 30
Got = tuple[TopicPartition, int, str]
CONFIG = ConsumerConfig(auto_commit_seconds=0.1)


class Sending(threading.Thread):
    """Sends numbered messages with keys, several at a time, until it is stopped. `sent`: payload -> its result."""

    def __init__(self, connect, topic=TOPIC):
        super().__init__(daemon=True)
        self.sent = {}
        self.errors = []
        self._connect = connect
        self._topic = topic
        self._ended = threading.Event()

    def run(self):
        number = 0
        config = ProducerConfig(delivery_timeout_seconds=60.0, retry_max_seconds=0.2)
        with Producer(self._connect, config=config) as producer:
            while not self._ended.is_set():
                futures = {}
                for _ in range(20):
                    key = f"k{number % KEYS}"
                    payload = f"{key}:{number}"
                    futures[payload] = producer.send_async(self._topic, payload.encode(), key=key)
                    number += 1
                for payload, future in futures.items():
                    try:
                        self.sent[payload] = future.result(DEADLINE)
                    except Exception as error:
                        self.errors.append((payload, error))
                time.sleep(0.005)

    def stop(self):
        self._ended.set()
        self.join(DEADLINE)


class Reading(threading.Thread):
    """A member of a group. `got`: (partition, offset, payload) in the order in which they came."""

    def __init__(self, connect, group, got, topic=TOPIC, start="earliest", **options):
        super().__init__(daemon=True)
        self._got = got
        self._ended = threading.Event()
        self.consumer = Consumer(connect, group=group, topics=[topic], config=CONFIG, start=start, **options)

    def run(self):
        with self.consumer as consumer:
            while not self._ended.is_set():
                for message in consumer.poll(timeout=0.05):
                    self._got.append((message.partition, message.offset, message.payload.decode()))

    def stop(self):
        self._ended.set()
        self.join(DEADLINE)


def command(connect, *arguments, check=True, timeout=DEADLINE):
    done = subprocess.run(
        [sys.executable, "-m", "metaq", *arguments, "--zk", connect],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def stored(connect, partitions):
    """Payloads of each partition, in order, as they lie on the brokers."""
    found = {}
    with ZkSession(connect) as session:
        nodes = ClusterView(session).brokers()
        addresses = {broker: f"{each.master.host}:{each.master.port}" for broker, each in nodes.items() if each.master}
    for partition in partitions:
        with PartitionReader(addresses[partition.broker], partition, start="earliest") as reader:
            payloads, quiet = [], 0
            while quiet < 3:
                messages = reader.poll(timeout=0.2)
                payloads += [message.payload.decode() for message in messages]
                quiet = 0 if messages else quiet + 1
            found[partition] = payloads
    return found


def check_order(got):
    """Each key's messages come in their order within a partition."""
    by_key = defaultdict(list)
    for partition, offset, payload in got:
        by_key[partition, payload.partition(":")[0]].append((offset, int(payload.partition(":")[2])))
    wrong = {
        key: [(a, b) for a, b in pairwise(numbers) if not (a[0] < b[0] and a[1] < b[1])]
        for key, numbers in by_key.items()
    }
    assert not {key: pairs for key, pairs in wrong.items() if pairs}


def test_a_topic_moves_under_load_and_nothing_is_lost_or_repeated(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 3, "other": 1}, count=2):
        sending = Sending(chroot)
        sending.start()
        got: list[Got] = []
        members = [Reading(chroot, "g", got) for _ in range(3)]
        for each in members:
            each.start()
        late: list[Got] = []
        old = Reading(chroot, "late", late)  # it leaves offsets behind, and comes back when the move is done
        old.start()
        eventually(lambda: len(sending.sent) > 500 and len(got) > 300 and late, what="messages")
        old.stop()
        done = command(chroot, "partitions", "move", "--topic", TOPIC, "--from", "0", "--to", "1", "--json")
        assert json.loads(done.stdout)["to"] == "1-3"
        count = len(sending.sent)
        eventually(lambda: len(sending.sent) > count + 500, what="messages behind the move")
        sending.stop()
        assert sending.errors == []
        again = Reading(chroot, "late", late)
        again.start()
        eventually(lambda: len(got) >= len(sending.sent) and len(late) >= len(sending.sent), what="all messages")
        time.sleep(1.0)
        for each in (*members, again):
            each.stop()
        with Producer(chroot) as producer:
            partitions = producer.partitions(TOPIC)
        assert list(partitions) == [TopicPartition(TOPIC, 1, each) for each in range(6)]
        there = [payload for payloads in stored(chroot, partitions).values() for payload in payloads]
        assert sorted(there) == sorted(sending.sent)
        for read in (got, late):
            assert sorted(payload for _, _, payload in read) == sorted(sending.sent)
        check_order(got)
        check_order(late)


def test_the_last_partitions_move_alone_and_the_rest_stays(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 4}, count=2) as brokers, Producer(chroot) as producer:
        for number in range(400):
            producer.send(TOPIC, b"%d" % number, key=str(number))
        before = stored(chroot, [TopicPartition(TOPIC, 0, each) for each in range(4)])
        command(chroot, "partitions", "move", "-t", TOPIC, "--from", "0", "--to", "1", "--partitions", "2-3")
        eventually(lambda: len(producer.partitions(TOPIC)) == 8, what="the new partitions")
        assert list(producer.partitions(TOPIC)) == [
            *(TopicPartition(TOPIC, 0, each) for each in range(2)),
            *(TopicPartition(TOPIC, 1, each) for each in range(6)),
        ]
        after = stored(chroot, [TopicPartition(TOPIC, 1, 4), TopicPartition(TOPIC, 1, 5)])
        assert list(after.values()) == [before[TopicPartition(TOPIC, 0, each)] for each in (2, 3)]
        for broker in (0, 1):  # what was moved stays so
            brokers.running[broker].kill()
            brokers.start(broker)
        eventually(lambda: len(producer.partitions(TOPIC)) == 8, what="the producer to see both again")
        with pytest.raises(ConfigError, match="only its last ones"), ZkSession(chroot) as session:
            MovesOfCluster(session).plan(TOPIC, 0, 1, FAST, 0, 0)
        refused = command(
            chroot, "partitions", "move", "-t", TOPIC, "--from", "1", "--to", "0", "--partitions", "4-5", check=False
        )
        assert refused.returncode == 1
        assert "still has directories of trades-2" in refused.stderr


def test_a_cancelled_move_leaves_everything_as_it_was_and_can_be_taken_up_again(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 1}, count=2) as brokers, Producer(chroot) as producer:
        first = TopicPartition(TOPIC, 0, 0)
        for _ in range(200):
            producer.send(TOPIC, b"x" * 1000, partition=first)
        arguments = ("partitions", "move", "-t", TOPIC, "--from", "0", "--to", "1", "--rate", "1")
        running = subprocess.Popen(
            [sys.executable, "-m", "metaq", *arguments, "--zk", chroot], stderr=subprocess.PIPE, text=True
        )
        with ZkSession(chroot) as session:
            moves = MovesOfCluster(session)

            def copying():
                return [each for each in moves.all() if each.state is MoveState.COPYING]

            eventually(copying, what="the copying")
            running.kill()  # nobody needs the command
            running.communicate()
            moves.cancel(copying()[0])
            assert len(producer.partitions(TOPIC)) == 2
            producer.send(TOPIC, b"more", partition=first)
            brokers.running[1].kill()
            brokers.start(1)
            assert len(producer.partitions(TOPIC)) == 2
            command(chroot, "partitions", "move", "-t", TOPIC, "--from", "0", "--to", "1")
            assert [(each.state, each.target_first) for each in moves.all()] == [(MoveState.DONE, 1)]
        (payloads,) = stored(chroot, [TopicPartition(TOPIC, 1, 1)]).values()
        assert payloads == ["x" * 1000] * 200 + ["more"]


def test_a_drained_broker_of_three_has_no_topic_left(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 2, "a": 1, "b": 1}, count=3) as brokers:
        with Producer(chroot) as producer:
            for number in range(100):
                producer.send(TOPIC, b"%d" % number)
        done = command(chroot, "brokers", "drain", "0")
        assert "broker 0 has no topic left" in done.stdout
        brokers.running[0].kill()
        with Producer(chroot) as producer:
            partitions = producer.partitions(TOPIC)
            assert len(partitions) == 6
            there = [int(payload) for payloads in stored(chroot, partitions).values() for payload in payloads]
            assert sorted(there) == list(range(100))


def test_an_open_transaction_holds_the_source_open_until_it_ends(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 1}, count=2), Producer(chroot) as producer:
        first = TopicPartition(TOPIC, 0, 0)
        producer.send(TOPIC, b"before", partition=first)
        with ZkSession(chroot) as session:
            moves = MovesOfCluster(session)
            with producer.transaction() as transaction:
                transaction.send(TOPIC, b"in it", partition=first)
                move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
                eventually(lambda: "transactions" in moves.look(move).waits_for, what="the wait for the transaction")
                assert moves.look(move).move.state is MoveState.CLOSING
            eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
        (payloads,) = stored(chroot, [TopicPartition(TOPIC, 1, 1)]).values()
        assert payloads == ["before", "in it"]


@pytest.mark.parametrize("members", [1, 2])
def test_a_group_that_began_at_the_end_loses_nothing_that_came_after_it_had_joined(chroot, tmp_path, members):
    """It has committed nothing when it gives the partitions up, and messages come to the target before it gets them."""
    with running_brokers(chroot, tmp_path, {TOPIC: 3}, count=2), Producer(chroot) as producer:
        for number in range(100):
            producer.send(TOPIC, b"k0:%d" % number)
        got: list[Got] = []
        held = threading.Event()
        group = [
            Reading(chroot, "g", got, start="latest", on_revoked=lambda _: held.wait(DEADLINE)) for _ in range(members)
        ]
        for each in group:
            each.start()

        def joined():
            owned = [each.consumer.assignment() for each in group]
            return sum(map(len, owned)) == 6 and all(
                each.consumer.position(partition) for each, mine in zip(group, owned, strict=True) for partition in mine
            )

        held.set()
        eventually(joined, what="the members to have begun")
        held.clear()
        with ZkSession(chroot) as session:
            moves = MovesOfCluster(session)
            move = moves.begin(moves.plan(TOPIC, 0, 1, FAST))
            eventually(lambda: moves.look(move).move.state is MoveState.HANDING_OVER, what="the handing over")
            moved = [TopicPartition(TOPIC, 1, each) for each in range(6)]  # as many as before: 3 of each broker
            eventually(lambda: list(producer.partitions(TOPIC)) == moved, what="the new partitions alone")
            sent = [f"k{partition.partition}:{number}" for number in range(20) for partition in moved]
            for payload in sent:
                producer.send(TOPIC, payload.encode(), partition=moved[int(payload[1 : payload.index(":")])])
            held.set()
            eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
        eventually(lambda: len(got) >= len(sent), what="all messages")
        for each in group:
            each.stop()
        assert sorted(payload for *_, payload in got) == sorted(sent)
        check_order(got)
