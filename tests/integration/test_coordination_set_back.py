"""ZooKeeper comes back empty, and from an older copy, under a broker, a producer, two groups and a shared group."""

import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from metaq import Consumer, ConsumerConfig, Message, Producer, ProducerConfig, SharedConfig, SharedConsumer, browse
from metaq.protocol.errors import MetaqError
from tests.integration.client_cluster import running_brokers
from tests.integration.set_nodes import set_nodes
from tests.waiting import eventually
from tests.zookeepers import data_of, zookeeper_process

SESSION_SECONDS = 2.0
POLLED = 20
"""Messages that one poll gives: what a rebalance may give again."""


class Application:
    """A member that writes down what it is handed, on a thread of its own."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.messages: list[Message] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._ending.is_set():
            self.messages += self.consumer.poll(POLLED, 0.1)

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        self.consumer.close()


class Sender:
    """Sends one message after the other, on a thread of its own."""

    def __init__(self, producer: Producer) -> None:
        self.payloads: list[bytes] = []
        self.failures: list[str] = []
        self._producer = producer
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._ending.wait(0.01):
            payload = b"%d" % number
            number += 1
            try:
                self._producer.send("t", payload)
                self.payloads.append(payload)
            except MetaqError as error:
                self.failures.append(str(error))

    def end(self) -> None:
        self._ending.set()
        self._thread.join()


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
            sender = Sender(producer)
            done: Counter[bytes] = Counter()

            def work(message: object) -> None:
                done[message.payload] += 1  # type: ignore[attr-defined]

            worker = threading.Thread(target=shared.run, args=(work,), daemon=True)
            worker.start()

            def goes_on() -> float:
                """Until everybody has come by messages that were sent from now on; seconds."""
                began, sent = time.monotonic(), len(sender.payloads)

                def all_have() -> bool:
                    last = set(sender.payloads[sent + 20 : sent + 40])
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
            sent = set(sender.payloads)
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
            assert max(took) < SESSION_SECONDS + 8
            assert not sender.failures
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
        words = ["brokers", "elect", "0", "--unclean", "--node", "b", "--yes", "--zk", nodes.connect]
        subprocess.run([sys.executable, "-m", "metaq", *words], check=True, timeout=60)
        nodes.wait_in_sync("a", "b")
        assert nodes.leader == "b"
        assert [message.payload for message in browse(nodes.connect, "t")] == [b"before"]
    server.stop()
