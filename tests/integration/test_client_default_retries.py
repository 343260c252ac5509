"""Consumer.run without a word about failures: the broker's retries where brokers keep them, else the local file."""

from __future__ import annotations

import pwd
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.javapeer import JavaBroker
from metaq import Consumer, ConsumerConfig, DeadLetters, Message, Producer, Retry, RetryLater, TopicPartition
from metaq.client.consumer.rejected import of_cluster
from metaq.errors import ClientError, ConfigError
from tests.integration.client_cluster import SESSION_SECONDS, Brokers, Failing, running_brokers
from tests.integration.java_peers import require_java
from tests.raising import raising
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 2}
CONFIG = ConsumerConfig(
    session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1, retry_step_seconds=0.01, retry_max_seconds=0.02
)
FIRST, SECOND = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its own for each test: what the default store of a run() keeps lies there."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    return directory


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", raising(KeyError))


@pytest.fixture
def java_broker(chroot: str, tmp_path: Path) -> Iterator[JavaBroker]:
    require_java()
    with JavaBroker(tmp_path / "java", chroot, TOPICS, {"unflushThreshold": 1}) as broker:
        yield broker


def member(connect: str, **arguments: Any) -> Consumer:
    config = arguments.pop("config", CONFIG)
    return Consumer(connect, group=arguments.pop("group", "g"), topics=["t"], config=config, **arguments)


def files(home: Path) -> list[str]:
    return [path.name for path in home.rglob("*.db")]


def is_read_by(consumer: Consumer) -> bool:
    return "%RETRY%g" in {each.topic for each in consumer.assignment()}


@pytest.mark.parametrize("error", [lambda: ValueError("away"), RetryLater], ids=["error", "RetryLater"])
def test_on_our_brokers_a_failed_message_goes_back_to_the_broker_and_its_partition_goes_on(
    brokers: Brokers, producer: Producer, home: Path, error: Callable[[], Exception]
) -> None:
    producer.send_batch("t", [b"flaky", b"behind"], partition=FIRST)
    with Failing(member(brokers.connect), {b"flaky": 2}, error) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 2, 3], what="the third attempt")
        assert [each.payload for each in running.calls][:2] == [b"flaky", b"behind"]
        assert is_read_by(running.consumer)
    assert files(home) == []


def test_batches_do_the_same(brokers: Brokers, producer: Producer, home: Path) -> None:
    producer.send_batch("t", [b"1", b"flaky", b"2"], partition=FIRST)
    seen: list[tuple[bytes, int]] = []

    def handle(messages: list[Message]) -> None:
        for each in messages:
            seen.append((each.payload, each.attempts))
            if each.payload == b"flaky" and each.attempts == 1:
                raise ValueError("away")

    with member(brokers.connect) as consumer:
        thread = threading.Thread(target=consumer.run_batches, args=(handle,))
        thread.start()
        eventually(lambda: (b"flaky", 2) in seen and (b"2", 1) in seen, what="the second attempt")
        consumer.stop()
        thread.join(DEADLINE)
    assert files(home) == []


def test_a_group_that_is_started_anew_gets_what_waits(brokers: Brokers, producer: Producer) -> None:
    """Also before anything fails at the new member."""
    producer.send("t", b"flaky", partition=FIRST)
    pause = Retry(attempts=3, first=3.0, factor=1.0, most=3.0, jitter=0)
    with Failing(member(brokers.connect), {b"flaky": 1}, retry=pause) as first:
        eventually(lambda: first.attempts(b"flaky") == [1], what="the first attempt")
        eventually(lambda: is_read_by(first.consumer), what="the topic of what waits")
    with Failing(member(brokers.connect)) as second:
        eventually(lambda: second.attempts(b"flaky") == [2], what="the second attempt")


@pytest.mark.parametrize(
    "arguments",
    [{"retry": None}, {"max_retries": 5}, {"on_reject": lambda message, error: None}],
    ids=["retry", "max_retries", "on_reject"],
)
def test_who_chooses_it_keeps_the_tries_in_place_and_may_poll_behind_it(
    brokers: Brokers, producer: Producer, arguments: dict[str, Any]
) -> None:
    producer.send_batch("t", [b"flaky", b"last", b"for poll"], partition=FIRST)
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        seen.append(message.payload)
        if len(seen) < 4:
            raise ValueError("away")
        if message.payload == b"last":
            consumer.stop()

    with member(brokers.connect) as consumer:
        consumer.run(handle, **arguments)
        assert seen == [b"flaky"] * 4 + [b"last"]
        assert {each.topic for each in consumer.assignment()} == {"t"}
        assert [each.payload for each in consumer.poll(timeout=DEADLINE)] == [b"for poll"]


def test_behind_a_run_that_reads_what_waits_poll_is_refused_with_the_option(
    brokers: Brokers, producer: Producer
) -> None:
    with member(brokers.connect) as consumer:
        consumer.stop()
        consumer.run(print)
        for call in (consumer.poll, lambda: consumer.run(print, max_retries=3)):
            with pytest.raises(ClientError, match=r"give every run\(\) of this one retry=None"):
                call()
        consumer.stop()
        consumer.run(print)


def test_what_an_earlier_run_kept_on_this_machine_is_tried_again_and_goes_to_the_broker_if_it_fails(
    brokers: Brokers, producer: Producer, home: Path
) -> None:
    producer.send_batch("t", [b"fine", b"flaky"], partition=SECOND)
    rejects = {b"fine": 1, b"flaky": 1}
    with Failing(member(brokers.connect), rejects, retry=None, max_retries=0) as former:
        eventually(lambda: len(former.calls) == 2, what="their rejection")
    assert files(home) == ["0.db"]
    with Failing(member(brokers.connect), {b"flaky": 1}) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 2], what="what was kept")
        assert running.attempts(b"fine") == [1]
        again = running.calls[-1]
        assert (again.partition, again.offset) == (SECOND, former.calls[-1].offset)
    left = of_cluster(brokers.connect, "/meta", "g")
    assert left.count("t") == 0
    left.close()


@pytest.mark.usefixtures("no_home")
def test_on_our_brokers_nobody_needs_a_home_directory(brokers: Brokers, producer: Producer) -> None:
    producer.send("t", b"flaky", partition=FIRST)
    with Failing(member(brokers.connect), {b"flaky": 1}) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 2], what="the second attempt")


@pytest.mark.usefixtures("no_home")
def test_who_needs_the_store_and_has_no_home_directory_is_told_the_options(
    brokers: Brokers, producer: Producer
) -> None:
    producer.send_batch("t", [b"flaky", b"last"], partition=FIRST)
    with member(brokers.connect) as consumer:
        with pytest.raises(
            ConfigError, match=r"^on_reject=None: .*no home directory.*on_reject=LocalRecoverStore\(dir"
        ):
            consumer.run(print, retry=None)
        tries: list[bytes] = []

        def handle(message: Message) -> None:
            tries.append(message.payload)
            if len(tries) < 9:
                raise ValueError("away")
            consumer.stop()

        consumer.run(handle, max_retries=None)  # nothing is rejected, so nothing is needed
        assert tries == [b"flaky"] * 9


def test_a_run_that_began_before_its_broker_chooses_when_that_is_there(brokers: Brokers, producer: Producer) -> None:
    producer.send("t", b"flaky", partition=FIRST)
    brokers.running[0].stop()
    with Failing(member(brokers.connect), {b"flaky": 1}) as running:
        eventually(lambda: running.consumer._listener is not None, what="the run")
        brokers.start()
        eventually(lambda: len(running.attempts(b"flaky")) == 2, what="another try, wherever it waited")
        eventually(lambda: running.consumer._reads_failed, what="the choice")
        running.fails[b"later"] = 1
        producer.send_batch("t", [b"later", b"behind"], partition=FIRST)
        eventually(lambda: running.attempts(b"later") == [1, 2], what="the second attempt")
        assert [each.payload for each in running.calls][2:4] == [b"later", b"behind"]
        eventually(lambda: is_read_by(running.consumer), what="the topic of what waits")


def test_a_group_whose_name_leaves_no_room_for_a_topic_tries_in_place(
    brokers: Brokers, producer: Producer, home: Path
) -> None:
    producer.send("t", b"flaky", partition=FIRST)
    group = "g" * 236
    with Failing(member(brokers.connect, group=group), {b"flaky": 3}) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 1, 1, 1], what="tries in place")
    assert files(home) == ["0.db"]


def test_over_the_text_protocol_it_goes_back_too(brokers: Brokers, producer: Producer, home: Path) -> None:
    producer.send("t", b"flaky", partition=FIRST)
    with Failing(member(brokers.connect, config=speaking("text", CONFIG)), {b"flaky": 1}) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 2], what="the second attempt")
    assert files(home) == []


def test_a_broadcast_consumer_tries_in_place(brokers: Brokers, producer: Producer, home: Path) -> None:
    config = ConsumerConfig(broadcast=True, retry_step_seconds=0.01)
    producer.send("t", b"flaky", partition=FIRST)
    with Failing(member(brokers.connect, config=config), {b"flaky": 3}) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 1, 1, 1], what="tries in place")
    assert files(home) == ["0.db"]


def test_on_a_java_broker_it_is_tried_in_place_and_kept_on_this_machine(
    java_broker: JavaBroker, chroot: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with Producer(chroot) as producer:
        for payload in (b"bad", b"behind", b"flushes"):
            producer.send("t", payload, partition=FIRST)
    with Failing(member(chroot), {b"bad": 6}) as running:
        eventually(lambda: running.attempts(b"behind"), what="the one behind")
        assert [each.payload for each in running.calls][:7] == [b"bad"] * 6 + [b"behind"]
        assert files(home) == ["0.db"]
        eventually(lambda: len(running.attempts(b"bad")) == 7, what="another try of what was kept")
        assert {each.topic for each in running.consumer.assignment()} == {"t"}
    assert re.search(r"group g: broker 0 at .* does not keep messages until their time", caplog.text)


@pytest.mark.usefixtures("no_home")
def test_on_a_java_broker_a_user_without_a_home_directory_is_told_the_options(
    java_broker: JavaBroker, chroot: str
) -> None:
    with member(chroot) as consumer, pytest.raises(ConfigError, match=r"on_reject=LocalRecoverStore\(directory\)"):
        consumer.run(print)


def test_with_one_java_broker_among_ours_it_is_tried_in_place(
    java_broker: JavaBroker, chroot: str, tmp_path: Path, home: Path
) -> None:
    with (
        running_brokers(chroot, tmp_path, TOPICS, 0) as ours,
        Producer(chroot) as producer,
    ):
        ours.start(1)
        place = TopicPartition("t", 1, 0)
        eventually(lambda: place in producer.partitions("t"), what="both brokers")
        producer.send_batch("t", [b"bad", b"behind"], partition=place)
        with Failing(member(chroot), {b"bad": 6}) as running:
            eventually(lambda: running.attempts(b"behind"), what="the one behind")
            assert [each.payload for each in running.calls][:7] == [b"bad"] * 6 + [b"behind"]
        assert files(home) == ["0.db"]
        with DeadLetters(chroot, group="g") as letters:
            assert letters.count() == 0
