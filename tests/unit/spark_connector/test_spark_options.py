"""Options of the data source: defaults, and that a wrong one names the option, the value and the choices."""

import json
import re

import pytest

from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import ConfigError
from metaq.spark_connector.options import STREAM_NAMES, At, BatchLimits, Explicit, ReadOptions, Times, WriteOptions

GIVEN = {"zookeeper": "host:2181", "subscribe": "trades"}


def test_a_read_needs_only_zookeeper_and_topics():
    options = ReadOptions.parse(GIVEN)
    assert (options.zookeeper, options.topics) == ("host:2181", ("trades",))
    assert (options.starting, options.ending, options.group) == ("earliest", "latest", None)
    assert options.fail_on_data_loss


def test_option_names_have_any_case_as_in_spark():
    options = ReadOptions.parse({"ZooKeeper": "h:1", "SUBSCRIBE": "a", "startingoffsets": "Earliest"})
    assert options.starting == "earliest"


def test_topics_are_separated_by_commas_and_counted_once():
    assert ReadOptions.parse(GIVEN | {"subscribe": "a, b,a"}).topics == ("a", "b")
    assert ReadOptions.parse({"zookeeper": "host:2181", "path": "a, b"}).topics == ("a", "b")
    assert ReadOptions.parse(GIVEN | {"path": "trades"}) == ReadOptions.parse(GIVEN)


@pytest.mark.parametrize(
    ("option", "offsets"), [("startingOffsets", {"0-0": 4096, "0-1": -2}), ("endingOffsets", {"0-0": -1})]
)
def test_offsets_are_given_as_json_by_topic_and_partition(option, offsets):
    options = ReadOptions.parse(GIVEN | {option: json.dumps({"trades": offsets})})
    assert Explicit({"trades": offsets}) in (options.starting, options.ending)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("provider", "metaq", "CREATE TEMPORARY VIEW"),
        ("path", "file:/somewhere", "names another topic than the option subscribe"),
        ("startingOffsets", "latest", "earliest, committed"),
        ("startingOffsets", '{"trades":{"0-0":-1}}', "would be empty"),
        ("subscribePattern", "a.*", "choose one of subscribe, subscribePattern, assign"),
        ("assign", "{}", "choose one of subscribe"),
    ],
)
def test_what_does_not_go_with_a_batch_of_one_topic_is_refused(name, value, choices):
    """Values that are wrong in every read: test_spark_wrong_values.py."""
    with pytest.raises(ConfigError) as refused:
        ReadOptions.parse(GIVEN | {name: value})
    assert refused.value.option == name
    assert choices in str(refused.value)
    assert value in str(refused.value)


def test_a_stream_starts_at_the_end_and_has_limits():
    options = ReadOptions.parse(GIVEN, "stream")
    assert options.starting == "latest"
    assert options.limits == BatchLimits(None, None, None, 900.0)
    given = {"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "20", "minOffsetsPerTrigger": "5"}
    limits = ReadOptions.parse(GIVEN | given | {"maxTriggerDelay": "500ms"}, "stream").limits
    assert limits == BatchLimits(10, 20, 5, 0.5)
    with pytest.raises(ConfigError, match="is more than maxOffsetsPerTrigger=10"):
        ReadOptions.parse(GIVEN | given | {"minOffsetsPerTrigger": "11"}, "stream")


def test_what_is_read_is_named_in_one_of_three_ways():
    only = {"zookeeper": "host:2181"}
    assert ReadOptions.parse(only | {"subscribePattern": "tr.*"}).pattern == "tr.*"
    assigned = ReadOptions.parse(only | {"assign": '{"t":["0-1","1-0"]}'}).assigned
    assert assigned == (TopicPartition("t", 0, 1), TopicPartition("t", 1, 0))
    with pytest.raises(ConfigError, match="subscribePattern or assign"):
        ReadOptions.parse(only)


def test_times_go_before_offsets_as_in_the_kafka_source():
    times = {"startingOffsetsByTimestamp": '{"trades":{"0-0":7}}', "startingOffsets": "earliest"}
    assert ReadOptions.parse(GIVEN | times).starting == Times({"trades": {"0-0": 7}})
    assert ReadOptions.parse(GIVEN | times | {"startingTimestamp": "5"}).starting == At(5)
    assert ReadOptions.parse(GIVEN | {"endingTimestamp": "5"}).ending == At(5)


@pytest.mark.parametrize(("name", "guess"), [("startingOffset", "startingOffsets"), ("subscribed", "subscribe")])
def test_unknown_option_is_refused_with_a_guess(name, guess):
    with pytest.raises(ConfigError, match=f"did you mean {guess}"):
        ReadOptions.parse(GIVEN | {name: "x"})
    with pytest.raises(ConfigError, match="subscribe"):
        WriteOptions.parse({"zookeeper": "h:1", "topic": "out", "subscribe": "trades"})


def test_a_write_takes_its_topic_from_the_option_or_the_rows():
    assert WriteOptions.parse({"zookeeper": "h:1", "topic": "out"}).topic == "out"
    assert WriteOptions.parse({"zookeeper": "h:1"}).topic is None


def test_a_table_is_read_without_its_options_and_says_so():
    for parse in (ReadOptions.parse, WriteOptions.parse):
        with pytest.raises(ConfigError, match=r"all options are\. Spark reads and writes a table without its options"):
            parse({})


@pytest.mark.parametrize(
    ("mode", "value", "said"),
    [
        ("batch", "", 'choose from earliest, committed, JSON like {"trades":{"0-0":4096,"0-1":-2}}'),
        ("stream", "", 'choose from earliest, committed, latest, JSON like {"trades":{"0-0":4096,"0-1":-2}}'),
        ("batch", '{"t": {"0-0": -3}}', "t 0-0 needs a byte offset (-2: earliest): write JSON"),
        ("stream", '{"t": {"0-0": -3}}', "t 0-0 needs a byte offset (-2: earliest, -1: latest): write JSON"),
        ("any", '{"t": {"0-0": -3}}', "(-2: earliest, -1: latest; latest and -1 are for streams only)"),
        (
            "any",  # at load(), which does not know what it is for
            "",
            'choose from earliest, committed, latest, JSON like {"trades":{"0-0":4096,"0-1":-2}}; '
            "latest and -1 are for streams only",
        ),
    ],
)
def test_a_refused_start_names_only_what_is_legal_there(mode, value, said):
    with pytest.raises(ConfigError) as refused:
        ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "startingOffsets": value}, mode)
    assert said in str(refused.value)


def test_a_refused_end_names_only_what_is_legal_there():
    given = {"zookeeper": "h:1", "subscribe": "t"}
    with pytest.raises(ConfigError, match=r'choose from latest, JSON like {"trades":{"0-0":4096,"0-1":-1}}$'):
        ReadOptions.parse(given | {"endingOffsets": ""})
    with pytest.raises(ConfigError, match=r"needs a byte offset \(-1: latest\): write"):
        ReadOptions.parse(given | {"endingOffsets": '{"t": {"0-0": -3}}'})


def test_an_unknown_option_is_answered_with_those_of_each_kind():
    with pytest.raises(ConfigError) as refused:
        ReadOptions.parse({"zookeeper": "h:1", "subscribe": "t", "offsets": "1"})
    common, batch, stream = re.split(", for batch queries also |, for streams also ", str(refused.value))
    assert batch == "endingOffsets, endingTimestamp, endingOffsetsByTimestamp, pushFilters"
    assert set(stream.split(", ")) == set(STREAM_NAMES)
    assert "startingOffsets" in common
