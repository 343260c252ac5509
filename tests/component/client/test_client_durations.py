"""Every public signature with a duration: what is none is refused by name, and a timedelta is one."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import metaq
import metaq.client
from metaq import (
    Admin,
    ConnectionConfig,
    Consumer,
    ConsumerConfig,
    DeadLetters,
    LocalMessageStore,
    LocalRecoverStore,
    OrderedProducer,
    PartitionReader,
    Producer,
    ProducerConfig,
    Retry,
    SharedConfig,
    SharedConsumer,
    SharedMessage,
    StoredMessage,
    TopicBrowser,
    TopicPartition,
    XaBranch,
    Xid,
    errors,
)
from metaq.client.producer.building import SendOptions
from metaq.client.runtime.durations import LONGEST_WAIT_SECONDS
from metaq.serializers import Json
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import address
from tests.waiting import DEADLINE

# --- what there is ----------------------------------------------------------------------------------------------------

NAMED_AS_ONE = re.compile(r"timeout|seconds|delay|ttl|(?<!now)(?<!stored)_ms\b|interval|check_after|wait$")
NO_DURATIONS = {"Retry(factor)", "Retry(jitter)"}
INNER = {"Transaction(timeout_seconds)", "XaResource(timeout_seconds)"}
"""Of constructors that users do not call."""

MODULES = [importlib.import_module(each.name) for each in pkgutil.walk_packages(metaq.client.__path__, "metaq.client.")]
CLASSES = {
    name: found
    for module in MODULES
    for name in getattr(module, "__all__", ())
    if inspect.isclass(found := getattr(module, name)) and found.__module__.startswith("metaq.client")
}


def public() -> dict[str, Any]:
    """The public names, and the classes that their methods return."""
    found = {name: getattr(metaq, name) for name in metaq.__all__ if callable(getattr(metaq, name))}
    waiting = list(found)
    while waiting:
        for _, function in methods(found[waiting.pop()]):
            words = re.findall(r"\w+", str(inspect.signature(function).return_annotation))
            for word in words:
                if word in CLASSES and word not in found:
                    found[word] = CLASSES[word]
                    waiting.append(word)
    return found


def methods(kind: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    if not inspect.isclass(kind):
        return
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, classmethod)):
            yield name, getattr(kind, name)


def parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    """Of all public signatures, each with what is called."""
    found = public()
    signatures = dict(found)
    signatures |= {f"{name}.{own}": each for name, kind in found.items() for own, each in methods(kind)}
    for name, each in signatures.items():
        with suppress(ValueError):
            yield from ((name, parameter) for parameter in inspect.signature(each).parameters.values())


def durations() -> Iterator[str]:
    for name, parameter in parameters():
        annotation = str(parameter.annotation)
        if "Callable" in annotation or parameter.kind is parameter.VAR_KEYWORD:
            continue
        if re.search(r"\bfloat\b|Duration|timedelta", annotation) or NAMED_AS_ONE.search(parameter.name):
            yield f"{name}({parameter.name})"
    assert CLASSES.keys() > {"TypedProducer", "XaBranch"}
    yield from (f"send({name})" for name, kind in SendOptions.__annotations__.items() if "Duration" in str(kind))


# --- how each is given ------------------------------------------------------------------------------------------------

TOPICS = {"t": 1, "replies": 1}
PLACE = TopicPartition("t", 0, 0)


@dataclass
class Given:
    """What the calls are made on."""

    broker: FakeBroker
    cluster: FakeCluster
    producer: Producer
    directory: Path

    def ordered(self) -> OrderedProducer:
        store = LocalMessageStore(self.directory / "saved.db")
        return OrderedProducer(partitions={"t": {0: 1}}, store=store, metadata=FakeCluster([self.broker]))

    def reader(self) -> PartitionReader:
        return PartitionReader(address(self.broker), PLACE)

    def shared(self, **settings: Any) -> SharedConsumer:
        return SharedConsumer(group="g", topics=["t"], metadata=FakeCluster([self.broker]), **settings)

    def new_producer(self, **settings: Any) -> Producer:
        return Producer(metadata=FakeCluster([self.broker]), **settings)

    @contextmanager
    def branch(self) -> Iterator[XaBranch]:
        resource, xid = self.producer.xa("t"), Xid(1, b"g", b"b")
        branch = resource.start(xid)
        try:
            yield branch
        finally:
            branch.end()
            resource.rollback(xid)


Call = Callable[[Given, Any], object]


def on(begin: Callable[[Given], Any], call: Callable[[Any, Any], object]) -> Call:
    """`call` with what `begin` makes."""

    def enter(given: Given, value: Any) -> None:
        with begin(given) as entered:
            call(entered, value)

    return enter


def sends(begin: Callable[[Given], Any], kind: str, names: str, payload: Any = b"x") -> dict[str, Call]:
    """One for each of these ways to send."""

    def send(name: str, sender: Any, value: Any) -> None:
        sent = getattr(sender, name)("t", [payload] if "batch" in name else payload, timeout=value)
        if name.endswith("async"):
            sent.result(DEADLINE)

    return {f"{kind}.{name}(timeout)": on(begin, partial(send, name)) for name in names.split()}


def in_transaction(name: str, option: str, kind: str = "Producer") -> dict[str, Call]:
    def call(given: Given, value: Any) -> None:
        sender: Any = given.producer if kind == "Producer" else given.producer.typed(Json())
        send, payload = getattr(sender, name), b"x" if kind == "Producer" else "x"
        sent = send("t", payload, execute=lambda _: True, group="g", check=lambda _: True, **{option: value})
        if name.endswith("async"):
            sent.result(DEADLINE)

    return {f"{kind}.{name}({option})": call}


def reply(sender: Any, given: Given, value: Any) -> None:
    """To a request that is there already."""
    given.producer.request("t", b"?")
    with given.reader() as reader:
        request = reader.poll(timeout=DEADLINE)[-1]
    sender.reply(request, "an answer" if sender is not given.producer else b"an answer", timeout=value)


def unconnected(kind: Any, name: str, *arguments: Any, option: str = "timeout") -> Call:
    """Of a class that needs ZooKeeper: what is refused is refused before anything is looked at."""

    def call(given: Given, value: Any) -> None:
        with suppress(AttributeError):
            getattr(kind, name)(object.__new__(kind), *arguments, **{option: value})

    return call


def calling(begin: Callable[[Given], Any], name: str, option: str, *arguments: Any) -> Call:
    """A method of what `begin` makes."""
    return on(begin, lambda made, value: getattr(made, name)(*arguments, **{option: value}))


def settings(*kinds: type[Any]) -> dict[str, Call]:
    def make(kind: type[Any], name: str, given: Given, value: Any) -> None:
        most = re.sub("_(min|step)_", "_max_", name)
        made = kind(**{most: 1000 if name.endswith("_ms") else 1.0, name: value})
        if isinstance(value, timedelta):
            assert getattr(made, name) == value.total_seconds() * (1000 if name.endswith("_ms") else 1)

    return {
        f"{kind.__name__}({name})": partial(make, kind, name)
        for kind in kinds
        for name in inspect.signature(kind).parameters
        if name.endswith(("_seconds", "_ms"))
    }


def typed(given: Given) -> Any:
    return nullcontext(given.producer.typed(Json()))


def producer(given: Given) -> Any:
    return nullcontext(given.producer)


def typed_transaction(given: Given) -> Any:
    return nullcontext(given.producer.transaction().typed(Json()))


WAITS: dict[str, Call] = {
    **sends(producer, "Producer", "send send_async produce send_batch send_batch_async request"),
    **sends(typed, "TypedProducer", "send send_async produce send_batch send_batch_async request", "x"),
    **sends(lambda given: given.producer.transaction(), "Transaction", "send send_batch"),
    **sends(Given.branch, "XaBranch", "send send_batch"),
    **sends(Given.ordered, "OrderedProducer", "send"),
    **sends(typed_transaction, "TypedSends", "send send_batch", "x"),
    **sends(lambda given: nullcontext(given.ordered().typed(Json())), "TypedSend", "send", "x"),
    **in_transaction("send_in_transaction", "timeout"),
    **in_transaction("send_in_transaction_async", "timeout"),
    **in_transaction("send_in_transaction", "timeout", "TypedProducer"),
    **in_transaction("send_in_transaction_async", "timeout", "TypedProducer"),
    "Producer.reply(timeout)": lambda given, value: reply(given.producer, given, value),
    "TypedProducer.reply(timeout)": lambda given, value: reply(given.producer.typed(Json()), given, value),
    "Producer.send_stored(timeout)": lambda given, value: given.producer.send_stored(
        StoredMessage("t", b"x", 0, None, None), timeout=value
    ),
    "Producer.cancel(timeout)": lambda given, value: given.producer.cancel(
        given.producer.send("t", b"x", delay=60), timeout=value
    ),
    "Producer.flush(timeout)": lambda given, value: given.producer.flush(value),
    "Producer.close(timeout)": on(Given.new_producer, lambda sender, value: sender.close(value)),
    "OrderedProducer.flush(timeout)": on(Given.ordered, lambda sender, value: sender.flush(value)),
    "OrderedProducer.close(timeout)": on(Given.ordered, lambda sender, value: sender.close(value)),
    **{
        f"PartitionReader.{name}(timeout)": calling(Given.reader, name, "timeout", *arguments)
        for name, arguments in (("poll", ()), ("poll_arrow", ()), ("fetch", (0,)))
    },
    "SharedConsumer.flush(timeout)": on(Given.shared, lambda consumer, value: consumer.flush(value)),
    "SharedConsumer.close(timeout)": on(Given.shared, lambda consumer, value: consumer.close(value)),
    "Consumer.poll(timeout)": unconnected(Consumer, "poll"),
    "Consumer.poll_arrow(timeout)": unconnected(Consumer, "poll_arrow"),
    "Consumer.fetch(timeout)": unconnected(Consumer, "fetch", PLACE, 0),
    "Consumer.close(timeout)": unconnected(Consumer, "close"),
    "SharedConsumer.poll(timeout)": unconnected(SharedConsumer, "poll"),  # a FakeBroker leases nothing
    "DeadLetters.close(timeout)": unconnected(DeadLetters, "close"),
    "Admin.close(timeout)": unconnected(Admin, "close"),
    "TopicBrowser.close(timeout)": unconnected(TopicBrowser, "close"),
    "LocalRecoverStore(first_seconds)": lambda _, value: LocalRecoverStore("unused", first_seconds=value),
    "LocalRecoverStore(interval_seconds)": lambda _, value: LocalRecoverStore("unused", interval_seconds=value),
}
"""How long a call waits: infinitely is as long as it takes."""

BOUNDED: dict[str, Call] = {
    **settings(ConnectionConfig, ProducerConfig, ConsumerConfig, SharedConfig),
    **in_transaction("send_in_transaction", "check_after"),
    **in_transaction("send_in_transaction_async", "check_after"),
    **in_transaction("send_in_transaction", "check_after", "TypedProducer"),
    **in_transaction("send_in_transaction_async", "check_after", "TypedProducer"),
    "Retry(first)": lambda _, value: Retry(first=value),
    "Retry(most)": lambda _, value: Retry(most=value),
    "send(ttl)": lambda given, value: given.producer.send("t", b"x", ttl=value),
    "send(delay)": lambda given, value: given.producer.send("t", b"x", delay=value),
    "Producer(linger_ms)": lambda given, value: given.new_producer(linger_ms=value).close(),
    "Producer.direct(linger_ms)": lambda given, value: Producer.direct("127.0.0.1:1", linger_ms=value).close(),
    "Producer.transaction(timeout_seconds)": lambda given, value: given.producer.transaction(timeout_seconds=value),
    "Producer.xa(timeout_seconds)": lambda given, value: given.producer.xa("t", timeout_seconds=value),
    "SharedConsumer.release(delay)": on(Given.shared, lambda consumer, value: consumer.release(delay=value)),
    "SharedConsumer.extend(seconds)": lambda given, value: _extend(given, value),
    "DeadLetters(start_timeout_seconds)": lambda _, value: _start(DeadLetters, value, group="g"),
    "Admin(start_timeout_seconds)": lambda _, value: _start(Admin, value),
}
"""The others."""

CASES = WAITS | BOUNDED


def _extend(given: Given, value: Any) -> None:
    with given.shared() as consumer, suppress(AttributeError):  # of the message
        consumer.extend(tuple.__new__(SharedMessage), value)


def _start(kind: Any, value: Any, **arguments: str) -> None:
    """At a port where nothing listens, which ends it soon."""
    with suppress(errors.CoordinationUnavailable):
        kind("127.0.0.1:1", start_timeout_seconds=value, **arguments).close()


@pytest.fixture
def given(broker: FakeBroker, tmp_path: Path) -> Iterator[Given]:
    cluster = FakeCluster([broker])
    broker.append("t", 0, b"something to poll")
    with Producer(metadata=cluster, config=ProducerConfig(reply_topic="replies")) as sender:
        yield Given(broker, cluster, sender, tmp_path)


# --- what holds -------------------------------------------------------------------------------------------------------


def test_every_public_duration_is_looked_at() -> None:
    assert set(durations()) - NO_DURATIONS - INNER == CASES.keys()


def option_of(case: str) -> str:
    return case[case.index("(") + 1 : -1]


WRONG: list[Any] = [math.nan, -1, timedelta(seconds=-1), "1", True]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_duration_is_refused_by_name(given: Given, case: str, wrong: Any) -> None:
    option = option_of(case)
    with pytest.raises((errors.ConfigError, errors.LocalProtocolError), match=f"^{option}=.*(choose|write)"):
        CASES[case](given, wrong)


@pytest.mark.parametrize("case", WAITS)
def test_nothing_is_no_duration_where_there_is_no_default_for_it(given: Given, case: str) -> None:
    name, option = case.rstrip(")").split("(")
    kind, _, method = name.partition(".")
    called = getattr(public()[kind], method) if method else public()[kind]
    if inspect.signature(called).parameters[option].default is not None:
        with pytest.raises(errors.ConfigError, match=f"^{option}=None is no number"):
            CASES[case](given, None)


@pytest.mark.parametrize("case", CASES)
def test_a_timedelta_is_a_duration(given: Given, case: str) -> None:
    CASES[case](given, timedelta(seconds=1))


@pytest.mark.parametrize("case", WAITS)
@pytest.mark.parametrize("longest", [math.inf, timedelta.max, 1e300])
def test_an_infinite_wait_is_as_long_as_it_takes(given: Given, case: str, longest: Any) -> None:
    WAITS[case](given, longest)


@pytest.mark.parametrize("case", [each for each in BOUNDED if not each.endswith("_seconds)")])
def test_what_is_no_wait_cannot_be_infinite(given: Given, case: str) -> None:
    if "transaction" in case and "timeout" in case:
        pytest.skip("a whole number of seconds")
    with pytest.raises((errors.ConfigError, errors.LocalProtocolError), match=f"^{option_of(case)}=inf.*choose"):
        CASES[case](given, math.inf)


def test_an_infinite_setting_is_the_longest_wait() -> None:
    """Sockets and ZooKeeper's protocol take no more than 2³¹ milliseconds."""
    assert ConnectionConfig(connect_timeout_seconds=math.inf).connect_timeout_seconds == LONGEST_WAIT_SECONDS
    assert ConsumerConfig(session_timeout_seconds=math.inf).session_timeout_seconds == LONGEST_WAIT_SECONDS
    assert LONGEST_WAIT_SECONDS * 1000 < 2**31


def test_a_timeout_in_the_place_of_max_messages_is_told(given: Given) -> None:
    with given.reader() as reader:
        wrong: Any = 1.0
        words = r"^max_messages=1.0: choose a whole number, or write timeout=1.0"
        with pytest.raises(errors.ConfigError, match=words), pytest.warns(DeprecationWarning, match="by keyword"):
            reader.poll(wrong)


def test_a_wrong_duration_is_a_type_error_too(given: Given) -> None:
    with pytest.raises(TypeError, match="timeout='5' is no number of seconds but str: write it as one, or "):
        given.producer.flush("5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("ky", "did you mean 'key'"), ("tagg", "did you mean 'tag'"), ("timout", "timeout"), ("xyz", "there are ")],
)
def test_an_option_that_there_is_not_is_named_with_the_nearest_one(given: Given, wrong: str, said: str) -> None:
    for name in ("send", "send_async", "produce", "send_batch", "send_batch_async"):
        payload = [b"x"] if "batch" in name else b"x"
        with pytest.raises(TypeError, match=f"^a message has no option '{wrong}': .*{said}"):
            getattr(given.producer, name)("t", payload, **{wrong: "k"})
    assert given.broker.sends == 0
