"""kill -9 under load, again and again: what was acknowledged is there, whole, once started again (issue: no loss)."""

import shutil

import numpy as np

from bench.processes import cpu_seconds
from metaq.protocol.frames import encode_frame
from metaq.protocol.pulls import PullReply, PullRequest
from metaq.protocol.record import checksum, encode_record, iter_headers
from metaq.protocol.sends import SendBatchRequest, SendReply
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import Result, encode_put, parse_put_result
from tests.broker_process import server_ini
from tests.integration.forked_processes import ForkedBroker
from tests.integration.load import Load, kill_under

ROUNDS = 10
PRODUCERS = 4
PARTITIONS = 2
LOAD_SECONDS = 0.35
TOPICS = {"fast": "numPartitions=2\nunflushThreshold=1000", "safe": "numPartitions=2\nunflushThreshold=0"}


class Producer(Load):
    """One connection: a window of text puts, or batches; remembers what was acknowledged, by partition."""

    def __init__(self, broker, topic, number, round_number):
        super().__init__(broker)
        self.topic, self.number, self.round = topic, number, round_number
        self.partition = number % PARTITIONS
        self.acknowledged: dict[int, bytes] = {}  # offset -> body

    def send(self):
        (self.send_batches if self.number == PRODUCERS - 1 else self.send_puts)()

    def bodies(self, start, count):
        return [
            b"%s %d %d %d " % (self.topic.encode(), self.round, self.number, start + i) + b"x" * 300
            for i in range(count)
        ]

    def send_puts(self, window=32):
        sent = 0
        while True:
            bodies = self.bodies(sent, window)
            self.connection.send(
                b"".join(
                    encode_put(self.topic, self.partition, 0, checksum(body), number, body)
                    for number, body in enumerate(bodies)
                )
            )
            missing = window
            while missing:  # each answer counts at once, the rest may never come
                for answer in self.connection.answers(1):
                    assert isinstance(answer, Result)
                    assert answer.code == 200, answer.text
                    _, _, offset = parse_put_result(answer.text)
                    self.acknowledged[offset] = bodies[answer.opaque]
                    missing -= 1
            sent += window

    def send_batches(self, count=50):
        sent = 0
        while True:
            bodies = self.bodies(sent, count)
            reply = SendReply.from_ext(self.connection.ask_frame(batch_frame(self.topic, self.partition, bodies)).ext)
            offset = reply.offset
            for body in bodies:
                self.acknowledged[offset] = body
                offset += 20 + len(body)
            sent += count


def batch_frame(topic, partition, bodies):
    records = [encode_record(body, 0, 0) for body in bodies]
    payload = np.array([len(record) for record in records], ">u4").tobytes() + b"".join(records)
    ext = SendBatchRequest(topic, partition, len(records)).to_ext()
    return encode_frame(RequestCode.SEND_BATCH, 1, ext, len(payload)) + payload


def read_partition(broker, topic, partition, offset=0):
    """offset -> (body, id) of all records; every checksum is verified."""
    found: dict[int, tuple[bytes, int]] = {}
    with broker.connect() as connection:
        while True:
            request = PullRequest(topic, partition, offset, 1 << 20)
            frame = connection.ask_frame(encode_frame(RequestCode.PULL, 1, request.to_ext()))
            if frame.code == ResponseCode.PULL_NOT_FOUND:
                return found
            assert frame.code == ResponseCode.SUCCESS, frame.remark
            consumed = 0
            for header in iter_headers(frame.body):
                body = bytes(frame.body[header.start + 20 : header.end])
                assert checksum(body) == header.checksum
                found[offset + header.start] = body, header.id
                consumed = header.end
            assert consumed == len(frame.body), "a pull gives whole records"
            offset = PullReply.from_ext(frame.ext).next_offset


def test_no_acknowledged_message_is_lost_or_torn_when_the_broker_is_killed_again_and_again(tmp_path):
    acknowledged: dict[tuple[str, int], dict[int, bytes]] = {
        (topic, partition): {} for topic in TOPICS for partition in range(PARTITIONS)
    }
    read_up_to = dict.fromkeys(acknowledged, 0)
    ids_seen: set[int] = set()
    ini = server_ini(tmp_path / "data", TOPICS)
    for number in range(ROUNDS + 1):
        with ForkedBroker(tmp_path, ini) as broker:
            verify(broker, acknowledged, read_up_to, ids_seen)
            if number == ROUNDS:
                assert broker.stop() == 0
                break
            producers = [Producer(broker, topic, each, number) for topic in TOPICS for each in range(PRODUCERS)]
            kill_under(broker, producers, LOAD_SECONDS)
            for producer in producers:
                acknowledged[producer.topic, producer.partition].update(producer.acknowledged)
    total = sum(map(len, acknowledged.values()))
    assert all(acknowledged.values())
    assert total > 1000
    assert len(ids_seen) >= total


def verify(broker, acknowledged, read_up_to, ids_seen):
    for (topic, partition), bodies in acknowledged.items():
        if not bodies:
            continue
        start = read_up_to[topic, partition]
        found = read_partition(broker, topic, partition, start)
        lost = [offset for offset, body in bodies.items() if offset >= start and found.get(offset, (None,))[0] != body]
        assert not lost, f"{topic}-{partition}: {len(lost)} acknowledged messages lost, first at {min(lost)}"
        ids = [message_id for _, message_id in found.values()]
        assert ids == sorted(ids)
        assert not ids_seen.intersection(ids), "a message id was given twice"
        ids_seen.update(ids)
        if found:
            last = max(found)
            read_up_to[topic, partition] = last + 20 + len(found[last][0])


def test_start_after_a_kill_takes_less_than_two_seconds_of_a_processor_with_a_gigabyte_of_data(tmp_path):
    ini = server_ini(
        tmp_path / "data", {"big": "numPartitions=1"}, unflush_threshold=100_000, max_segment_size=256 << 20
    )
    bodies = [b"%06d" % number + bytes(1018) for number in range(1000)]
    frame = batch_frame("big", 0, bodies)
    try:
        with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
            sent = 0
            while sent < 1 << 30:
                for _ in range(4):
                    connection.send(frame)
                sent += 4 * len(frame)
                assert all(answer.code == ResponseCode.SUCCESS for answer in connection.frames(4))
            broker.kill()
        with ForkedBroker(tmp_path, ini) as broker, broker.connect() as connection:
            assert cpu_seconds(broker.process.pid) < 2.0  # whatever else runs; bench/startup.py has the seconds
            stats = connection.ask(b"stats topics 1\r\n").text
            messages = int(stats.split("message_count ")[1].split(" ")[0])
            assert messages >= 1_000_000
            assert broker.stop() == 0
    finally:
        shutil.rmtree(tmp_path / "data")
