"""Every public signature with a count, an offset or an id: what is none is refused by name, and so are texts."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
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
    SharedConsumer,
    TopicPartition,
    errors,
)
from metaq.client.consumer.offset_commit import StartPosition
from metaq.client.questions.finding import MessageFinder
from metaq.client.questions.places import locate
from metaq.testing import FakeBroker, FakeCluster

from .test_client_durations import methods, public

PLACE = TopicPartition("t", 0, 0)
NOBODY: Any = SimpleNamespace()
FINDER = MessageFinder(NOBODY, NOBODY)
READ_ONLY = re.compile(r"\b((Stored|Shared|Found)?Messages?|Origin|DeadLetter|Recovered|Lag|SendResult)\(")
"""What users are given."""
LEFT_OUT = re.compile(
    r"(Config|OffsetStore\.\w+|Retry\.\w+|has_expired|XaBranch|XaResource[.\w]*|Transaction|direct)\("
)
"""Settings (test_client_values.py), methods of stores that consumers call, and constructors that users do not."""
OTHERS = {
    "OrderedProducer(partitions)",
    "TopicPartition(broker)",
    "TopicPartition(partition)",
    "Xid(format_id)",
    "LocalMessageStore.remove(ids)",
}


def counts() -> Iterator[str]:
    found = public()
    signatures = dict(found)
    signatures |= {f"{name}.{own}": each for name, kind in found.items() for own, each in methods(kind)}
    for name, each in signatures.items():
        with suppress(ValueError):
            for parameter in inspect.signature(each).parameters.values():
                annotation, case = str(parameter.annotation), f"{name}({parameter.name})"
                is_count = re.search(r"\bint\b", annotation) and not re.search("Callable|timedelta", annotation)
                if is_count and not READ_ONLY.match(case) and not LEFT_OUT.search(case):
                    yield case


Call = Callable[[FakeBroker, Path, Any], object]


def unconnected(kind: Any, name: str, option: str, *arguments: Any) -> Call:
    """Of a class that needs ZooKeeper: what is refused is refused before anything is looked at."""

    def call(_broker: FakeBroker, _directory: Path, value: Any) -> None:
        getattr(kind, name)(object.__new__(kind), *arguments, **{option: value})

    return call


def reading(name: str, option: str, *arguments: Any) -> Call:
    def call(broker: FakeBroker, _directory: Path, value: Any) -> None:
        with reader(broker) as opened:
            getattr(opened, name)(*arguments, **{option: value})

    return call


def reader(broker: FakeBroker, **options: Any) -> PartitionReader:
    return PartitionReader(f"{broker.endpoint.host}:{broker.endpoint.port}", PLACE, **options)


def shared(name: str, option: str, *arguments: Any) -> Call:
    def call(broker: FakeBroker, _directory: Path, value: Any) -> None:
        with SharedConsumer(group="g", topics=["t"], metadata=FakeCluster([broker])) as consumer:
            getattr(consumer, name)(*arguments, **{option: value})

    return call


def handle(_messages: object) -> None:
    """Of messages."""


def start(place: Callable[[Any], Any]) -> Call:
    return lambda broker, directory, value: StartPosition.of(place(value), ["t"], FINDER)


def found(call: Callable[[Any], object]) -> Call:
    return lambda broker, directory, value: call(value)


CASES: dict[str, Call] = {
    "Consumer(start)": start(lambda value: value),
    "Last(messages)": start(Last),
    "AtMessage(message_id)": start(AtMessage),
    "Consumer.fetch(offset)": unconnected(Consumer, "fetch", "offset", PLACE),
    "Consumer.fetch(max_bytes)": unconnected(Consumer, "fetch", "max_bytes", PLACE, 0),
    "Consumer.poll(max_messages)": unconnected(Consumer, "poll", "max_messages"),
    "Consumer.poll_arrow(max_messages)": unconnected(Consumer, "poll_arrow", "max_messages"),
    "Consumer.run(max_retries)": unconnected(Consumer, "run", "max_retries", handle),
    "Consumer.run(threads)": unconnected(Consumer, "run", "threads", handle),
    "Consumer.run_batches(max_messages)": unconnected(Consumer, "run_batches", "max_messages", handle),
    "Consumer.run_batches(max_retries)": unconnected(Consumer, "run_batches", "max_retries", handle),
    "Consumer.run_batches(threads)": unconnected(Consumer, "run_batches", "threads", handle),
    "Consumer.seek(to)": found(lambda value: locate(value, ["t"], FINDER, "to")),
    "Consumer.query_message(max_messages)": found(lambda value: FINDER.query_message("t", "k", value)),
    "Consumer.view_message(message_id)": found(lambda value: FINDER.view_message("t", value)),
    "SharedConsumer.poll(max_messages)": shared("poll", "max_messages"),
    "SharedConsumer.run(threads)": shared("run", "threads", handle),
    "DeadLetters.read(limit)": unconnected(DeadLetters, "read", "limit"),
    "LocalRecoverStore(max_per_topic)": lambda _, path, value: LocalRecoverStore(path, max_per_topic=value),
    "LocalMessageStore(max_per_queue)": lambda _, path, value: LocalMessageStore(path / "a", max_per_queue=value),
    "LocalMessageStore.peek(limit)": lambda _, path, value: LocalMessageStore(path / "a").peek("q", value),
    "LocalMessageStore.peek(after)": lambda _, path, value: LocalMessageStore(path / "a").peek("q", 1, value),
    "Retry(attempts)": lambda broker, path, value: Retry(attempts=value),
    "PartitionReader(start)": lambda broker, _, value: reader(broker, start=value).close(),
    "PartitionReader.fetch(offset)": reading("fetch", "offset"),
    "PartitionReader.fetch(max_bytes)": reading("fetch", "max_bytes", 0),
    "PartitionReader.poll(max_messages)": reading("poll", "max_messages"),
    "PartitionReader.poll_arrow(max_messages)": reading("poll_arrow", "max_messages"),
    "PartitionReader.seek(offset)": reading("seek", "offset"),
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
def test_what_is_no_count_is_refused_by_name(broker: FakeBroker, tmp_path: Path, case: str, wrong: Any) -> None:
    if (wrong == -1 and case in MAY_BE_NEGATIVE) or (wrong == 1 << 70 and case in UNBOUNDED):
        pytest.skip("it is one here")
    option = NAMED_OTHERWISE.get(case) or case[case.index("(") + 1 : -1]
    with pytest.raises(errors.ConfigError, match=f"^{option}=.*(choose|give|write)"):
        CASES[case](broker, tmp_path, wrong)
    assert broker.connections == 0 or "Reader" in case or "Shared" in case


# --- texts ------------------------------------------------------------------------------------------------------------

NO_TEXT = "\ud800"  # half of a surrogate pair, which UTF-8 cannot hold


@pytest.fixture
def producer(broker: FakeBroker) -> Iterator[Producer]:
    with Producer(metadata=FakeCluster([broker])) as opened:
        yield opened


@pytest.mark.parametrize("send", ["send", "send_async", "send_batch", "send_batch_async", "produce"])
@pytest.mark.parametrize("more", [{}, {"ttl": 60}], ids=["alone", "with others"])
@pytest.mark.parametrize("option", ["key", "tag", "attribute"])
def test_a_text_that_is_none_is_refused_in_a_send(producer: Producer, send: str, option: str, more: Any) -> None:
    options: dict[str, Any] = {option: NO_TEXT, **more}
    with pytest.raises(errors.LocalProtocolError, match="not valid UTF-8: use proper text"):
        getattr(producer, send)("t", [b"x"] if "batch" in send else b"x", **options)


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
def test_a_text_that_is_none_is_refused_by_name_elsewhere(producer: Producer, call: Any, option: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"^{option}=") as refused:
        call(producer)
    assert str(refused.value).encode("utf-8")  # it can be logged


def test_the_default_topic_is_checked_as_other_topics(broker: FakeBroker) -> None:
    with pytest.raises(errors.InvalidName, match="not valid UTF-8"):
        Producer(metadata=FakeCluster([broker]), default_topic=NO_TEXT)
