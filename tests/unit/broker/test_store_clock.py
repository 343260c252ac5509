"""Every way into a partition keeps its store times in order while the broker's clock steps back."""

from itertools import count

import numpy as np
import pytest
from twisted.internet.defer import ensureDeferred

from metaq.broker.replication.partition_copy import PartitionCopy
from metaq.protocol.message_id import counter_at, message_id, store_time_ms
from metaq.protocol.record import checksum, encode_record
from tests.doubles.store import check_invariants
from tests.unit.broker.harness import NOW, Harness, batch, many, put, record
from tests.unit.broker.replication.test_partition_copy import Master
from tests.unit.broker.transactions.conversation import XID, tx, tx_put

RUN = b"".join(put("t", 0, b"in a run", number) for number in range(200))


def sync(body, message):
    return f"sync t 0 {len(body)} 0 {message} {checksum(body)} 1\r\n".encode() + body


WAYS = {
    "put": [put("t", 0)],
    "run": [RUN],
    "batch": [batch("t", 0, [b"a", b"b"])],
    "many": [many([("t", 0, [record(), record()]), ("t", 0, [record()])])],
    "sync": [sync(b"from a master", 7)],
    "transaction": [tx(XID, "XA_BEGIN"), tx_put(XID, "t", 0, b"a"), tx(XID, "COMMIT_ONE_PHASE")],
}


@pytest.mark.parametrize("way", ["put", "run", "batch", "many"])
def test_the_store_time_is_that_of_the_id(tmp_path, monkeypatch, way):
    """A search by time agrees with what clients and Spark show, though the clock goes on while a request is served."""
    ticks = count(int(NOW * 1000))
    monkeypatch.setattr(Harness, "time", property(lambda _: next(ticks) / 1000, lambda *_: None), raising=False)
    harness = Harness(tmp_path)
    peer = harness.connect()
    for _ in range(2):
        for data in WAYS[way]:
            peer.send(data)
            harness.threads.run()
    log = harness.store.get("t", 0)
    units = log.lookup.units(0, 1 << 20)
    assert len(units) == log.segments.message_count > 1
    for offset, each, *_ in units.tolist():
        stored = store_time_ms(each)
        assert stored is not None
        assert log.lookup.offset_at_time(stored) <= offset < log.lookup.offset_at_time(stored + 1)
    harness.store.close()


def check(harness):
    log = harness.store.get("t", 0)
    check_invariants(log)
    stamped = np.abs(log.lookup.units(0, 1 << 20)["time_ms"])
    assert len(stamped) == log.segments.message_count > 1
    assert int(stamped[0]) == int(stamped[-1]) == int(NOW * 1000)


@pytest.mark.parametrize("way", WAYS)
def test_the_clock_steps_back_between_two_puts(harness, peer, way):
    peer.ask(put("t", 0))
    harness.time = NOW - 600
    if way == "sync":
        harness.broker.writing.takes_copies = True
    if way == "transaction":
        harness.broker.transactions.begin(peer.session, XID, 0)
    for data in WAYS[way][way == "transaction" :]:
        peer.send(data)
        harness.threads.run()
    check(harness)


def test_a_commit_behind_younger_puts(harness, peer):
    harness.broker.transactions.begin(peer.session, XID, 0)
    peer.send(tx_put(XID, "t", 0, b"a"))
    harness.time = NOW - 1
    peer.send(tx(XID, "COMMIT_ONE_PHASE"))  # is on its way to the disk
    harness.time = NOW
    peer.send(put("t", 0))
    harness.threads.run()
    check(harness)


def test_a_slaves_copy_of_ids_out_of_order(harness):
    ids = [message_id(counter_at(int(NOW * 1000) - back), 0) for back in (0, 5000, 7000)]
    master = Master(b"".join(encode_record(b"copied", each, 0) for each in [*ids, -5, ids[0]]))
    ensureDeferred(PartitionCopy(harness.broker, "t", 0, 0.5).run(master))
    check(harness)
