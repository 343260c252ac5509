"""Consumer.run on a real cluster: retries, rejects, the local recover store, rebalances, and stopping."""

import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace

from metaq import Consumer, ConsumerConfig, LocalRecoverStore, RetryLater, TopicPartition, drop_message
from tests.integration.client_cluster import SESSION_SECONDS, Running, read
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 4}
CONFIG = ConsumerConfig(
    session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1, retry_step_seconds=0.02, retry_max_seconds=0.1
)


def member(brokers, group="g", **arguments):
    return Consumer(brokers.connect, group=group, topics=["t"], config=CONFIG, **arguments)


def test_a_rejected_message_is_kept_and_comes_again_until_it_is_processed_even_after_a_restart(
    brokers, producer, tmp_path
):
    seen, healthy = [], threading.Event()

    def handler(message):
        seen.append(message.payload)
        if message.payload == b"bad" and not healthy.is_set():
            raise ValueError("the database is away")

    def recover_store():
        return LocalRecoverStore(tmp_path / "recover", first_seconds=0.05, interval_seconds=0.05)

    producer.send_batch("t", [b"1", b"bad", b"2"], partition=TopicPartition("t", 0, 0))
    first = recover_store()
    with Running(member(brokers), handler, max_retries=1, on_reject=first):
        eventually(lambda: b"2" in seen, 20, "passing the rejected message")
        eventually(lambda: seen.count(b"bad") >= 4, 20, "trying it again")
    seen.clear()
    second = recover_store()
    with Running(member(brokers), handler, max_retries=1, on_reject=second):
        eventually(lambda: seen.count(b"bad") >= 2, 20, "trying what was kept by an earlier process")
        assert second.count("t") == 1
        healthy.set()
        eventually(lambda: second.count("t") == 0, 20, "forgetting what was processed")
    assert set(seen) == {b"bad"}  # its offset was committed: the cluster does not send it again


def test_every_message_is_processed_once_while_members_with_handlers_come_and_go(brokers, producer):
    processed: list[bytes] = []
    lock = threading.Lock()

    def handler(message):
        if hash(message.payload) % 50 == 0 and message.payload not in failed:
            failed.add(message.payload)
            raise RetryLater
        with lock:
            processed.append(message.payload)

    failed: set[bytes] = set()
    members = [Running(member(brokers), handler, threads=2)]
    eventually(lambda: len(members[0].consumer.assignment()) == 4, 20)
    for part in range(6):
        for number in range(part * 300, part * 300 + 300):
            producer.send_async("t", b"%d" % number)
        producer.flush()
        if part in (1, 3):
            members.append(Running(member(brokers), handler, threads=2))
        if part == 4:
            members[0].__exit__()
    eventually(lambda: len(set(processed)) == 1800, 30, "processing everything")
    for each in members[1:]:
        each.__exit__()
    assert [payload for payload, times in Counter(processed).items() if times > 1] == []


def test_batches_are_processed_together(brokers, producer):
    producer.send_batch("t", [b"%d" % number for number in range(25)], partition=TopicPartition("t", 0, 0))
    sizes: list[int] = []
    with member(brokers) as consumer:

        def handler(messages):
            sizes.append(len(messages))
            if sum(sizes) == 25:
                consumer.stop()

        consumer.run_batches(handler, max_messages=10, on_reject=drop_message)
    assert sizes == [10, 10, 5]


def test_a_member_that_hangs_in_its_handler_hands_over_after_the_wait_and_does_not_commit_late(brokers, producer):
    """It must not overwrite what the new owner commits."""
    where = TopicPartition("t", 0, 3)
    inside, go_on = threading.Event(), threading.Event()

    def hanging(message):
        inside.set()
        assert go_on.wait(2 * DEADLINE)

    config = ConsumerConfig(session_timeout_seconds=SESSION_SECONDS, revoke_wait_seconds=0.3)
    first = Consumer(brokers.connect, group="g", topics=["t"], config=config)
    with Running(first, hanging, on_reject=drop_message):
        producer.send_batch("t", [b"1", b"2"], partition=where)
        assert inside.wait(DEADLINE)
        with member(brokers) as second:
            messages = read(second, 2)
            second.commit()
            go_on.set()
            eventually(lambda: where not in first.assignment(), 10)
            assert [message.payload for message in messages] == [b"1", b"2"]
    with member(brokers) as third:
        assert third.poll(timeout=1) == []


def test_close_in_a_handler_does_not_wait_for_itself_and_its_message_comes_again(brokers, producer):
    producer.send_batch("t", [b"1", b"2"], partition=TopicPartition("t", 0, 0))
    first = Consumer(brokers.connect, group="g", topics=["t"], config=replace(CONFIG, stop_seconds=DEADLINE))

    def handler(message):
        if message.payload == b"2":
            first.close()

    started = time.monotonic()
    first.run(handler, on_reject=drop_message)
    assert time.monotonic() - started < DEADLINE
    with member(brokers) as second:
        assert [message.payload for message in read(second, 1)] == [b"2"]


def test_a_killed_process_loses_nothing_that_its_handler_had_not_processed(brokers, producer, tmp_path):
    """At least once: a handler's message is committed after it returned, never before."""
    done = tmp_path / "done"
    program = (
        "import sys, time\n"
        "from metaq import Consumer, ConsumerConfig, drop_message\n"
        "config = ConsumerConfig(session_timeout_seconds=2, auto_commit_seconds=0.01)\n"
        "def handle(message):\n"
        "    time.sleep(0.002)\n"
        "    with open(sys.argv[2], 'a') as file:\n"
        "        file.write(message.payload.decode() + '\\n')\n"
        "consumer = Consumer(sys.argv[1], group='g', topics=['t'], config=config)\n"
        "consumer.run(handle, threads=2, on_reject=drop_message)\n"
    )
    producer.send_batch("t", [b"%d" % number for number in range(2000)], partition=TopicPartition("t", 0, 0))
    producer.send_batch("t", [b"%d" % number for number in range(2000, 4000)], partition=TopicPartition("t", 0, 1))
    processed: set[int] = set()
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program, brokers.connect, str(done)])
        before = len(processed)

        def read_progress(before=before):
            processed.update(map(int, done.read_text().split("\n")[:-1]) if done.exists() else ())
            return len(processed) > before + 300

        eventually(read_progress, 60, "progress")
        process.kill()
        process.wait(DEADLINE)
    with member(brokers) as consumer:
        rest: list[int] = []

        def all_read():
            rest.extend(int(message.payload) for message in consumer.poll(timeout=0.1))
            read_progress()
            return len(processed | set(rest)) == 4000

        eventually(all_read, 60, "the rest")
    assert min(rest) > 0  # and the progress of the killed ones was kept
    assert len(rest) < 4000
