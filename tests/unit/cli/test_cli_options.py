"""Option types: what is accepted, and that a refusal names the value and the remedy."""

from datetime import UTC, datetime

import click
import pytest

from metaq.cli.options import (
    GROUP,
    PARTITION,
    POSITION,
    POSITIVE_SECONDS,
    SECONDS,
    STORED_GROUP,
    STORED_TOPIC,
    TOPIC,
    TOPIC_SETTING,
    TOPIC_WITH_PARTITIONS,
    TopicSpec,
)
from metaq.client.questions.places import AtKey, AtMessage, Last


def convert(kind, text):
    return kind.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("4096", 4096),
        ("1970-01-01T00:00:01Z", datetime.fromtimestamp(1, UTC)),
        ("1970-01-01T01:00:01.5+01:00", datetime.fromtimestamp(1.5, UTC)),
        ("-100", Last(100)),
        ("id:-7", AtMessage(-7)),
        ("key:order:7", AtKey("order:7")),
    ],
)
def test_position_is_a_word_an_offset_a_time_a_count_or_a_message(text, expected):
    assert convert(POSITION, text) == expected


@pytest.mark.parametrize("text", ["first", "-5x", "id:", "id:x", "key:", "12:00:99", "9223372036854775808", ""])
def test_anything_else_is_no_position_and_the_choices_are_named(text):
    with pytest.raises(click.BadParameter, match="choose earliest, latest, a byte offset"):
        convert(POSITION, text)


@pytest.mark.parametrize(("text", "expected"), [("a", ("a", 1)), ("a:12", ("a", 12)), ("t-1:3", ("t-1", 3))])
def test_topic_may_name_its_number_of_partitions(text, expected):
    assert convert(TOPIC_WITH_PARTITIONS, text) == TopicSpec(*expected)


@pytest.mark.parametrize("text", ["a:0", "a:x", "a:", "a:65537", "a/b:1", ":3"])
def test_topic_with_a_wrong_number_or_name_is_refused(text):
    with pytest.raises(click.BadParameter):
        convert(TOPIC_WITH_PARTITIONS, text)


def test_topic_with_a_slash_is_refused_with_the_remedy():
    with pytest.raises(click.BadParameter, match="use a name without '/'"):
        convert(TOPIC, "a/b")


@pytest.mark.parametrize("name", ["a\U0001f600", "a\ue000", "a\uffff", "a\x85", "a\udc80"])
def test_a_name_that_zookeeper_does_not_take_is_refused_where_it_is_asked(name):
    for kind, text in (
        (TOPIC, name),
        (GROUP, name),
        (TOPIC_WITH_PARTITIONS, name),
        (TOPIC_SETTING, f"{name}.stat=true"),
    ):
        with pytest.raises(click.BadParameter):
            convert(kind, text)


def test_a_stored_name_is_taken_where_zookeeper_is_not_asked():
    assert convert(STORED_TOPIC, "a\U0001f600") == convert(STORED_GROUP, "a\U0001f600")


def test_a_topic_with_a_comma_is_found_but_not_made():
    assert convert(TOPIC, "a,b") == "a,b"
    with pytest.raises(click.BadParameter, match="separates the topics"):
        convert(TOPIC_WITH_PARTITIONS, "a,b:4")


def test_partition_is_broker_and_number():
    assert str(convert(PARTITION, "0-13")) == "0-13"


@pytest.mark.parametrize("text", ["3", "0-", "-1", "0-1-2", "a-b"])
def test_partition_in_another_form_is_refused(text):
    with pytest.raises(click.BadParameter, match="for example 0-3"):
        convert(PARTITION, text)


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
def test_seconds_must_be_finite_and_not_negative(text):
    with pytest.raises(click.BadParameter):
        convert(SECONDS, text)


@pytest.mark.parametrize("text", ["0", "nan"])
def test_a_pause_of_nothing_is_refused(text):
    with pytest.raises(click.BadParameter):
        convert(POSITIVE_SECONDS, text)


def test_a_setting_names_its_topic_and_a_key_of_server_ini():
    assert convert(TOPIC_SETTING, "a.b.acceptCompressed=true") == ("a.b", "acceptCompressed", "true")
    assert convert(TOPIC_SETTING, "t.deletePolicy=delete,24") == ("t", "deletePolicy", "delete,24")


@pytest.mark.parametrize("text", ["acceptCompressed=true", "t.acceptCompressed", "t.=1", ".a=1", "t.a b=1", "t.a=1\n2"])
def test_a_setting_in_another_form_is_refused(text):
    with pytest.raises(click.BadParameter):
        convert(TOPIC_SETTING, text)
