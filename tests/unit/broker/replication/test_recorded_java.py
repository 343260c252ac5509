"""What Java's replication plugins said to our brokers, and we to them, said again (tests/data/recorded/replication)."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import simplejson

from metaq.broker.replication.peer import Peer
from metaq.broker.replication.plugins import Plugins
from metaq.broker.replication.roles import Roles, config_for
from metaq.broker.store.scan import scan_bytes
from metaq.protocol.client_stream import Reply
from metaq.protocol.requests import RequestReader
from metaq.protocol.text import AnswerReader, Result, Sync, Version, encode_sync_line, encode_version
from tests.unit.broker.harness import Harness, Transport

RECORDED = Path(__file__).parents[3] / "data" / "recorded" / "replication"
PROBE = "_metaq_slave_status_test"


def recording(name: str) -> Any:
    return simplejson.loads((RECORDED / f"{name}.json").read_text("utf-8"))


def said(connection: list[dict[str, str]], who: str) -> bytes:
    return b"".join(bytes.fromhex(each["hex"]) for each in connection if each["from"] == who)


@pytest.fixture
def orders(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def test_a_java_slave_is_answered_as_it_was(orders: Harness):
    recorded = recording("java-slave-of-our-master")
    for path, data in recorded["log"].items():
        topic, _, partition = path.split("/")[0].rpartition("-")
        content = bytes.fromhex(data)
        log = orders.broker.partitions.for_replica(topic, int(partition), 0)
        log.append((content,), scan_bytes(content, 0).units.tobytes())
    for connection in recorded["connections"]:
        peer = orders.connect()
        for turn in connection:
            if turn["from"] == "java":
                peer.send(bytes.fromhex(turn["hex"]))
        assert without_version(peer.received()) == without_version(said(connection, "metaq"))


def without_version(answers: bytes) -> bytes:
    return re.sub(rb"result 200 \d+ (-?\d+)\r\n0\.1\.0 many/1 frames/1", rb"version \1", answers)


def test_a_java_synchronous_master_is_answered_as_it_was(orders: Harness):
    plugins = Plugins(gregor=True)
    orders.config = config_for(plugins, orders.config)
    orders.broker.reconfigure(orders.config, orders.broker.reading.filters)
    Roles(plugins, orders.broker, orders.config, None)
    (connection,) = recording("java-master-to-our-slave")["connections"]
    sent = RequestReader().receive(said(connection, "java"))
    syncs = [each for each in sent if isinstance(each, Sync)]
    assert {each.topic for each in syncs} == {"t", PROBE}
    assert any(each.flag == 1 for each in syncs)
    peer = orders.connect()
    peer.send(said(connection, "java"))
    assert sorted(answers(peer.received())) == sorted(answers(said(connection, "metaq")))
    log = orders.store.get("t", 0)
    assert [unit["id"] for unit in log.lookup.units(0, 1 << 20)] == [
        each.message_id for each in syncs if (each.topic, each.partition, each.flag) == ("t", 0, 0)
    ]


def answers(data: bytes) -> list[str]:
    """One by one, without the port of the broker."""
    found = AnswerReader().receive(data)
    return [
        f"{each.opaque} {each.code} " + re.sub("[0-9]+'] .partition", "", each.text)
        for each in found
        if isinstance(each, Result) and "frames/1" not in each.text
    ]


def test_our_synchronous_master_says_what_java_took(orders: Harness):
    connections = recording("our-master-to-java-slave")["connections"]
    for connection in connections:
        replies: list[Reply | None] = []
        transport = Transport()
        transport.setTcpNoDelay = lambda enabled: None  # type: ignore[attr-defined]
        peer = Peer(orders.reactor, "java")
        peer.makeConnection(transport)
        requests = RequestReader().receive(said(connection, "metaq"))
        for request in requests:
            assert isinstance(request, (Sync, Version))
            peer.send(partial(encoded, request), partial(keep, replies), 5)
        assert transport.value() == said(connection, "metaq")
        peer.dataReceived(said(connection, "java"))
        assert len(replies) == len(requests)
        assert {reply.code for reply in replies if isinstance(reply, Result)} == {200}
        peer.close()


def keep(replies: list[Reply | None], reply: Reply | None, error: Exception | None) -> None:
    replies.append(reply)


def encoded(request: Sync | Version, opaque: int) -> list[bytes]:
    if isinstance(request, Version):
        return [encode_version(opaque)]
    topic, partition, flag, message_id, checksum, _, body = request
    return [encode_sync_line(topic, partition, len(body), flag, message_id, checksum, opaque), body]
