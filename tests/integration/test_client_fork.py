"""A program with clients that forks: the child may use none of them, and whatever it does, the parent goes on."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from metaq import browse
from tests.integration.client_cluster import Brokers
from tests.waiting import DEADLINE

TOPICS = {"t": 1}
_PROGRAM = """
import gc, json, multiprocessing, os, signal, sys, time
from metaq import Consumer, ConsumerConfig, PartitionReader, Producer, TopicPartition
from tests.child import refusal
from tests.waiting import eventually as until

connect, address = sys.argv[1:3]
HERE = TopicPartition("t", 0, 0)

producer = Producer(connect, linger_ms=60_000)
consumer = Consumer(connect, group="g", topics=["t"], on_revoked=lambda partitions: sys.exit(9))
reader = PartitionReader(address, HERE)
producer.send("t", b"before")
consumed = until(consumer.poll)
read = until(reader.poll)
owned, session = consumer._core.owned, consumer._session.session_id
metadata_session = producer._metadata._session.session_id
connections = [link.connection for each in (producer, consumer, reader) for link in each._pool._core.links.values()]
seen = []
futures = [producer.send_async("t", b"lingers") for _ in range(3)]

def child():
    said = [
        refusal(lambda: producer.send("t", b"x")), refusal(lambda: producer.send_async("t", b"x")),
        refusal(producer.flush), refusal(consumer.poll), refusal(consumer.poll_arrow), refusal(consumer.commit),
        refusal(lambda: next(iter(consumer))), refusal(lambda: consumer.run(print)), refusal(consumer.lag),
        refusal(lambda: consumer.seek(HERE, 0)), refusal(lambda: consumer.fetch(HERE, 0)),
        refusal(lambda: consumer.view_message("t", 1)), refusal(consumer.assignment),
        refusal(lambda: consumer.position(HERE)), refusal(reader.poll), refusal(futures[0].result),
    ]
    began = time.monotonic()
    for each in (consumer, producer, reader):
        each.close()
    took = time.monotonic() - began
    globals().update(consumer=None, producer=None, reader=None, futures=None, connections=None)
    gc.collect()
    with Producer(connect) as own:
        own.send("t", b"child")
    with Consumer(connect, group="children", topics=["t"]) as own:
        until(own.poll)
    print(json.dumps({"said": said, "took": took}), flush=True)
"""

_ENDS = {
    "sys.exit": """
if (pid := os.fork()) == 0:
    child()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "inside of with": """
if (pid := os.fork()) == 0:
    with consumer, producer, reader:
        child_said = child()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
    "multiprocessing": """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(100)
assert process.exitcode == 0
""",
    "a thread": """
import threading
def fork():
    if (pid := os.fork()) == 0:
        child()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
thread = threading.Thread(target=fork)
thread.start()
while thread.is_alive():  # locks are taken at the moment of the fork
    seen += consumer.poll(timeout=0.05)
""",
}

_PARENT = """
until(lambda: [each.payload for each in seen] == [b"child"] or seen.extend(consumer.poll()))
producer.send("t", b"after")
assert b"after" in {message.payload for message in until(consumer.poll)}
assert until(reader.poll)
assert consumer._core.owned is owned and consumer._session.session_id == session
assert producer._metadata._session.session_id == metadata_session
assert not any(connection.closed for connection in connections)
consumer.close()
reader.close()
producer.close()
assert [future.result(0).offset > 0 for future in futures] == [True] * 3
"""


@pytest.mark.parametrize("end", list(_ENDS))
def test_the_parent_goes_on_whatever_the_child_does_with_its_clients(brokers: Brokers, end: str) -> None:
    program = [sys.executable, "-c", _PROGRAM + _ENDS[end] + _PARENT]
    address = f"127.0.0.1:{brokers.running[0].port}"
    done = subprocess.run(
        [*program, brokers.connect, address], capture_output=True, text=True, timeout=2 * DEADLINE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert [text for text in told["said"] if "forked" not in text] == []
    assert len(told["said"]) == 16
    assert told["took"] < 5.0  # nothing of the parent's is waited for
    payloads = sorted(message.payload for message in browse(brokers.connect, "t"))
    assert payloads == sorted([b"before", b"child", b"after", b"lingers", b"lingers", b"lingers"])
