"""`sync`, and puts on a synchronous master: the answers that 1.x was recorded giving, and what reaches the slave."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import simplejson

from metaq.broker.replication.plugins import Plugins
from metaq.broker.replication.roles import Roles, config_for
from metaq.broker.store.partition_log import PartitionLog
from metaq.broker.writing.writing import CopiesDone
from metaq.protocol.errors import MetaqError, SlaveDisconnected, SyncFailed
from metaq.protocol.record import HEADER_BYTES, Buffer, encode_record, iter_headers
from metaq.protocol.sends import SendReply
from metaq.protocol.statuses import ResponseCode
from tests.unit.broker.harness import Harness, Peer, batch, put, reserved, send

WIRE = Path(__file__).parents[3] / "data" / "golden" / "wire" / "wire.json"
VOLATILE = re.compile(rb"(?<=\r\n)(-?\d+) (\d+) (\d+)\Z")

RECORDED = [each for each in simplejson.loads(WIRE.read_text("utf-8")) if "synchronous" in (each.get("setup") or "")]


class Slave:
    """The way to a slave, answered when the test says so."""

    def __init__(self) -> None:
        self.connected = True
        self.got: list[tuple[str, int, int, bytes]] = []
        self.waiting: list[tuple[int, CopiesDone]] = []

    def check(self) -> None:
        if not self.connected:
            raise SlaveDisconnected

    def replicate(self, log: PartitionLog, records: Buffer, done: CopiesDone) -> None:
        found = list(iter_headers(records))
        bodies = [bytes(records[header.start + HEADER_BYTES : header.end]) for header in found]
        self.got += [(log.topic, log.partition, each.id, body) for each, body in zip(found, bodies, strict=True)]
        self.waiting.append((len(found), done))

    def answer(self, *failed: int) -> None:
        waiting, self.waiting = self.waiting, []
        for count, done in waiting:
            error = SyncFailed("slave", "meta://s:1", "t", 0)
            found: list[MetaqError | None] = [error if index in failed else None for index in range(count)]
            done(found)


@pytest.fixture
def slave(harness: Harness) -> Slave:
    link = Slave()
    harness.broker.writing.slave = link
    return link


def as_sync_slave(harness: Harness) -> None:
    plugins = Plugins(gregor=True)
    harness.config = config_for(plugins, harness.config)
    harness.broker.reconfigure(harness.config, harness.broker.reading.filters)
    Roles(plugins, harness.broker, harness.config, None)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["name"])
def test_the_answers_are_those_of_1x(tmp_path: Path, recorded: dict[str, str]):
    harness = Harness(tmp_path, topics="[topic=orders]\nnumPartitions=3\n")
    link = Slave()
    if "samsa" in recorded["setup"]:
        harness.broker.writing.slave = link
    else:
        harness.config = replace(harness.config, port=28324)
        as_sync_slave(harness)
        harness.broker.port = 28324
    peer = harness.connect()
    peer.send(bytes.fromhex(recorded["request_hex"]))
    link.answer()
    found, expected = peer.received(), bytes.fromhex(recorded["response_hex"])
    if VOLATILE.search(expected):
        ours, theirs = VOLATILE.findall(found)[0], VOLATILE.findall(expected)[0]
        first = 0 if recorded["request_hex"].startswith(b"sync".hex()) else 1
        assert ours[first:2] == theirs[first:2]
    else:
        assert found == expected
    harness.close()


def test_the_recordings_are_there():
    assert len(RECORDED) >= 11


def test_a_synced_message_keeps_its_id_and_is_answered_when_it_is_safe(harness: Harness, peer: Peer):
    as_sync_slave(harness)
    peer.send(b"sync safe 1 3 4 -77 -1 5\r\nabc")
    assert peer.received() == b""
    harness.threads.run()
    assert peer.received() == b"result 200 7 5\r\n-77 1 0"
    assert harness.store.get("safe", 1).segments.read(0, 100) == encode_record(b"abc", -77, 4)


def test_a_broker_without_the_role_has_no_handler_for_sync(harness: Harness):
    assert harness.connect().ask(b"sync t 0 3 0 7 -1 5\r\nabc").code == 503


def test_a_synchronous_master_takes_plain_messages_only(harness: Harness, peer: Peer, slave: Slave):
    flag, body = reserved(b"x", {"metaq.delay": "60000"})
    delayed = peer.ask_frame(send("t", 0, body, flag=flag))
    assert "keeps no delayed messages" in delayed.remark
    in_transaction = peer.ask_frame(send("t", 0, tx_key="TX:s:1"))
    assert "has no transactions" in in_transaction.remark
    assert slave.got == []


def test_a_put_is_answered_when_both_have_it(peer: Peer, slave: Slave):
    peer.send(put("t", 0, b"one", 1) + put("t", 0, b"two", 2) + put("t", 1, b"three", 3))
    assert peer.received() == b""
    taken = [(topic, partition, body) for topic, partition, _, body in slave.got]
    assert taken == [("t", 0, b"one"), ("t", 0, b"two"), ("t", 1, b"three")]
    slave.answer()
    answers = peer.answers()
    assert [answer.code for answer in answers] == [200] * 3
    assert [int(answer.text.split()[0]) for answer in answers] == [each[2] for each in slave.got]


def test_only_the_message_that_the_slave_does_not_have_is_refused(peer: Peer, slave: Slave):
    peer.send(put("t", 0, b"one", 1) + put("t", 0, b"two", 2))
    slave.answer(1)
    first, second = peer.answers()
    assert first.code == 200
    assert (second.code, second.text) == (500, "Put message to [slave 'meta://s:1'] [partition 't-0'] failed")


def test_nothing_is_stored_or_sent_without_a_slave(harness: Harness, peer: Peer, slave: Slave):
    slave.connected = False
    answer = peer.ask(put("t", 0))
    assert (answer.code, answer.text, slave.got) == (500, "Slave is disconnected ", [])
    assert harness.store.get("t", 0).end_offset == 0


def test_a_message_that_the_master_cannot_write_never_reaches_the_slave(harness: Harness, peer: Peer, slave: Slave):
    harness.store.get_or_create("t", 0).durability.read_only = "broken"
    told = f"Put message to [master '{harness.broker.url}'] [partition 't-0'] failed"
    assert (peer.ask(put("t", 0)).text, slave.got) == (told, [])


@pytest.mark.parametrize("lacks", [[], [1]])
def test_a_batch_is_replicated_message_by_message_and_refused_if_the_slave_has_not_all(peer, slave: Slave, lacks):
    peer.send(batch("t", 2, [b"a", b"b"]))
    assert peer.received() == b""
    slave.answer(*lacks)
    (frame,) = peer.frames()
    assert [body for _, _, _, body in slave.got] == [b"a", b"b"]
    assert frame.code == (ResponseCode.SYSTEM_ERROR if lacks else ResponseCode.SUCCESS)
    assert lacks or slave.got[0][2] == SendReply.from_ext(frame.ext).message_id


def test_a_slave_refuses_every_way_of_putting(harness: Harness, peer: Peer):
    harness.broker.partitions.takes_puts = False
    answer = peer.ask(put("t", 0))
    assert answer.code == 500
    assert "is an asynchronous slave of broker 0" in answer.text
    assert peer.ask_frame(batch("t", 0, [b"a"])).code == ResponseCode.SERVICE_NOT_AVAILABLE
    peer.ask(b"transaction TX:a:1 a BEGIN 4\r\n")
    assert peer.ask(b"put t 0 1 0 -1 TX:a:1 5\r\nx").code == 500
