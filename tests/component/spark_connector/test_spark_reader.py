"""A task's reader when its broker goes away: it goes on where it was, at the master again or at a slave."""

from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from metaq.client.questions.sources import Source
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ConnectionConfig, Protocol
from metaq.client.transport.connection import open_connection
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.compression import compress
from metaq.protocol.errors import BrokerUnavailable, ConfigError, CorruptRecord
from metaq.protocol.record import COMPRESSED_FLAG, HEADER_BYTES, encode_attributes, encode_body
from metaq.spark_connector import reader as module
from metaq.spark_connector.offsets import DataLoss, OffsetRange
from metaq.spark_connector.options import Explicit, ReadOptions
from metaq.spark_connector.planning import FAILOVER_SECONDS, check_begins, ending_behind
from metaq.spark_connector.reader import Failover, read_partition
from metaq.spark_connector.schema import SPARK_SCHEMA_WITH_HEADERS
from metaq.spark_connector.source import MetaqDataSource
from metaq.testing import FakeBroker

ZERO = TopicPartition("t", 0, 0)
PAYLOADS = [f"{number:04d}".encode() * 100 for number in range(100)]
SIZE = HEADER_BYTES + 400
OPTIONS = ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "metaq.fetch.bytes": "4096"})


@contextmanager
def brokers(*copied: int):
    """Brokers that hold so many of the messages, each."""
    with ExitStack() as stack:
        running = [stack.enter_context(FakeBroker(topics={"t": 1})) for _ in copied]
        for broker, count in zip(running, copied, strict=True):
            broker.append("t", 0, *PAYLOADS[:count])
        yield running


@pytest.fixture
def now(monkeypatch):
    """A clock that sleeping moves."""
    time = [0.0]

    def sleep(seconds):
        time[0] += seconds

    monkeypatch.setattr(
        module, "Failover", lambda planned, options: Failover(planned, options, clock=lambda: time[0], sleep=sleep)
    )
    return time


def registered(monkeypatch, *answers, place=ZERO, moves=()):
    """What ZooKeeper says of the partition, one look after the other; the last for ever. place: where it is then."""
    left = list(answers)

    def sources(partitions):
        endpoint = left.pop(0) if len(left) > 1 else left[0]
        return {} if endpoint is None or partitions != [place] else {place: Source(endpoint, False)}

    @contextmanager
    def cluster(options):
        yield SimpleNamespace(sources=sources, moves=lambda: list(moves))

    monkeypatch.setattr(module, "open_cluster", cluster)


def rows(batches):
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def planned(broker, messages=100):
    return InputPartition(OffsetRange(ZERO, broker.endpoint, 0, messages * SIZE))


def test_a_task_goes_on_at_the_slave_where_the_master_left_off(monkeypatch, now):
    with brokers(100, 100) as (master, slave):
        registered(monkeypatch, None, master.endpoint, slave.endpoint)
        batches = read_partition(OPTIONS, planned(master))
        first = next(batches)
        master.stop()
        assert rows([first, *batches]) == PAYLOADS
        assert 0 < first.num_rows < 100
    assert 0 < now[0] < FAILOVER_SECONDS


def test_a_task_follows_the_leader_of_a_broker_set(monkeypatch, now):
    with brokers(100, 100) as (former, leader):
        registered(monkeypatch, former.endpoint)  # ZooKeeper is slower
        batches = read_partition(OPTIONS, planned(former))
        first = next(batches)
        former.leader = str(leader.endpoint)
        assert rows([first, *batches]) == PAYLOADS
        assert leader.pulls
    assert now[0] == 0.0


def test_a_task_goes_on_where_its_partition_was_moved_to(monkeypatch, now):
    """Its source may be stopped when the move is done, with micro-batches under way that were planned there."""
    place = TopicPartition("t", 7, 2)
    with brokers(100) as (source,), FakeBroker(topics={"t": 3}) as target:
        target.append("t", 2, *PAYLOADS)
        asked = Move("t", 0, 0, 1, 7, 1)
        registered(monkeypatch, target.endpoint, place=place, moves=[asked])
        batches = read_partition(OPTIONS, planned(source))
        first = next(batches)
        registered(
            monkeypatch, target.endpoint, place=place, moves=[replace(asked, state=MoveState.DONE, target_first=2)]
        )
        source.stop()
        read = [first, *batches]
    assert rows(read) == PAYLOADS
    assert {(row["broker"], row["partition"]) for batch in read for row in batch.to_pylist()} == {(0, 0)}


def test_a_task_waits_while_a_broker_set_has_no_leader(monkeypatch, now):
    with brokers(100) as (node,):
        registered(monkeypatch, node.endpoint)
        node.leader = ""
        with pytest.raises(BrokerUnavailable, match="does not lead broker 0"):
            list(read_partition(OPTIONS, planned(node)))
    assert FAILOVER_SECONDS - 2 < now[0] <= FAILOVER_SECONDS


def test_a_broker_that_stays_away_is_an_error_that_names_it(monkeypatch, now):
    with brokers(100) as (master,):
        registered(monkeypatch, None)
        batches = read_partition(OPTIONS, planned(master))
        read = [next(batches)]
        master.stop()
        with pytest.raises(BrokerUnavailable, match="start broker 0, or its slave, then the query") as refused:
            read.extend(batches)
        assert f"t 0-0 was not readable from byte {len(rows(read)) * SIZE} on" in str(refused.value)
    assert FAILOVER_SECONDS - 2 < now[0] <= FAILOVER_SECONDS


@pytest.mark.parametrize("copied", [0, 3, 50])
def test_what_a_slave_has_not_copied_is_no_loss(monkeypatch, now, copied):
    with brokers(100, copied) as (master, slave):
        registered(monkeypatch, slave.endpoint)
        batches = read_partition(OPTIONS, planned(master))
        read = [next(batches)]
        master.stop()
        with pytest.raises(BrokerUnavailable, match=f"has {copied * SIZE} bytes of the {100 * SIZE}"):
            read.extend(batches)
        assert rows(read) == PAYLOADS[: len(rows(read))]


def test_deleted_messages_are_still_data_loss_at_the_planned_broker(now):
    with brokers(100) as (master,):
        master.log("t", 0).drop_before(10 * SIZE)
        with pytest.raises(DataLoss, match=rf"t 0-0: \[0, {10 * SIZE}\)"):
            list(read_partition(OPTIONS, planned(master)))
        accepting = ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "failOnDataLoss": "false"})
        assert rows(read_partition(accepting, planned(master))) == PAYLOADS[10:]


def test_an_offset_inside_a_record_is_refused_rather_than_asked_for_for_ever(now):
    with brokers(100) as (master,):
        inside = InputPartition(OffsetRange(ZERO, master.endpoint, 7, 100 * SIZE))
        with pytest.raises(DataLoss, match=rf"t 0-0: \[7, {SIZE}\)"):
            list(read_partition(OPTIONS, inside))


def test_only_the_columns_of_a_given_schema_go_to_spark():
    source = MetaqDataSource({"zookeeper": "h:1", "subscribe": "t"})
    headers = SPARK_SCHEMA_WITH_HEADERS["headers"]
    made = source.reader(StructType().add("offset", "long").add("value", "binary").add(headers))
    with brokers(100) as (master,):
        batches = list(made.read(planned(master)))
    assert {tuple(batch.schema.names) for batch in batches} == {("offset", "value", "headers")}
    assert all(batch.schema.field("value").nullable for batch in batches)  # as Spark has what a user wrote
    assert rows(batches) == PAYLOADS
    for name, kind in (("value", "string"), ("values", "binary")):
        with pytest.raises(ConfigError, match=f"schema={name} {kind}: choose from key binary, value binary, topic"):
            source.reader(StructType().add(name, kind))


@pytest.mark.parametrize("protocol", ["auto", "text"])
@pytest.mark.parametrize("bad", [[0], [5], [6], [99], [0, 7, 8, 30, 99]])
def test_damage_is_data_loss_with_its_range_or_passed_over(now, caplog, protocol, bad):
    options = {"zookeeper": "h:1", "subscribe": "t", "metaq.fetch.bytes": "4096", "metaq.protocol": protocol}
    options["metaq.check.crcs"] = "true"
    with brokers(100) as (master,):
        for number in bad:
            master.log("t", 0).data[number * SIZE + 50 * (number % 2)] ^= 0x40
        read: list[pa.RecordBatch] = []
        with pytest.raises(CorruptRecord) as caught:
            read.extend(read_partition(ReadOptions.parse(options), planned(master)))
        assert (caught.value.position, caught.value.end) == (bad[0] * SIZE, (bad[0] + 1) * SIZE)
        assert rows(read) == PAYLOADS[: bad[0]]
        accepting = ReadOptions.parse(options | {"failOnDataLoss": "false"})
        assert rows(read_partition(accepting, planned(master))) == [
            payload for number, payload in enumerate(PAYLOADS) if number not in bad
        ]
    joined = {number * SIZE for number in bad}
    assert all(f"[{start}, " in caplog.text for start in joined if protocol == "auto" or start - SIZE not in joined)


def test_the_text_protocol_is_asked_for_more_where_a_message_is_larger_than_a_fetch(now):
    options = ReadOptions.parse(
        {"zookeeper": "h:1", "subscribe": "t", "metaq.fetch.bytes": "4096", "metaq.protocol": "text"}
    )
    sent = [b"small", b"x" * 3_000_000, b"small", b"y" * 5_000]
    with FakeBroker(topics={"t": 1}) as broker:
        broker.append("t", 0, *sent)
        everything = InputPartition(OffsetRange(ZERO, broker.endpoint, 0, broker.log("t", 0).end))
        assert rows(read_partition(options, everything)) == sent
        broker.max_transfer_bytes = 100_000
        with pytest.raises(CorruptRecord, match=r"no complete record in 100000 bytes, .* maxTransferSize"):
            list(read_partition(options, everything))


LONG = b"again and again " * 100


def mixed(*packed, **options):
    """(flag, body) of a message."""
    flag, raw = encode_attributes(**options)
    payload = b"no frame" if packed == (b"bad",) else compress(LONG, 3)
    return flag | COMPRESSED_FLAG, encode_body(payload, flag, raw)


def read_all(broker, count, planned_ms=0, **options):
    size = sum(len(each) + HEADER_BYTES for each in broker.bodies("t", 0))
    assert len(broker.bodies("t", 0)) == count
    given = ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", **options})
    where = OffsetRange(ZERO, broker.endpoint, 0, size, planned_ms=planned_ms)
    return list(read_partition(given, InputPartition(where)))


@pytest.mark.parametrize("options", [{}, {"metaq.check.crcs": "true"}, {"metaq.protocol": "text"}])
def test_compressed_payloads_come_as_they_were_sent(options):
    with FakeBroker(topics={"t": 1}) as broker:
        broker.append("t", 0, b"plain")
        for tag in ("a", "b"):
            flag, body = mixed(tag=tag)
            broker.append("t", 0, body, flag=flag)
        (found,) = map(pa.Table.from_batches, [read_all(broker, 3, **options)])
    assert found["value"].to_pylist() == [b"plain", LONG, LONG]
    assert found["tag"].to_pylist() == [None, "a", "b"]


def test_a_payload_that_cannot_be_unpacked_is_data_loss():
    with FakeBroker(topics={"t": 1}) as broker:
        for packed in ((), (b"bad",), ()):
            flag, body = mixed(*packed)
            broker.append("t", 0, body, flag=flag)
        with pytest.raises(CorruptRecord, match="no Zstandard frame"):
            read_all(broker, 3)
        assert rows(read_all(broker, 3, failOnDataLoss="false")) == [LONG, LONG]


def test_what_had_expired_when_the_query_was_planned_is_left_out_however_late_a_task_is_repeated():
    with FakeBroker(topics={"t": 1}) as broker:
        for expires in (None, "1000", "1001"):
            flag, raw = encode_attributes(reserved=None if expires is None else {"metaq.expires": expires})
            broker.append("t", 0, encode_body(str(expires).encode(), flag, raw), flag=flag)
        assert rows(read_all(broker, 3, planned_ms=1000)) == [b"None", b"1001"]
        assert rows(read_all(broker, 3)) == [b"None", b"1000", b"1001"]


def test_a_position_inside_a_message_of_a_topic_made_anew_is_data_loss(monkeypatch, now, caplog):
    """The new topic has grown beyond the position of a checkpoint: each start of the query failed there for ever."""
    with brokers(10) as (broker,):
        registered(monkeypatch, broker.endpoint)
        inside = InputPartition(OffsetRange(ZERO, broker.endpoint, 2 * SIZE + 7, 10 * SIZE))
        said = rf"t 0-0: \[{2 * SIZE + 7}, {3 * SIZE}\).*made anew, .* or set failOnDataLoss=false"
        with pytest.raises(DataLoss, match=said):
            list(read_partition(OPTIONS, inside))
        assert rows(read_partition(replace(OPTIONS, fail_on_data_loss=False), inside)) == PAYLOADS[3:10]
        assert f"lost while reading: t 0-0: [{2 * SIZE + 7}, {3 * SIZE})" in caplog.text
        at_the_end = InputPartition(OffsetRange(ZERO, broker.endpoint, 9 * SIZE + 1, 9 * SIZE + 5))
        assert rows(read_partition(replace(OPTIONS, fail_on_data_loss=False), at_the_end)) == []


@pytest.mark.parametrize("given", [{}, {"metaq.protocol": "text"}, {"where": "TRUE"}, {"metaq.fetch.bytes": "1048576"}])
def test_a_topic_made_anew_in_whose_messages_the_planned_range_ends_is_data_loss(now, caplog, given):
    """Rows of the new topic came for those of the old one, and nobody said so."""
    options = ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "metaq.fetch.bytes": "4096", **given})
    with brokers(100) as (broker,):
        inside = InputPartition(OffsetRange(ZERO, broker.endpoint, 0, 50 * SIZE + 1))
        with pytest.raises(DataLoss, match=rf"t 0-0: \[0, {50 * SIZE + 1}\).*made anew.*call load\(\) again"):
            list(read_partition(options, inside))
        assert rows(read_partition(replace(options, fail_on_data_loss=False), inside)) == PAYLOADS[:51]
    assert f"lost while reading: t 0-0: [0, {50 * SIZE + 1})" in caplog.text


def ask(broker, question, protocol: Protocol = "auto"):
    """What a cluster's `ask_at` answers."""
    with closing(open_connection(broker.endpoint, ConnectionConfig(protocol=protocol))) as connection:
        return question(connection)


@pytest.mark.parametrize("offset", [7, 3 * SIZE + 400])
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_given_inside_a_message_is_refused_on_the_driver(option, offset):
    """A task told of deleted messages and of a topic made anew, and an end was taken as it was."""
    bounds = Explicit({"t": {"0-0": offset, "0-1": SIZE}})
    with brokers(100) as (broker,):
        cluster: Any = SimpleNamespace(ask_at=lambda endpoint, question: ask(broker, question))
        check_begins(cluster, option, bounds, [(broker.endpoint, ZERO, good) for good in (0, SIZE, 100 * SIZE)])
        check_begins(cluster, option, "earliest", [(broker.endpoint, ZERO, offset)])
        with pytest.raises(ConfigError) as refused:
            check_begins(cluster, option, bounds, [(broker.endpoint, ZERO, offset), (broker.endpoint, ZERO, SIZE)])
    assert refused.value.option == option
    said = (
        f'{option}={{"t":{{"0-0":{offset},"0-1":{SIZE}}}}}: no message begins in t 0-0 at byte {offset} (one does at '
    )
    assert said in str(refused.value)
    assert "offsets as in the column offset, or, if the topic was made anew, set failOnDataLoss=false" in str(
        refused.value
    )


@pytest.mark.parametrize(("offset", "end"), [(-5, -5), (0, 0), (7, SIZE), (SIZE, SIZE), (99 * SIZE + 1, 100 * SIZE)])
def test_a_range_that_a_filter_cuts_inside_a_message_ends_behind_it(offset, end):
    """The same check would take it for a topic made anew; the text protocol cannot tell, and Spark filters again."""
    with brokers(100) as (broker,):
        whole = OffsetRange(ZERO, broker.endpoint, 0, 100 * SIZE)
        cut = ask(broker, partial(ending_behind, found=whole, offset=offset))
        as_text = ask(broker, partial(ending_behind, found=whole, offset=offset), "text")
    assert (cut.start, cut.end) == (0, end)
    assert as_text.end == (whole.end if offset > 0 else offset)


@pytest.mark.parametrize("protocol", ["auto", "text"])
@pytest.mark.parametrize("again", [0, 10, 97])
def test_a_topic_made_anew_that_ends_before_the_planned_range_is_data_loss(now, caplog, protocol, again):
    """Of a DataFrame that was planned before: the broker has nothing at a position that lay in the middle."""
    options = ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "metaq.protocol": protocol})
    with brokers(again) as (broker,):
        with pytest.raises(
            DataLoss, match=rf"t 0-0: \[{again * SIZE}, {100 * SIZE}\).*call load\(\) again for a batch"
        ):
            list(read_partition(options, planned(broker)))
        accepting = replace(options, fail_on_data_loss=False)
        assert rows(read_partition(accepting, planned(broker))) == PAYLOADS[:again]
    assert f"lost while reading: t 0-0: [{again * SIZE}, {100 * SIZE})" in caplog.text


@pytest.mark.parametrize(
    "given",
    [{"tags": "a"}, {"where": "TAGS = 'a'"}, {"where": "TAGS = 'a'", "metaq.check.crcs": "true"}, {"where": "TRUE"}],
    ids=str,
)
def test_a_filtered_range_may_begin_and_end_at_any_message(now, given):
    """What a filter leaves out between the last row and the end of the range was taken for a topic made anew."""
    tags = ["a", "b", "a", "a", None, "b", "a", "b", None, "a", "a", "b"]
    options = ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "metaq.fetch.bytes": "4096", **given})
    with FakeBroker(topics={"t": 1}) as broker:
        begins = []
        for number, tag in enumerate(tags):
            flag, raw = encode_attributes(tag=tag)
            begins += broker.append("t", 0, encode_body(b"%d" % number, flag, raw), flag=flag)
        begins.append(broker.log("t", 0).end)
        for first, last in combinations(range(len(begins)), 2):
            found = InputPartition(OffsetRange(ZERO, broker.endpoint, begins[first], begins[last]))
            chosen = [number for number in range(first, last) if tags[number] == "a" or given == {"where": "TRUE"}]
            assert rows(read_partition(options, found, options.tags)) == [b"%d" % number for number in chosen]
