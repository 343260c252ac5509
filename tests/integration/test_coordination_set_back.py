"""ZooKeeper comes back empty, and from an older copy, under a broker, a producer, two groups and a shared group."""

import shutil
import threading
import time
from collections import Counter
from pathlib import Path

from metaq import Consumer, ConsumerConfig, Message, Producer, ProducerConfig, SharedConfig, SharedConsumer, browse
from tests.integration.background import Repeating
from tests.integration.client_cluster import running_brokers
from tests.integration.set_nodes import set_nodes
from tests.waiting import eventually
from tests.zookeepers import data_of, zookeeper_process

SESSION_SECONDS = 2.0
POLLED = 20
"""Messages that one poll gives: what a rebalance may give again."""


class Application(Repeating):
    """A member that writes down what it is handed."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(self.take, 0.0)
        self.consumer = consumer
        self.messages: list[Message] = []
        self.start()

    def take(self, _step: int) -> None:
        self.messages += self.consumer.poll(max_messages=POLLED, timeout=0.1)


def test_everything_goes_on_when_zookeeper_comes_back_empty_or_from_an_older_copy(tmp_path: Path) -> None:
    server = zookeeper_process(tmp_path / "zk", tick_time_ms=100)
    config = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1)
    server.start()
    with running_brokers(
        server.connect_string + "/cluster", tmp_path, {"t": 4}, session_seconds=SESSION_SECONDS
    ) as brokers:
        connect = brokers.connect
        with (
            Producer(connect, config=ProducerConfig(session_timeout_seconds=SESSION_SECONDS)) as producer,
            SharedConsumer(
                connect, group="shared", topics=["t"], config=SharedConfig(session_timeout_seconds=SESSION_SECONDS)
            ) as shared,
        ):
            groups: dict[str, list[Application]] = {
                start: [
                    Application(Consumer(connect, group=start, topics=["t"], start=start, config=config))
                    for _ in range(members)
                ]
                for start, members in (("earliest", 2), ("latest", 1))
            }
            members = [each for group in groups.values() for each in group]
            eventually(lambda: all(each.consumer.assignment() for each in members), what="the claims of all members")
            payloads: list[bytes] = []

            def send(number: int) -> None:
                producer.send("t", b"%d" % number)
                payloads.append(b"%d" % number)

            sender = Repeating(send, 0.01)
            sender.start()
            done: Counter[bytes] = Counter()

            def work(message: object) -> None:
                done[message.payload] += 1  # type: ignore[attr-defined]

            worker = threading.Thread(target=shared.run, args=(work,), daemon=True)
            worker.start()

            def goes_on() -> float:
                """Until everybody has come by messages that were sent from now on; seconds."""
                began, sent = time.monotonic(), len(payloads)

                def all_have() -> bool:
                    last = set(payloads[sent + 20 : sent + 40])
                    return len(last) == 20 and all(
                        last <= {message.payload for each in group for message in each.messages}
                        for group in groups.values()
                    )

                eventually(all_have, what="what was sent after ZooKeeper came back")
                eventually(
                    lambda: all(len(each.consumer.assignment()) in (2, 4) for each in members), what="all claims"
                )
                return time.monotonic() - began

            goes_on()
            data, copy = data_of(server), tmp_path / "copy"
            server.stop()
            shutil.copytree(data, copy)
            shutil.rmtree(data)
            server.start()
            took = [goes_on()]
            server.stop()
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            server.start()
            took.append(goes_on())
            sender.end()
            sent = set(payloads)
            eventually(lambda: done.keys() >= sent, what="the work of the shared group")
            for start, group in groups.items():
                eventually(
                    lambda group=group: {m.payload for each in group for m in each.messages} >= sent,  # type: ignore[misc]
                    what=f"all messages of the group {start}",
                )
                handed = Counter(message.payload for each in group for message in each.messages)
                again = sum(handed.values()) - len(handed)
                assert again <= 2 * POLLED * len(group), f"{again} messages came again in the group {start}"
            for each in members:
                each.end()
                each.consumer.close()
                assert each.errors == []
            assert max(took) < SESSION_SECONDS + 8
            assert sender.errors == []
    server.stop()


def test_a_broker_set_waits_for_an_operators_choice_which_its_living_nodes_carry_out(tmp_path: Path) -> None:
    """Nobody knows who was in sync. (Some seconds: real nodes must live through a ZooKeeper that is emptied.)"""
    server = zookeeper_process(tmp_path / "zk", tick_time_ms=100)
    server.start()
    with set_nodes(tmp_path, server.connect_string, {"t": ""}) as nodes:
        nodes.start("a", "b")
        nodes.wait_in_sync("a", "b")
        with Producer(nodes.connect) as producer:
            producer.send("t", b"before")
        server.stop()
        shutil.rmtree(data_of(server))
        server.start()
        eventually(lambda: set(nodes.view().nodes) == {"a", "b"}, what="the nodes' return")
        view = nodes.view()
        assert (view.state, view.master) == (None, None)
        log = nodes.nodes["b"].errors
        eventually(lambda: "has no state of broker set 0, which has had epoch 1" in log.read_text(), what="the remedy")
        nodes.elect("b")
        nodes.wait_in_sync("a", "b")
        assert nodes.leader == "b"
        assert [message.payload for message in browse(nodes.connect, "t")] == [b"before"]
    server.stop()
