"""Option types: what is accepted, and that a refusal names the value and the remedy."""

from collections.abc import Sequence
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


TAKEN: dict[str, tuple[click.ParamType, dict[str, object]]] = {
    "position": (
        POSITION,
        {
            "earliest": "earliest",
            "latest": "latest",
            "4096": 4096,
            "1970-01-01T00:00:01Z": datetime.fromtimestamp(1, UTC),
            "1970-01-01T01:00:01.5+01:00": datetime.fromtimestamp(1.5, UTC),
            "-100": Last(100),
            "id:-7": AtMessage(-7),
            "key:order:7": AtKey("order:7"),
        },
    ),
    "topic with partitions": (
        TOPIC_WITH_PARTITIONS,
        {"a": TopicSpec("a", 1), "a:12": TopicSpec("a", 12), "t-1:3": TopicSpec("t-1", 3)},
    ),
    "topic": (TOPIC, {"a,b": "a,b"}),
    "setting": (
        TOPIC_SETTING,
        {
            "a.b.acceptCompressed=true": ("a.b", "acceptCompressed", "true"),
            "t.deletePolicy=delete,24": ("t", "deletePolicy", "delete,24"),
        },
    ),
}


@pytest.mark.parametrize(
    ("what", "text", "expected"), [(what, *each) for what, (_, taken) in TAKEN.items() for each in taken.items()]
)
def test_what_is_of_its_kind_is_taken(what, text, expected):
    assert convert(TAKEN[what][0], text) == expected


def test_partition_is_broker_and_number():
    assert str(convert(PARTITION, "0-13")) == "0-13"


NO_ZNODES = ("a\U0001f600", "a\ue000", "a\uffff", "a\x85", "a\udc80")
REFUSED: dict[str, tuple[click.ParamType, str | None, Sequence[str]]] = {
    "position": (
        POSITION,
        "choose earliest, latest, a byte offset",
        ["first", "-5x", "id:", "id:x", "key:", "12:00:99", "9223372036854775808", ""],
    ),
    "topic": (TOPIC, "use a name without '/'", ["a/b"]),
    "topic that ZooKeeper does not take": (TOPIC, None, NO_ZNODES),
    "group that ZooKeeper does not take": (GROUP, None, NO_ZNODES),
    "topic with partitions": (TOPIC_WITH_PARTITIONS, None, ["a:0", "a:x", "a:", "a:65537", "a/b:1", ":3", *NO_ZNODES]),
    "topic that is made with a comma": (TOPIC_WITH_PARTITIONS, "separates the topics", ["a,b:4"]),
    "partition": (PARTITION, "for example 0-3", ["3", "0-", "-1", "0-1-2", "a-b"]),
    "seconds": (SECONDS, None, ["-1", "nan", "inf", "soon"]),
    "a pause": (POSITIVE_SECONDS, None, ["0", "nan"]),
    "setting": (
        TOPIC_SETTING,
        None,
        ["acceptCompressed=true", "t.acceptCompressed", "t.=1", ".a=1", "t.a b=1", "t.a=1\n2"]
        + [f"{name}.stat=true" for name in NO_ZNODES],
    ),
}


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, (*_, texts) in REFUSED.items() for text in texts])
def test_anything_else_is_refused_and_the_remedy_named(what, text):
    kind, said, _ = REFUSED[what]
    with pytest.raises(click.BadParameter, match=said):
        convert(kind, text)


def test_a_stored_name_is_taken_where_zookeeper_is_not_asked():
    assert convert(STORED_TOPIC, "a\U0001f600") == convert(STORED_GROUP, "a\U0001f600")
