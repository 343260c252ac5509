"""run(retry=…) and dead letters on real brokers: pauses, attempts, members, redriving, dropping."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from metaq import Consumer, ConsumerConfig, DeadLetters, Retry, TopicPartition
from metaq.errors import ClientError, ConfigError, MessageNotFound
from tests.integration.cli_helpers import Operator
from tests.integration.client_cluster import SESSION_SECONDS, SHORT_SESSION_SECONDS, Failing
from tests.waiting import eventually

TOPICS = {"t": 2, "other": 1}
CONFIG = ConsumerConfig(
    session_timeout_seconds=SESSION_SECONDS, auto_commit_seconds=0.1, retry_step_seconds=0.1, retry_max_seconds=0.2
)
SOON = Retry(attempts=3, first=0.05, factor=1.0, most=0.05, jitter=0)


def member(brokers, group="g", **arguments):
    return Consumer(brokers.connect, group=group, topics=["t"], config=CONFIG, **arguments)


def failing(consumer, retry=SOON, fails=None):
    return Failing(consumer, fails, retry=retry)


def test_a_failed_message_comes_again_as_it_was_while_its_partition_goes_on(brokers, producer):
    place = TopicPartition("t", 0, 0)
    sent = producer.send("t", b"flaky", partition=place, tag="buy", keys=["order-7"], attribute="old")
    producer.send("t", b"behind", partition=place)
    with failing(member(brokers), fails={b"flaky": 2}) as running:
        eventually(lambda: running.attempts(b"flaky") == [1, 2, 3], 20, "the third attempt")
        again = running.calls[-1]
        assert (again.partition, again.offset, again.id) == (place, sent.offset, sent.message_id)
        assert (again.tag, again.keys, again.attribute) == ("buy", ("order-7",), "old")
        assert again.origin.offset == sent.offset
        eventually(lambda: running.attempts(b"behind"), 20)
    with DeadLetters(brokers.connect, group="g") as letters:
        assert letters.count() == 0


def test_what_waits_has_passed_the_filter_already_and_a_start_at_the_end_passes_nothing_over(brokers, producer):
    """Members of a group may be started with other options while messages wait."""
    producer.send("t", b"flaky", tag="buy")
    retry = Retry(attempts=3, first=1.0, factor=1.0, most=1.0, jitter=0)
    with failing(member(brokers, tags={"buy"}), retry, fails={b"flaky": 9}) as first:
        eventually(lambda: first.attempts(b"flaky") == [1], 20)
    with failing(member(brokers, tags={"sell"}, start="always_latest"), retry) as second:
        eventually(lambda: second.attempts(b"flaky") == [2], 20)


def test_pauses_are_kept_and_other_messages_do_not_wait_for_them(brokers, producer):
    retry = Retry(attempts=3, first=0.5, factor=2.0, jitter=0)
    producer.send("t", b"flaky", partition=TopicPartition("t", 0, 0))
    with failing(member(brokers), retry, fails={b"flaky": 2}) as running:
        eventually(lambda: running.attempts(b"flaky"), 20)
        producer.send("t", b"behind", partition=TopicPartition("t", 0, 0))
        eventually(lambda: len(running.attempts(b"flaky")) == 3, 20)
    assert [each.payload for each in running.calls] == [b"flaky", b"behind", b"flaky", b"flaky"]
    first, _, second, third = running.times
    assert 0.5 <= second - first < 3.0
    assert 1.0 <= third - second < 4.0


def test_after_the_last_attempt_it_is_a_dead_letter_that_says_all_of_itself(brokers, producer):
    began = datetime.now(UTC) - timedelta(seconds=1)
    sent = producer.send("t", b"bad", key="order-7", tag="buy")
    producer.send("t", b"worse", key="order-8")
    with failing(member(brokers), fails={b"bad": 9, b"worse": 9}) as running:
        eventually(lambda: len(running.calls) == 6, 20, "all attempts")
        with DeadLetters(brokers.connect, group="g") as letters:
            eventually(lambda: letters.count() == 2, 20)
            (found,) = letters.read(key="order-7")
            assert (found.original.payload, found.original.tag, found.original.keys) == (b"bad", "buy", ("order-7",))
            assert (found.original.partition, found.original.offset) == (sent.partition, sent.offset)
            assert (found.attempts, found.cause) == (3, "ValueError: cannot take b'bad'")
            assert found.place.endswith(" in handle")
            assert "client_cluster.py:" in found.place
            assert began < found.failed <= datetime.now(UTC)
            assert letters.get(found.name) == found
            assert len(list(letters.read())) == 2
            assert len(list(letters.read(limit=1))) == 1
            assert next(iter(letters.read(cause="TAKE B'WORSE'", since=began))).original.payload == b"worse"
            assert list(letters.read(until=began)) == list(letters.read(cause="nothing like it")) == []


def test_redriven_letters_are_sent_as_they_were_and_come_once(brokers, producer):
    for number in range(6):
        producer.send("t", b"%d" % number, key=f"order-{number}")
    running = failing(member(brokers), fails={b"%d" % number: 3 for number in range(6)})
    with running, DeadLetters(brokers.connect, group="g") as letters:
        eventually(lambda: letters.count() == 6, 20)
        done = letters.redrive(letters.read(key="order-3"))
        assert [each.letter.original.payload for each in done] == [b"3"]
        assert done[0].result.partition == done[0].letter.original.partition, "its key leads there"
        assert letters.count() == 5
        with pytest.raises(MessageNotFound, match="redriven or dropped"):
            letters.get(done[0].letter.name)
        eventually(lambda: running.attempts(b"3") == [1, 2, 3, 1], 20, "another first attempt")
        again = letters.redrive(letters.read(limit=2), to="group")
        assert [each.result.partition.topic for each in again] == ["%RETRY%g"] * 2
        assert letters.drop(letters.read()) == 3
        assert letters.count() == 0
        payloads = [each.letter.original.payload for each in again]
        eventually(lambda: all(running.attempts(each) == [1, 2, 3, 1] for each in payloads), 20)
    assert sum(len(running.attempts(b"%d" % number)) for number in range(6)) == 6 * 3 + 3


def test_a_redrive_is_done_as_a_statement_and_to_a_group_that_only_polls_it_is_refused(brokers, producer):
    producer.send("t", b"bad", key="order-7")
    with failing(member(brokers), fails={b"bad": 3}), DeadLetters(brokers.connect, group="g") as letters:
        eventually(lambda: letters.count() == 1, 20)
    with member(brokers) as polling, DeadLetters(brokers.connect, group="g") as letters:
        eventually(lambda: polling.poll(timeout=0.1) == [] and polling.assignment(), 20)
        with pytest.raises(
            ConfigError, match=r"^to='group': no live member of 'g' reads what waits for it: have a member run"
        ):
            letters.redrive(letters.read(), to="group")
        assert letters.count() == 1
        letters.redrive(letters.read())
        assert letters.count() == 0
        eventually(lambda: [each.payload for each in polling.poll(timeout=0.1)] == [b"bad"], 20)


def test_what_does_not_go_together_is_refused_and_names_both(brokers):
    with member(brokers) as consumer:
        for arguments, words in (
            ({"max_retries": 3}, ["retry", "max_retries=3"]),
            ({"on_reject": print}, ["retry", "on_reject"]),
        ):
            with pytest.raises(ConfigError) as found:
                consumer.run(print, retry=SOON, **arguments)
            assert all(word in str(found.value) for word in words)
        with pytest.raises(ConfigError, match="make it a Retry"):
            consumer.run(print, retry=3)
        consumer.stop()
        consumer.run(print, retry=SOON)
        for call in (consumer.poll, lambda: consumer.run(print, retry=None)):
            with pytest.raises(ClientError, match=r"after a run\(\) that made this consumer read messages that wait"):
                call()
        assert consumer.commit() == 0


def test_a_member_without_retries_gets_nothing_of_what_waits(brokers, producer):
    producer.send("t", b"bad", partition=TopicPartition("t", 0, 0))
    with failing(member(brokers), fails={b"bad": 1}) as running:
        eventually(lambda: running.attempts(b"bad") == [1, 2], 20)
        with member(brokers) as other:
            eventually(lambda: other.poll(timeout=0.1) is not None and len(other.assignment()) == 1, 20)
            assert {each.topic for each in other.assignment()} == {"t"}
            assert {each.topic for each in running.consumer.assignment()} == {"t", "%RETRY%g"}


def test_a_message_that_never_failed_is_no_dead_letter(brokers, producer):
    assert producer.partitions("%DEAD%g") == (TopicPartition("%DEAD%g", 0, 0),)
    producer.send("%DEAD%g", b"by hand")
    with DeadLetters(brokers.connect, group="g") as letters:
        assert letters.count() == 0


def test_operators_see_what_waits_and_what_is_dead(brokers, producer):
    operator = Operator(brokers.connect)
    for number in range(3):
        producer.send("t", b"%d" % number, key=f"order-{number}")
    retry = Retry(attempts=2, first=30.0, most=30.0, jitter=0)
    with failing(member(brokers), retry, fails={b"0": 1, b"1": 1}) as running:
        eventually(lambda: len(running.calls) == 3, 20)
        eventually(lambda: operator.json("groups", "describe", "g")["waiting_retries"] == 2, 20, "what waits")
    with failing(
        member(brokers, "other"), Retry(attempts=1), fails={b"%d" % number: 9 for number in range(3)}
    ) as dying:
        eventually(lambda: len(dying.calls) == 3, 20)
        eventually(lambda: operator.json("groups", "describe", "other")["dead_letters"] == 3, 20, "dead letters")
    assert (
        "3 dead letters: see `metaq dead-letters list --group other`" in operator.ran("groups", "describe", "other").out
    )
    told = operator.ran("monitor", "--group", "other", "--min-memory", "0").out
    assert "warning group other: 3 dead letters" in told
    assert "no live broker has its topic" not in told
    listed = operator.json("dead-letters", "list", "--group", "other")
    assert sorted(each["payload"] for each in listed) == ["0", "1", "2"]
    assert {each["attempts"] for each in listed} == {1}
    assert listed[0]["cause"].startswith("ValueError: cannot take b'")
    name = listed[0]["name"]
    shown = operator.json("dead-letters", "show", "--group", "other", name)
    assert shown == listed[0]
    assert "stdin gives no answer" in operator.ran("dead-letters", "drop", "--group", "other").err
    assert "there are more" in operator.ran("dead-letters", "list", "--group", "other", "-n", "2").err
    would = operator.ran("dead-letters", "redrive", "--group", "other", "--dry-run", "--key", "order-1")
    assert "would send 1 dead letter again" in would.out
    for to, topic in ((), "t"), (("--to", "group"), "%RETRY%other"):
        would_go = operator.json("dead-letters", "redrive", "--group", "other", name, "--dry-run", *to)
        assert would_go == [{"name": name, "topic": topic, "partition": None, "offset": None}]
        shown = operator.ran("dead-letters", "redrive", "--group", "other", name, "--dry-run", *to).out
        assert shown.split()[:3] == ["NAME", "WOULD", "GO"]
        assert shown.split("\n")[3].split() == [name, topic]
    (sent,) = operator.json("dead-letters", "redrive", "--group", "other", name, "--yes")
    assert (sent["name"], sent["topic"]) == (name, "t")
    assert "dropped 2 dead letters" in operator.ran("dead-letters", "drop", "--group", "other", "--yes").out
    assert operator.json("dead-letters", "list", "--group", "other") == []
    assert "has no dead letter" in operator.refused("dead-letters", "redrive", "--group", "other", name, "--yes")
    names = {each["topic"] for each in operator.json("topics", "list")}
    assert names == {"t", "other"}
    assert {"%DEAD%other", "%RETRY%g"} <= {each["topic"] for each in operator.json("topics", "list", "--all")}


_WORKER = """
import os, sys
from metaq import Consumer, ConsumerConfig, Retry

def handle(message):
    print(message.payload.decode(), flush=True)
    if message.payload == b"kills":
        os._exit(9)

config = ConsumerConfig(session_timeout_seconds=float(sys.argv[2]))
with Consumer(sys.argv[1], group="g", topics=["t"], config=config) as consumer:
    consumer.run(handle, retry=Retry(attempts=1))
"""


def test_a_message_that_kills_its_process_becomes_a_dead_letter_and_those_around_it_do_not(brokers, producer):
    """Each death costs the end of a session, which is what this test waits for."""
    producer.send_batch("t", [b"1", b"2", b"kills", b"3"], partition=TopicPartition("t", 0, 0))
    said: list[list[str]] = []
    for _ in range(3):
        words = [sys.executable, "-c", _WORKER, brokers.connect, str(SHORT_SESSION_SECONDS)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            said.append([])
            for line in worker.stdout:
                said[-1].append(line.strip())
                if line.strip() == "3":
                    worker.kill()
    assert said == [["1", "2", "kills"], ["1", "2", "kills"], ["3"]]
    with DeadLetters(brokers.connect, group="g") as letters:
        eventually(lambda: letters.count() == 1)
        (letter,) = letters.read()
    assert (letter.original.payload, letter.attempts) == (b"kills", 1)
    assert "WorkerDied: 1 processes ended, or lost their sessions" in letter.cause
