"""Options of the data source: defaults, and that a wrong one names the option, the value and the choices."""

import pytest

from metaq.protocol.errors import ConfigError
from metaq.spark_connector.options import Explicit, ReadOptions, WriteOptions

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


def test_offsets_are_given_as_json_by_topic_and_partition():
    text = '{"trades":{"0-0":4096,"0-1":-2}}'
    assert ReadOptions.parse(GIVEN | {"startingOffsets": text}).starting == Explicit(
        {"trades": {"0-0": 4096, "0-1": -2}}
    )
    text = '{"trades":{"0-0":-1}}'
    assert ReadOptions.parse(GIVEN | {"endingOffsets": text}).ending == Explicit({"trades": {"0-0": -1}})


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("zookeeper", "", "host:2181"),
        ("subscribe", "", "separated by commas"),
        ("subscribe", "a/b", "without '/'"),
        ("subscribe", "a,,b", "empty"),
        ("startingOffsets", "latest", "earliest, committed"),
        ("startingOffsets", "first", "earliest, committed"),
        ("startingOffsets", "{bad", "is not JSON"),
        ("startingOffsets", '{"trades":5}', "needs an object"),
        ("startingOffsets", '{"trades":{"0-0":"5"}}', "byte offset"),
        ("startingOffsets", '{"trades":{"0-0":-3}}', "-2: earliest"),
        ("startingOffsets", '{"trades":{"0-0":true}}', "byte offset"),
        ("startingOffsets", '{"trades":{"0-0":-1}}', "would be empty"),
        ("startingOffsets", "committed", "needs the option group"),
        ("endingOffsets", "earliest", "choose from latest"),
        ("endingOffsets", '{"trades":{"0-0":-2}}', "would be empty"),
        ("group", "a.b", "forbids"),
        ("failOnDataLoss", "maybe", "true, false"),
        ("metaq.protocol", "http", "auto, text"),
        ("metaq.fetch.bytes", "1", "from 4096"),
        ("metaq.fetch.bytes", "much", "an integer"),
    ],
)
def test_wrong_value_is_refused_with_option_value_and_choices(name, value, choices):
    with pytest.raises(ConfigError) as refused:
        ReadOptions.parse(GIVEN | {name: value})
    assert refused.value.option == name
    assert choices in str(refused.value)
    assert value in str(refused.value)


@pytest.mark.parametrize(("name", "guess"), [("startingOffset", "startingOffsets"), ("subscribed", "subscribe")])
def test_unknown_option_is_refused_with_a_guess(name, guess):
    with pytest.raises(ConfigError, match=f"did you mean {guess}"):
        ReadOptions.parse(GIVEN | {name: "x"})


def test_a_write_takes_its_topic_from_the_option_or_the_rows():
    assert WriteOptions.parse({"zookeeper": "h:1", "topic": "out"}).topic == "out"
    assert WriteOptions.parse({"zookeeper": "h:1"}).topic is None


@pytest.mark.parametrize(
    ("name", "value"), [("topic", "a/b"), ("metaq.batch.messages", "0"), ("subscribe", "trades"), ("zookeeper", " ")]
)
def test_wrong_write_option_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        WriteOptions.parse({"zookeeper": "h:1", "topic": "out"} | {name: value})
