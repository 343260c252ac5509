"""Every public signature with a count, an offset or an id: what is none is refused by name, and so are texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from metaq import (
    AtKey,
    AtMessage,
    Consumer,
    DeadLetters,
    Last,
    LocalMessageStore,
    LocalRecoverStore,
    PartitionReader,
    Producer,
    Retry,
    TopicPartition,
    errors,
)
from metaq.client.consumer.offset_commit import StartPosition
from metaq.client.questions.finding import MessageFinder
from metaq.client.questions.places import locate
from metaq.testing import FakeBroker, FakeCluster

from .harness import address
from .test_client_durations import Call, Given, calling, option_of, parameters, unconnected

PLACE = TopicPartition("t", 0, 0)
NOBODY: Any = SimpleNamespace()
FINDER = MessageFinder(NOBODY, NOBODY)
READ_ONLY = re.compile(
    r"\b((Stored|Shared|Found)?Messages?|(Consumer|Producer)Health|Origin|DeadLetter|Recovered|Lag|SendResult)\("
)
"""What users are given."""
LEFT_OUT = re.compile(
    r"(Config|OffsetStore\.\w+|Retry\.\w+|has_expired|XaBranch|XaResource[.\w]*|Transaction|direct)\("
)
"""Settings (test_client_values.py), methods of stores that consumers call, and constructors that users do not."""
OTHERS = {
    "Consumer.commit(positions)",
    "OrderedProducer(partitions)",
    "TopicPartition(broker)",
    "TopicPartition(partition)",
    "Xid(format_id)",
    "LocalMessageStore.remove(ids)",
}


def counts() -> Iterator[str]:
    for name, parameter in parameters():
        annotation, case = str(parameter.annotation), f"{name}({parameter.name})"
        is_count = re.search(r"\bint\b", annotation) and not re.search("Callable|timedelta", annotation)
        if is_count and not READ_ONLY.match(case) and not LEFT_OUT.search(case):
            yield case


def handle(_messages: object) -> None:
    """Of messages."""


def start(place: Callable[[Any], Any]) -> Call:
    return lambda _, value: StartPosition.of(place(value), ["t"], FINDER)


def without_zookeeper(kind: Any, name: str, options: str, *arguments: Any) -> dict[str, Call]:
    return {
        f"{kind.__name__}.{name}({option})": unconnected(kind, name, *arguments, option=option)
        for option in options.split()
    }


def of_reader(name: str, option: str, *arguments: Any) -> dict[str, Call]:
    return {f"PartitionReader.{name}({option})": calling(Given.reader, name, option, *arguments)}


CASES: dict[str, Call] = {
    "Consumer(start)": start(lambda value: value),
    "Last(messages)": start(Last),
    "AtMessage(message_id)": start(AtMessage),
    **without_zookeeper(Consumer, "fetch", "offset", PLACE),
    **without_zookeeper(Consumer, "fetch", "max_bytes", PLACE, 0),
    **without_zookeeper(Consumer, "poll", "max_messages"),
    **without_zookeeper(Consumer, "poll_arrow", "max_messages"),
    **without_zookeeper(Consumer, "run", "max_retries threads", handle),
    **without_zookeeper(Consumer, "run_batches", "max_messages max_retries threads", handle),
    **without_zookeeper(DeadLetters, "read", "limit"),
    "Consumer.seek(to)": lambda _, value: locate(value, ["t"], FINDER, "to"),
    "Consumer.query_message(max_messages)": lambda _, value: FINDER.query_message("t", "k", value),
    "Consumer.view_message(message_id)": lambda _, value: FINDER.view_message("t", value),
    "SharedConsumer.poll(max_messages)": calling(Given.shared, "poll", "max_messages"),
    "SharedConsumer.run(threads)": calling(Given.shared, "run", "threads", handle),
    "LocalRecoverStore(max_per_topic)": lambda given, value: LocalRecoverStore(given.directory, max_per_topic=value),
    "LocalMessageStore(max_per_queue)": lambda given, value: LocalMessageStore(
        given.directory / "a", max_per_queue=value
    ),
    "LocalMessageStore.peek(limit)": lambda given, value: LocalMessageStore(given.directory / "a").peek("q", value),
    "LocalMessageStore.peek(after)": lambda given, value: LocalMessageStore(given.directory / "a").peek("q", 1, value),
    "Retry(attempts)": lambda _, value: Retry(attempts=value),
    "PartitionReader(start)": lambda given, value: PartitionReader(address(given.broker), PLACE, value).close(),
    **of_reader("fetch", "offset"),
    **of_reader("fetch", "max_bytes", 0),
    **of_reader("poll", "max_messages"),
    **of_reader("poll_arrow", "max_messages"),
    **of_reader("seek", "offset"),
}
NAMED_OTHERWISE = {"Last(messages)": "Last", "AtMessage(message_id)": "AtMessage"}
MAY_BE_NEGATIVE = {"AtMessage(message_id)", "Consumer.view_message(message_id)"}
UNBOUNDED = {
    "Retry(attempts)",
    "DeadLetters.read(limit)",
    "LocalRecoverStore(max_per_topic)",
    "LocalMessageStore(max_per_queue)",
    "Consumer.run(max_retries)",
    "Consumer.run_batches(max_retries)",
}
"""Compared, and neither kept nor sent anywhere."""


def test_every_public_count_is_looked_at() -> None:
    assert set(counts()) - OTHERS == CASES.keys()


@pytest.mark.parametrize("wrong", [1.5, math.nan, -1, 1 << 70, "5", True], ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_count_is_refused_by_name(broker, framed, tmp_path, case: str, wrong: Any) -> None:
    if (wrong == -1 and case in MAY_BE_NEGATIVE) or (wrong == 1 << 70 and case in UNBOUNDED):
        pytest.skip("it is one here")
    option = NAMED_OTHERWISE.get(case) or option_of(case)
    with pytest.raises(errors.ConfigError, match=f"^{option}=.*(choose|give|write)"):
        CASES[case](Given(broker, FakeCluster([broker]), framed, tmp_path), wrong)
    assert broker.connections == 0 or "Reader" in case or "Shared" in case


# --- texts ------------------------------------------------------------------------------------------------------------

NO_TEXT = "\ud800"  # half of a surrogate pair, which UTF-8 cannot hold


@pytest.mark.parametrize("send", ["send", "send_async", "send_batch", "send_batch_async", "produce"])
@pytest.mark.parametrize("more", [{}, {"ttl": 60}], ids=["alone", "with others"])
@pytest.mark.parametrize("option", ["key", "tag", "attribute"])
def test_a_text_that_is_none_is_refused_in_a_send(framed: Producer, send: str, option: str, more: Any) -> None:
    options: dict[str, Any] = {option: NO_TEXT, **more}
    with pytest.raises(errors.LocalProtocolError, match="not valid UTF-8: use proper text"):
        getattr(framed, send)("t", [b"x"] if "batch" in send else b"x", **options)


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda producer: producer.xa("t", qualifier=NO_TEXT), "qualifier"),
        (lambda _: StartPosition.of(AtKey(NO_TEXT), ["t"], FINDER), "AtKey"),
        (lambda _: StartPosition.of(AtKey(5), ["t"], FINDER), "AtKey"),  # type: ignore[arg-type]
        (lambda _: StartPosition.of(AtKey(""), ["t"], FINDER), "AtKey"),
        (lambda _: FINDER.query_message("t", NO_TEXT), "key"),
        (lambda _: PartitionReader("127.0.0.1:1", PLACE, where=NO_TEXT), "where"),
    ],
)
def test_a_text_that_is_none_is_refused_by_name_elsewhere(framed: Producer, call: Any, option: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"^{option}=") as refused:
        call(framed)
    assert str(refused.value).encode("utf-8")  # it can be logged


def test_the_default_topic_is_checked_as_other_topics(broker: FakeBroker) -> None:
    with pytest.raises(errors.InvalidName, match="not valid UTF-8"):
        Producer(metadata=FakeCluster([broker]), default_topic=NO_TEXT)
