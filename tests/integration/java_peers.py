"""What the tests with real Java peers share."""

import os
import time

import pytest

from bench.javapeer import CUT_OFF_SECONDS, JavaClient, JavaUnavailable, class_path
from bench.processes import ProcessFailed
from tests.waiting import DEADLINE, eventually


def require_java() -> None:
    """Skip where there is no JDK or Maven; fail there in CI."""
    try:
        class_path()
    except JavaUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


NOT_CONNECTED = "无可用连接"
"""What the Java client says when it has no connection at this moment."""

NO_ANSWER = "等待响应超时"
"""What the Java client says when it waited in vain for an answer, as it does when it closes the connection itself."""


def put_when_connected(client: JavaClient, topic: str, data: bytes) -> int:
    """Put one message, again while the client has no connection and where it closed the one on which the message went:
    a Java producer closes the connection to a broker and opens it anew whenever something registers for that broker, as
    a slave does. One that has closed it for good is started again, and is in no group then. Returns how many puts got
    no answer: as many copies may be stored besides the one that was acknowledged.
    """
    begun = time.monotonic()
    unanswered = 0

    def is_put() -> bool:
        nonlocal begun, unanswered
        try:
            client.put(topic, data)
        except ProcessFailed as error:
            if NO_ANSWER in str(error):
                unanswered += 1
            elif NOT_CONNECTED not in str(error):
                raise
            if time.monotonic() - begun > CUT_OFF_SECONDS:
                client.restart()
                begun = time.monotonic()
            return False
        return True

    eventually(is_put, what="a connection of the Java client")
    return unanswered


def received_at_least_once(client: JavaClient, group: str, sent: set[bytes], unanswered: int) -> None:
    """Assert that the Java client's group gets all of `sent`, nothing else, and no more copies than puts without an
    answer.
    """
    messages: list[bytes] = []

    def are_there() -> bool:
        messages.extend(message["data"] for message in client.received(group))
        return sent <= set(messages)

    eventually(are_there, what=f"the messages of {group}")
    assert set(messages) == sent
    assert len(messages) <= len(sent) + unanswered


def received(client: JavaClient, group: str, count: int) -> list[tuple[bytes, str | None]]:
    """At least `count` messages of the Java client's group, or what came until the deadline: (payload, attribute)."""
    messages: list[tuple[bytes, str | None]] = []
    deadline = time.monotonic() + DEADLINE
    while len(messages) < count and time.monotonic() < deadline:
        messages += [(message["data"], message["attribute"]) for message in client.received(group)]
        time.sleep(0.05)
    return messages
