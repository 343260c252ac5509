"""Many puts of one read: what is stored and answered is what a group of single puts gives."""

import random

import pytest

from metaq.broker.assembly import verbs
from metaq.protocol.errors import DiskFull
from metaq.protocol.message_id import store_time_ms
from metaq.protocol.put_run import LEAST_PUTS
from metaq.protocol.record import HEADER_BYTES, encode_body, iter_headers
from metaq.protocol.text import encode_put, parse_put_result
from tests.raising import raising
from tests.unit.broker.harness import NOW, Harness, noted, put
from tests.unit.broker.test_send_many import Slave

COUNT = 4 * LEAST_PUTS


@pytest.fixture(autouse=True)
def runs(monkeypatch):
    """The runs that were served; a test that wants none sees that there are none."""
    return noted(monkeypatch, verbs, "answer_run")


def stored(harness, topic, partition):
    """(time, flag, body) of each record, whose checksums and index units are as they should be."""
    log = harness.store.get(topic, partition)
    data = bytes(log.segments.read(0, 1 << 20))
    headers = list(iter_headers(data))
    (segment,) = log.segments
    units = segment.index.units(0, len(segment.index)).tolist()
    assert [unit[:2] for unit in units] == [(header.start, header.id) for header in headers]
    assert [unit[3] for unit in units] == [HEADER_BYTES + header.length for header in headers]
    assert [header.id for header in headers] == sorted(header.id for header in headers)
    return [(unit[2], unit[4], header.flag, data[header.start + HEADER_BYTES : header.end])
            for unit, header in zip(units, headers, strict=True)]  # fmt: skip


def test_puts_to_several_partitions_are_one_append_each_and_answered_in_order(peer, appends, runs):
    peer.send(b"".join(put("t", number % 3, bytes(number), opaque=number) for number in range(COUNT)))
    assert sorted(appends) == [("t", partition, len(range(partition, COUNT, 3))) for partition in range(3)]
    assert len(runs) == 1
    assert len(peer.transport.writes) == 1
    answers = peer.answers()
    assert [answer.opaque for answer in answers] == list(range(COUNT))
    results = [parse_put_result(answer.text) for answer in answers]
    assert [result[0] for result in results] == sorted({result[0] for result in results})
    assert {store_time_ms(result[0]) for result in results} == {NOW * 1000}
    for partition in range(3):
        offset = 0
        for number in range(partition, COUNT, 3):
            assert results[number][1:] == (partition, offset)
            offset += HEADER_BYTES + number


def random_puts(rng):
    """Good puts mostly, of which one may be refused for its checksum, its topic or its partition."""
    puts = []
    for number in range(COUNT):
        flag = rng.choice([0, 1])
        body = bytes(encode_body(rng.randbytes(rng.randrange(40)), flag, rng.choice([b"", b"tag", b"other"])))
        puts.append(put(rng.choice(["t", "safe", "quiet"]), rng.choice([0, 0, 0, 1]), body, number, flag))
    if rng.random() < 0.5:
        wrong = rng.choice(
            [encode_put("t", 0, 0, 7, 1000, b"x"), put("nope", 0, opaque=1000), put("t", 9, opaque=1000)]
        )
        puts.insert(rng.randrange(COUNT), wrong)
    return [each for each in puts if not each.startswith(b"put quiet 1")]  # it has one partition


@pytest.mark.parametrize("seed", range(20))
def test_the_same_is_answered_stored_and_counted_as_in_a_group(tmp_path, runs, seed):
    puts = random_puts(random.Random(seed))
    seen = []
    for name, reads in (("run", [b"".join(puts)]), ("group", [b"".join(puts[at : at + 9]) for at in range(0, 200, 9)])):
        harness = Harness(tmp_path / name)
        peer = harness.connect()
        for read in reads:
            peer.send(read)
        harness.threads.run()
        answers = [(each.code, each.opaque, each.text.split(" ", 1)[1]) for each in peer.answers()]
        logs = {(log.topic, log.partition): stored(harness, log.topic, log.partition) for log in harness.store.logs()}
        metrics = harness.broker.metrics
        counted = metrics.cmd_put, metrics.put_bytes, metrics.put_failed, metrics.realtime("message_size", "t")
        seen.append((answers, logs, counted))
        harness.store.close()
    assert len(runs) == 1
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == len(puts)


def test_a_partition_that_fails_refuses_its_own_puts_only(peer, harness, monkeypatch, runs):
    peer.send(put("t", 0) + put("t", 1))
    peer.received()
    write = harness.store.files.pwritev
    broken = harness.store.get("t", 1).segments[-1].data.fd

    def failing(fd, buffers, position):
        if fd == broken:
            raise OSError(5, "Input/output error")
        return write(fd, buffers, position)

    monkeypatch.setattr(harness.store.files, "pwritev", failing)
    peer.send(b"".join(put("t", number % 2, opaque=number) for number in range(COUNT)))
    answers = peer.answers()
    expected = [(number, 500 if number % 2 else 200) for number in range(COUNT)]
    assert [(answer.opaque, answer.code) for answer in answers] == expected
    prefix = "Put message to [broker 'meta://127.0.0.1:8123'] [partition 't-1'] failed.Detail:"
    assert answers[1].text.startswith(prefix)
    assert harness.broker.metrics.put_failed == COUNT // 2
    assert len(runs) == 1


def test_a_failed_sync_refuses_all_that_waited_for_it(peer, harness, monkeypatch):
    peer.send(b"".join(put("safe", number % 2, opaque=number) for number in range(COUNT)))
    monkeypatch.setattr(harness.store.files, "fdatasync", raising(OSError(5, "Input/output error")))
    harness.threads.run()
    assert [(answer.code, answer.opaque) for answer in peer.answers()] == [(500, number) for number in range(COUNT)]
    assert harness.broker.metrics.put_failed == COUNT


def test_no_room_refuses_every_put_of_a_run(peer, harness, runs):
    peer.send(put("t", 0))
    peer.received()
    path = harness.store.data_paths[0]
    harness.store.space.full = {path: DiskFull(path, "1 byte is free")}
    peer.send(b"".join(put("t", number % 2, opaque=number) for number in range(COUNT)))
    assert {answer.code for answer in peer.answers()} == {500}
    assert harness.store.get("t", 0).segments.message_count == 1
    assert len(runs) == 1


def test_a_synchronous_master_sends_each_put_to_its_slave(peer, harness, runs):
    slave = harness.broker.writing.slave = Slave()
    peer.send(b"".join(put("t", number % 2, b"%d" % number, opaque=number) for number in range(COUNT)))
    expected = [(number, number % 2 == 0) for number in range(COUNT)]
    assert [(answer.opaque, answer.code == 200) for answer in peer.answers()] == expected
    got = [(partition, body) for partition, bodies, _ in slave.got for body in bodies]
    assert sorted(got) == sorted((number % 2, b"%d" % number) for number in range(COUNT))
    assert len(runs) == 1
