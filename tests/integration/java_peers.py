"""What the tests with real Java peers share."""

import os
import time

import pytest

from bench.javapeer import JavaClient, JavaUnavailable, class_path
from tests.waiting import DEADLINE


def require_java() -> None:
    """Skip where there is no JDK or Maven; fail there in CI."""
    try:
        class_path()
    except JavaUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def received(client: JavaClient, group: str, count: int) -> list[tuple[bytes, str | None]]:
    """At least `count` messages of the Java client's group, or what came until the deadline: (payload, attribute)."""
    messages: list[tuple[bytes, str | None]] = []
    deadline = time.monotonic() + DEADLINE
    while len(messages) < count and time.monotonic() < deadline:
        messages += [(message["data"], message["attribute"]) for message in client.received(group)]
        time.sleep(0.05)
    return messages
