"""What the tests of clients share: quick settings, sends among requests, threads, and the time that a failure takes."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from metaq import ProducerConfig
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode
from metaq.testing import FakeBroker
from tests.waiting import DEADLINE, assert_within

FAST = ProducerConfig(retry_min_seconds=0.001, retry_max_seconds=0.01)


def is_send(request: object) -> bool:
    sends = (RequestCode.SEND, RequestCode.SEND_BATCH, RequestCode.SEND_MANY)
    return isinstance(request, Frame) and request.code in sends


def address(broker: FakeBroker) -> str:
    return f"{broker.endpoint.host}:{broker.endpoint.port}"


def everything(*brokers: FakeBroker) -> list[bytes]:
    """The bodies that are stored, by broker, topic and partition."""
    return [
        body
        for broker in brokers
        for topic, count in broker.topics.items()
        for partition in range(count)
        for body in broker.bodies(topic, partition)
    ]


def together(action: Callable[..., Any], arguments: Iterable[object]) -> list[Any]:
    """What `action` returns for each argument, at the same time, each in a thread of its own. Raises what it raises."""
    given = list(arguments)
    with ThreadPoolExecutor(len(given)) as pool:
        return [call.result(DEADLINE) for call in [pool.submit(action, each) for each in given]]


def assert_raises_within(
    seconds: float,
    error: type[Exception] | tuple[type[Exception], ...],
    action: Callable[[], object],
    match: str | None = None,
    at_least: float = 0.0,
) -> None:
    """Assert that `action`, which can be repeated, raises `error` after `at_least` and within `seconds`."""

    def attempt() -> float:
        started = time.monotonic()
        with pytest.raises(error, match=match):
            action()
        took = time.monotonic() - started
        assert took > at_least
        return took

    assert_within(seconds, attempt)
