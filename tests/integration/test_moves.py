"""Partitions move between real brokers while our producers and consumers run: nothing is lost, and nothing repeated."""

import json
import threading
import time
from collections import defaultdict
from itertools import pairwise

import pytest

from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, ProducerConfig, TopicPartition
from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.records.move_payloads import MoveState
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError
from tests.integration.background import Repeating
from tests.integration.cli_helpers import Operator, start
from tests.integration.client_cluster import running_brokers
from tests.waiting import DEADLINE, eventually

TOPIC = "trades"
KEYS = 20
FAST = 1 << 30
Got = tuple[TopicPartition, int, str]
CONFIG = ConsumerConfig(auto_commit_seconds=0.1)


class Sending(Repeating):
    """Sends numbered messages with keys, several at a time, until it is stopped. `sent`: payload -> its result."""

    def __init__(self, connect, topic=TOPIC):
        super().__init__(self.send)
        self.sent = {}
        self._topic = topic
        config = ProducerConfig(delivery_timeout_seconds=60.0, retry_max_seconds=0.2)
        self._producer = Producer(connect, config=config)

    def send(self, step):
        keys = {f"k{number % KEYS}:{number}": f"k{number % KEYS}" for number in range(20 * step, 20 * step + 20)}
        futures = {each: self._producer.send_async(self._topic, each.encode(), key=key) for each, key in keys.items()}
        for payload, future in futures.items():
            self.sent[payload] = future.result(DEADLINE)

    def stop(self):
        self.end()
        self._producer.close()
        assert self.errors == []


class Reading(Repeating):
    """A member of a group. `got`: (partition, offset, payload) in the order in which they came."""

    def __init__(self, connect, group, got, topic=TOPIC, start="earliest", **options):
        super().__init__(self.read, 0.0)
        self._got = got
        self.consumer = Consumer(connect, group=group, topics=[topic], config=CONFIG, start=start, **options)

    def read(self, _step):
        for message in self.consumer.poll(timeout=0.05):
            self._got.append((message.partition, message.offset, message.payload.decode()))

    def stop(self):
        self.end()
        with self.consumer:
            pass  # what it was given last counts
        assert self.errors == []


class Load:
    """A producer and a group of a topic that moves from broker 0 to broker 1 meanwhile."""

    def __init__(self, connect, group="g", topic=TOPIC, members=2):
        self.connect, self.topic = connect, topic
        self.sending = Sending(connect, topic)
        self.got: list[Got] = []
        self.members = [Reading(connect, group, self.got, topic) for _ in range(members)]
        for each in (self.sending, *self.members):
            each.start()
        eventually(lambda: len(self.sending.sent) > 500 and len(self.got) > 300, what="messages")

    def end(self, partitions, more=()):
        """The move is done: broker 1 has so many partitions, with what was sent, and `more`, once; so had the group."""
        count = len(self.sending.sent)
        eventually(lambda: len(self.sending.sent) > count + 500, what="messages behind the move")
        self.sending.stop()
        wanted = sorted([*self.sending.sent, *more])
        eventually(lambda: len({payload for *_, payload in self.got}) >= len(wanted), what="all messages")
        time.sleep(0.5)  # what came twice would come now
        for each in self.members:
            each.stop()
        with Producer(self.connect) as producer:
            there = producer.partitions(self.topic)
        assert list(there) == [TopicPartition(self.topic, 1, each) for each in range(partitions)]
        assert sorted(payload for found in stored(self.connect, there).values() for payload in found) == wanted
        check_got(self.got, wanted)


def check_got(got, wanted):
    assert sorted(payload for *_, payload in got) == sorted(wanted)
    check_order(got)


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


MOVE = ("partitions", "move", "--topic", TOPIC)


def move(connect, *words, code=0):
    done = Operator(connect).ran(*MOVE, *words)
    assert done.code == code, done
    return done


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
        load = Load(chroot, members=3)
        late: list[Got] = []
        old = Reading(chroot, "late", late)  # it leaves offsets behind, and comes back when the move is done
        old.start()
        eventually(lambda: late, what="messages")
        old.stop()
        assert json.loads(move(chroot, "--from", "0", "--to", "1", "--json").out)["to"] == "1-3"
        load.end(6)
        again = Reading(chroot, "late", late)
        again.start()
        eventually(lambda: len(late) >= len(load.sending.sent), what="all messages")
        time.sleep(0.5)
        again.stop()
        check_got(late, load.sending.sent)


def test_the_last_partitions_move_alone_and_the_rest_stays(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 4}, count=2) as brokers, Producer(chroot) as producer:
        for number in range(400):
            producer.send(TOPIC, b"%d" % number, key=str(number))
        before = stored(chroot, [TopicPartition(TOPIC, 0, each) for each in range(4)])
        move(chroot, "--from", "0", "--to", "1", "--partitions", "2-3")
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
        refused = move(chroot, "--from", "1", "--to", "0", "--partitions", "4-5", code=1)
        assert "still has directories of trades-2" in refused.err


def test_a_cancelled_move_leaves_everything_as_it_was_and_can_be_taken_up_again(chroot, tmp_path):
    with running_brokers(chroot, tmp_path, {TOPIC: 1}, count=2) as brokers, Producer(chroot) as producer:
        first = TopicPartition(TOPIC, 0, 0)
        for _ in range(200):
            producer.send(TOPIC, b"x" * 1000, partition=first)
        running = start(*MOVE, "--from", "0", "--to", "1", "--rate", "1", "--zk", chroot)
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
            move(chroot, "--from", "0", "--to", "1")
            assert [(each.state, each.target_first) for each in moves.all()] == [(MoveState.DONE, 1)]
        (payloads,) = stored(chroot, [TopicPartition(TOPIC, 1, 1)]).values()
        assert payloads == ["x" * 1000] * 200 + ["more"]


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
        check_got(got, sent)
