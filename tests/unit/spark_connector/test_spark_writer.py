"""What a DataFrame must look like to be written: checked on the driver."""

from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StructType

from metaq.client.values import TopicPartition
from metaq.protocol.errors import ClientError, ConfigError
from metaq.spark_connector import writer
from metaq.spark_connector.options import WriteOptions
from metaq.spark_connector.source import MetaqDataSource
from metaq.spark_connector.writer import MetaqWriter, check_columns

TO_OUT = WriteOptions(zookeeper="h:1", topic="out")
BY_ROW = WriteOptions(zookeeper="h:1")


def schema(text):
    result = StructType()
    for column in text.split(","):
        name, kind = column.split()
        result = result.add(name, kind)
    return result


@pytest.mark.parametrize(
    "text", ["value string", "value binary", "key string,value binary,tag string", "key binary,value string"]
)
def test_columns_of_a_message_are_accepted(text):
    check_columns(schema(text), TO_OUT)


def test_topic_may_come_from_the_rows():
    check_columns(schema("topic string,value string"), BY_ROW)


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("key string", TO_OUT, "column=value: is missing"),
        ("value integer", TO_OUT, "cast it to string or binary"),
        ("value string,carrier string", TO_OUT, "column=carrier: is not written"),
        ("value string,tag integer", TO_OUT, "cast it to string"),
        ("value string", BY_ROW, "set the option, or add a column topic"),
        ("value string,topic string", TO_OUT, "not both"),
    ],
)
def test_other_columns_are_refused_with_the_remedy(text, options, said):
    with pytest.raises(ConfigError, match=said):
        check_columns(schema(text), options)


def test_overwriting_a_topic_is_refused():
    source = MetaqDataSource({"zookeeper": "h:1", "topic": "out"})
    with pytest.raises(ConfigError, match='choose mode\\("append"\\)'):
        source.writer(schema("value string"), overwrite=True)


def test_a_schema_of_ones_own_is_refused_for_reading():
    source = MetaqDataSource({"zookeeper": "h:1", "subscribe": "trades"})
    with pytest.raises(ConfigError, match="is fixed: leave it out"):
        source.reader(StructType().add("value", IntegerType()))


class Acknowledged:
    def result(self):
        return None


class Recorder:
    """A producer that keeps what it is given."""

    sent: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *_args, **_options):
        self.sent.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_exc_info):
        return None

    def send_batch(self, topic, payloads):
        self.sent.append((topic, list(payloads)))

    def send_async(self, topic, payload, *, key, keys, tag):
        self.sent.append((topic, payload, key, tuple(keys), tag))
        return Acknowledged()


@pytest.fixture
def sent(monkeypatch):
    monkeypatch.setattr(writer, "Producer", Recorder)
    return Recorder.sent


def write(options, columns, **arrays):
    batch = pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in arrays.items()})
    return MetaqWriter(options, schema(columns)).write(iter([batch]))


def test_rows_without_keys_go_in_batches(sent):
    done = write(WriteOptions("h:1", "out", batch_messages=2), "value string", value=["a", "b", "ä"])
    assert sent == [("out", [b"a", b"b"]), ("out", ["ä".encode()])]
    assert done.rows == 3


def test_rows_with_key_and_tag_go_one_by_one_with_the_keys_words(sent):
    write(TO_OUT, "key binary,value string,tag string", key=[b"o 1", None], value=["a", "b"], tag=[None, "t"])
    assert sent == [("out", b"a", "o 1", ("o", "1"), None), ("out", b"b", None, (), "t")]


def test_rows_go_to_their_topics_in_order(sent):
    write(BY_ROW, "topic string,value string", topic=["x", "y", "x"], value=["1", "2", "3"])
    assert sent == [("x", [b"1", b"3"]), ("y", [b"2"])]


@pytest.mark.parametrize(
    ("columns", "arrays", "said"),
    [
        ("value string", {"value": ["a", None]}, "column value is null"),
        ("topic string,value string", {"topic": ["a", None], "value": ["1", "2"]}, "column topic is null"),
        ("key binary,value string", {"key": [b"\xff"], "value": ["1"]}, "column key is no UTF-8"),
    ],
)
def test_a_row_that_is_no_message_fails_the_task(sent, columns, arrays, said):
    with pytest.raises(ClientError, match=said):
        write(BY_ROW if "topic" in arrays else TO_OUT, columns, **arrays)


def test_reader_and_writer_can_be_pickled_to_executors():
    import pickle

    from metaq.client.connection import Endpoint
    from metaq.spark_connector.offsets import OffsetRange

    source = MetaqDataSource({"zookeeper": "h:1", "subscribe": "trades"})
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    assert reader.options.topics == ("trades",)
    planned = OffsetRange(TopicPartition("trades", 0, 1), Endpoint("h", 1), 0, 10)
    assert pickle.loads(pickle.dumps(planned)) == planned
