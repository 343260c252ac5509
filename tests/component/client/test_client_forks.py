"""A process that was forked off refuses its parent's clients, and leaves them alone."""

import gc
import os
import subprocess
import sys
from typing import Any

import pytest

from metaq import LocalMessageStore, OrderedProducer, PartitionReader, Producer, TopicPartition
from metaq.client.producer import futures
from metaq.client.producer.futures import SendFuture
from metaq.client.transport.connection import Call
from metaq.coordination.runtime.forks import ForkGuard
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import Znodes, delete
from metaq.protocol.errors import MetaqError
from metaq.testing import FakeCluster
from tests.child import in_child, refusal

HERE = TopicPartition("t", 0, 0)


def refusals(*actions):
    return in_child(lambda: [refusal(action) for action in actions])


def test_the_refusal_names_both_processes_and_says_what_to_do():
    guard = ForkGuard("Producer")
    guard.check()
    child, text = in_child(lambda: (os.getpid(), refusal(guard.check)))
    assert text == (
        f"this Producer belongs to process {os.getpid()}, and process {child} was forked off it: "
        "make another one in the child, after the fork"
    )
    guard.check()
    assert not guard.is_elsewhere


def test_the_child_of_a_child_is_refused_too_and_has_guards_of_its_own():
    guard = ForkGuard("Producer")

    def child():
        own = ForkGuard("Producer")
        own.check()
        return in_child(lambda: (guard.is_elsewhere, own.is_elsewhere, ForkGuard("Producer").is_elsewhere))

    assert in_child(child) == (True, True, False)


def test_a_producer_is_refused_and_its_connection_goes_on(broker):
    with Producer(metadata=FakeCluster([broker])) as producer:
        producer.send("t", b"1")
        (link,) = producer._pool._core.links.values()
        connection = link.connection
        assert connection is not None
        transaction = producer.transaction()
        transaction.send("t", b"2")
        said = refusals(
            lambda: producer.send("t", b"x"),
            lambda: producer.send_async("t", b"x"),
            lambda: producer.send_batch("t", [b"x"]),
            lambda: producer.send_batch_async("t", [b"x"]),
            lambda: producer.transaction(),
            lambda: producer.xa(["t"]),
            lambda: producer.partitions("t"),
            lambda: producer.flush(),
            lambda: transaction.send("t", b"x"),
            lambda: transaction.rollback(),
            lambda: connection.finish(Call(1)),
        )
        assert [text for text in said if "forked off it" not in text] == []
        assert len(said) == 11
        assert "forked off it" in in_child(lambda: refusal(transaction.commit))
        in_child(producer.close)
        in_child(lambda: producer.__exit__(None, None, None))
        transaction.commit()
        producer.send("t", b"3")
        assert link.connection is connection
        assert not connection.closed
    assert broker.bodies("t", 0) == [b"1", b"2", b"3"]


def test_a_child_may_have_a_producer_of_its_own(broker):
    with Producer(metadata=FakeCluster([broker])) as producer:
        producer.send("t", b"parent")

        def child():
            with Producer(metadata=FakeCluster([broker])) as own:
                return own.send("t", b"child").offset

        assert in_child(child) > 0
        producer.send("t", b"parent")
    assert broker.bodies("t", 0) == [b"parent", b"child", b"parent"]


def test_a_reader_is_refused_and_goes_on(broker):
    endpoint = broker.endpoint
    with (
        Producer(metadata=FakeCluster([broker])) as producer,
        PartitionReader(f"{endpoint.host}:{endpoint.port}", HERE) as reader,
    ):
        producer.send("t", b"1")
        (first,) = reader.poll(timeout=60.0)
        said = refusals(
            reader.poll, reader.poll_arrow, lambda: next(iter(reader)), lambda: reader.seek(0), lambda: reader.fetch(0)
        )
        assert [text for text in said if "this PartitionReader belongs to" not in text] == []
        in_child(reader.close)
        producer.send("t", b"2")
        (second,) = reader.poll(timeout=60.0)
    assert (first.payload, second.payload) == (b"1", b"2")


def test_an_ordered_producer_and_its_store_are_refused(broker, tmp_path):
    store = LocalMessageStore(tmp_path / "ordered.db")
    cluster = FakeCluster([broker])
    with OrderedProducer(metadata=cluster, partitions={"t": {0: 1}}, store=store) as producer:
        producer.send("t", b"1")
        said = refusals(
            lambda: producer.send("t", b"x"),
            producer.flush,
            lambda: store.append("q", []),
            lambda: store.peek("q", 1),
            lambda: store.remove("q", [1]),
            store.queues,
        )
        assert [text for text in said if "forked off it" not in text] == []
        in_child(producer.close)
        in_child(store.close)
        producer.send("t", b"2")
        assert store.queues() == []


def test_a_lock_that_another_thread_holds_at_the_fork_does_not_hang_the_child():
    with futures._making:
        assert in_child(lambda: finished(SendFuture())) == 1


def finished(future):
    future.set_result(1)
    return future.result()


def test_waiting_in_the_child_for_a_future_of_the_parent_is_refused():
    future: SendFuture[int] = SendFuture()
    done: SendFuture[int] = SendFuture()
    done.set_result(1)
    said = refusals(future.result, lambda: future.exception(timeout=1.0))
    assert [text for text in said if "forked" not in text] == []
    assert in_child(done.result) == 1
    assert future.running()


def test_zookeeper_is_not_asked_and_no_session_is_closed():
    session = ZkSession("127.0.0.1:1")
    calls: list[Any] = []
    session.zk.stop = lambda: calls.append("stop")
    nodes = Znodes(session.zk, "127.0.0.1:1", 1.0)
    said = refusals(lambda: nodes.get("/a"), lambda: nodes.write(1, [delete("/a")]))
    assert [text for text in said if "this ZooKeeper session belongs to" not in text] == []

    def close():
        session.close()
        return calls

    assert in_child(close) == []


_STORE = """
import gc, os, signal, sys
from metaq import LocalMessageStore, StoredMessage
store = LocalMessageStore(sys.argv[1])
store.append("q", [StoredMessage("t", b"before")])
if (child := os.fork()) == 0:
    store.close()
    del store
    gc.collect()
    sys.exit(7)
assert os.waitpid(child, 0)[1] >> 8 == 7
store.append("q", [StoredMessage("t", b"after")])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_that_ends_takes_nothing_from_its_parents_store(tmp_path):
    """SQLite in the child would remove the log into which the parent goes on writing."""
    path = tmp_path / "store.db"
    done = subprocess.run([sys.executable, "-c", _STORE, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-9, "")
    with LocalMessageStore(path) as store:
        assert [message.body for _, message in store.peek("q", 10)] == [b"before", b"after"]


def test_nothing_is_kept_of_a_store_in_the_process_that_made_it(tmp_path):
    store = LocalMessageStore(tmp_path / "store.db")
    before = sys.getrefcount(store._db)
    in_child(gc.collect)
    after = sys.getrefcount(store._db)
    assert after == before
    store.close()
    with pytest.raises(MetaqError):
        store.peek("q", 1)
