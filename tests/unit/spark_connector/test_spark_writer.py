"""What a DataFrame must look like to be written: checked on the driver."""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, StringType, StructType

from metaq.client.producer import partition_for_key
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.settings.config import ProducerConfig
from metaq.protocol.errors import ClientError, ConfigError
from metaq.protocol.record import COMPRESSED_FLAG, DELAYED_FLAG, EXPIRES_FLAG
from metaq.spark_connector import writer
from metaq.spark_connector.columns import check_columns, rows_by_topic
from metaq.spark_connector.options import WriteOptions
from metaq.spark_connector.source import MetaqDataSource
from metaq.spark_connector.writer import MetaqWriter

TO_OUT = WriteOptions(zookeeper="h:1", topic="out")
BY_ROW = WriteOptions(zookeeper="h:1")


MAP = MapType(StringType(), StringType())
KAFKAS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))


def schema(text):
    result = StructType()
    for column in text.split(","):
        name, kind = column.split()
        result = result.add(name, kind)
    return result


@pytest.mark.parametrize(
    ("text", "options"),
    [
        *((text, TO_OUT) for text in ("value string", "value binary", "key binary,value string")),
        ("key string,value binary,tag string", TO_OUT),
        ("topic string,value string", BY_ROW),
    ],
)
def test_columns_of_a_message_are_accepted(text, options):
    check_columns(schema(text), options)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("key string", TO_OUT, "column=value: is missing"),
        ("value integer", TO_OUT, "cast it to string or binary"),
        ("value string,carrier string", TO_OUT, "column=carrier: is not written"),
        ("value string,tag integer", TO_OUT, "cast it to string"),
        ("value string", BY_ROW, "set the option, or add a column topic"),
        ("value string,topic string", TO_OUT, "not both"),
        ("value string,attribute binary", TO_OUT, "cast it to string"),
        ("value string,value binary", TO_OUT, "names a column twice"),
        ("value string,deliver_at string", TO_OUT, "cast it to timestamp"),
        ("value string,priority string", TO_OUT, "cast it to int"),
        ("value string,priority double", TO_OUT, "int"),
        (
            "value string,deliver_at timestamp",
            WriteOptions.parse({"zookeeper": "z", "topic": "out", "exactlyOnce": "true"}),
            "exactlyOnce=true: does not go with the column deliver_at",
        ),
    ],
)
def test_other_columns_are_refused_with_the_remedy(text, options, said):
    with pytest.raises(ConfigError, match=said):
        check_columns(schema(text), options)


@pytest.mark.parametrize(
    "kind",
    [
        StringType(),
        MapType(StringType(), IntegerType()),
        MapType(IntegerType(), StringType()),
        ArrayType(StringType()),
        ArrayType(StructType().add("value", StringType()).add("key", StringType())),
    ],
)
def test_headers_of_another_type_are_refused(kind):
    with pytest.raises(ConfigError, match="cast it to map<string,string> or array<struct<key:string,value:binary>>"):
        check_columns(schema("value string").add("headers", kind), TO_OUT)


def test_overwriting_a_topic_is_refused():
    source = MetaqDataSource({"zookeeper": "h:1", "topic": "out"})
    with pytest.raises(ConfigError, match='choose mode\\("append"\\)'):
        source.writer(schema("value string"), overwrite=True)


def told(item):
    """A payload, or what is written with it."""
    if isinstance(item, bytes):
        return item
    assert item.flag
    return (item.payload, item.keys, item.tag, item.attribute, dict(item.properties))


class Recorder:
    """A producer that keeps what it is given."""

    sent: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *_args, **_options):
        self.sent.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_exc_info):
        return None

    def partitions(self, topic):
        return tuple(TopicPartition(topic, 0, number) for number in range(2))

    def send_batch(self, topic, items, *, key=None):
        self.sent.append((topic, [told(item) for item in items], key))


@pytest.fixture
def sent(monkeypatch):
    monkeypatch.setattr(writer, "Producer", Recorder)
    return Recorder.sent


def write(options, columns, **arrays):
    batch = pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in arrays.items()})
    return MetaqWriter(options, schema(columns)).write(iter([batch]))


def test_rows_without_keys_go_in_batches(sent):
    done = write(WriteOptions("h:1", "out", batch_messages=2), "value string", value=["a", "b", "ä"])
    assert sent == [("out", [b"a", b"b"], None), ("out", ["ä".encode()], None)]
    assert done.rows == 3


def test_rows_with_a_key_go_in_batches_for_its_partition_with_the_keys_words(sent):
    write(
        TO_OUT,
        "key binary,value string,tag string",
        key=[b"o 1", None, b"o 1", b"abc"],
        value=["a", "b", "c", "d"],
        tag=[None, "t", "t", None],
    )
    with_key: list[Any] = [(b"a", ("o", "1"), None, None, {}), (b"c", ("o", "1"), "t", None, {})]
    partitions = [TopicPartition("out", 0, number) for number in range(2)]
    assert partition_for_key("o 1", partitions) != partition_for_key("abc", partitions)
    assert sent == [
        ("out", [(b"b", (), "t", "t", {})], None),
        ("out", with_key, "o 1"),
        ("out", [(b"d", ("abc",), None, None, {})], "abc"),
    ]


@pytest.mark.parametrize("key", [" ", "a\tb", "a  b", " a", "a\n"])
def test_a_key_that_would_be_read_as_another_one_is_refused(sent, key):
    with pytest.raises(ClientError, match=r"a row's key .* could not be read as it is"):
        write(TO_OUT, "key string,value string", key=[key], value=["a"])
    assert sent == []


def as_array(headers):
    return pa.array([[{"key": name, "value": value} for name, value in headers.items()]])


TYPED_OUT = WriteOptions.parse({"zookeeper": "z", "topic": "out", "typedHeaders": "true"})
TYPED = {"n": b"\x03i-7", "raw": b"\x03x/w==", "yes": b"\x03b1", "h": b"v", "metaq.type": b"text/x"}


@pytest.mark.parametrize(
    ("options", "kind", "headers", "properties"),
    [
        pytest.param(TO_OUT, MAP, pa.array([[("h", "v")]], pa.map_(pa.string(), pa.string())), {"h": "v"}, id="a map"),
        pytest.param(TO_OUT, KAFKAS, as_array({"h": b"v"}), {"h": "v"}, id="Kafka's array"),
        pytest.param(TO_OUT, KAFKAS, as_array({"h": b"\xff"}), {"h": b"\xff"}, id="what is no text becomes bytes"),
        pytest.param(
            TYPED_OUT, KAFKAS, as_array(TYPED), {"n": -7, "raw": b"\xff", "yes": True, "h": "v"}, id="what they were"
        ),
    ],
)
def test_headers_become_properties(sent, options, kind, headers, properties):
    batch = pa.RecordBatch.from_pydict({"value": ["3"], "headers": headers})
    MetaqWriter(options, schema("value string").add("headers", kind)).write(iter([batch]))
    assert sent == [("out", [(b"3", (), None, None, properties)], None)]


def test_attributes_are_written_with_and_without_headers(sent):
    headers = pa.array([[("h", "v")], None], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_pydict({"value": ["1", "2"], "attribute": ["a", "a"], "headers": headers})
    MetaqWriter(TO_OUT, schema("value string,attribute string").add("headers", MAP)).write(iter([batch]))
    assert sent == [("out", [(b"1", (), None, "a", {"h": "v"}), (b"2", (), "a", "a", {})], None)]


def test_a_message_that_is_sent_again_with_typed_headers_expires_when_it_did():
    """Restoring an archive revived messages that had expired."""
    headers = [[{"key": "metaq.expires", "value": b"1700000000000"}, {"key": "h", "value": b"v"}]]
    batch = pa.RecordBatch.from_pydict({"value": ["3"], "headers": pa.array(headers)})
    ((item,),) = [rows.items for rows in rows_by_topic(batch, "out", typed=True)]
    assert isinstance(item, Message)
    assert item.flag & EXPIRES_FLAG
    assert item.has_expired(1_700_000_000_000)
    assert not item.has_expired(1_699_999_999_999)
    assert item.properties == {"h": "v"}


def test_rows_go_to_their_topics_in_order(sent):
    write(BY_ROW, "topic string,value string", topic=["x", "y", "x"], value=["1", "2", "3"])
    assert sent == [("x", [b"1", b"3"], None), ("y", [b"2"], None)]


def headers(*pairs):
    return {"value": ["1"], "headers": [[pair and dict(zip(("key", "value"), pair, strict=True)) for pair in pairs]]}


FAR = pa.array([datetime.now(UTC) + timedelta(days=367)], pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("columns", "arrays", "said"),
    [
        ("value string", {"value": ["a", None]}, "column value is null"),
        ("topic string,value string", {"topic": ["a", None], "value": ["1", "2"]}, "column topic is null"),
        ("key binary,value string", {"key": [b"\xff"], "value": ["1"]}, "column key is not UTF-8"),
        ("value string", headers(("h", None)), "column headers: 'h' has no value, but null"),
        ("value string", headers((None, b"v")), "column headers: a name is null"),
        ("value string", headers(None), "column headers: a name is null"),
        ("value string", headers(("h", b"1"), ("h", b"2")), "column headers has 'h' twice"),
        ("value string", headers(("metaq.x", b"v")), "'metaq.x' is reserved"),
        ("value string", headers(("a\x01", "1")), "0x01 or 0x02"),
        *(
            (
                "value string,priority integer",
                {"value": ["a", "b"], "priority": [1, wrong]},
                f"column priority is {wrong} in a row: choose 0",
            )
            for wrong in (-1, 10)
        ),
        (
            "value string,deliver_at timestamp",
            {"value": ["a"], "deliver_at": FAR},
            "column deliver_at is more than 366 days ahead in a row",
        ),
    ],
)
def test_a_row_that_is_no_message_fails_the_task(sent, columns, arrays, said):
    with pytest.raises(ClientError, match=said):
        write(BY_ROW if "topic" in arrays else TO_OUT, columns, **arrays)


@pytest.fixture
def raw(monkeypatch):
    """Topic and messages of each batch, as they are sent."""
    batches: list[Any] = []

    class Raw(Recorder):
        def send_batch(self, topic, items, *, key=None):
            batches.append(list(items))

    monkeypatch.setattr(writer, "Producer", Raw)
    return batches


def test_rows_that_wait_go_in_batches_of_their_own(raw):
    due = datetime.now(UTC) + timedelta(hours=1)
    due = due.replace(microsecond=1500)
    times = pa.array([None, due, None, due], pa.timestamp("us", tz="UTC"))
    write(TO_OUT, "value string,deliver_at timestamp", value=["a", "b", "c", "d"], deliver_at=times)
    assert raw[0] == [b"a", b"c"]
    assert [(each.payload, bool(each.flag & DELAYED_FLAG)) for each in raw[1]] == [(b"b", True), (b"d", True)]
    milliseconds = int(due.timestamp()) * 1000 + 2  # rounded up: never early
    assert {each.attributes.reserved["metaq.due"] for each in raw[1]} == {str(milliseconds)}


@pytest.mark.parametrize("kind", ["byte", "integer", "long"])
def test_the_column_priority_is_the_messages_priority(raw, kind):
    write(TO_OUT, f"value string,priority {kind}", value=["a", "b", "c"], priority=[9, None, 0])
    ((urgent, *rest),) = raw
    assert (urgent.payload, urgent.priority) == (b"a", 9)
    assert rest == [b"b", b"c"]


def test_payloads_are_compressed_with_and_without_attributes(raw, monkeypatch):
    configs: list[ProducerConfig] = []
    raw_producer: Any = vars(writer)["Producer"]

    def new_producer(*_given, config, **_more):
        configs.append(config)
        return raw_producer()

    monkeypatch.setattr(writer, "Producer", new_producer)
    options = WriteOptions.parse({"zookeeper": "z", "topic": "out", "compression": "ZSTD"})
    write(options, "value string,tag string", value=["x" * 1000, "y" * 1000, "short"], tag=["t", None, "t"])
    ((packed, plain, short),) = raw
    assert (packed.flag & COMPRESSED_FLAG, packed.payload, packed.tag) == (COMPRESSED_FLAG, b"x" * 1000, "t")
    assert plain == b"y" * 1000  # by the producer
    assert [config.compression for config in configs] == ["zstd"]
    assert not short.flag & COMPRESSED_FLAG


def test_reader_and_writer_can_be_pickled_to_executors():
    import pickle

    from metaq.client.transport.connection import Endpoint
    from metaq.spark_connector.offsets import OffsetRange

    source = MetaqDataSource({"zookeeper": "h:1", "subscribe": "trades"})
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    assert reader.options.topics == ("trades",)
    planned = OffsetRange(TopicPartition("trades", 0, 1), Endpoint("h", 1), 0, 10)
    assert pickle.loads(pickle.dumps(planned)) == planned
