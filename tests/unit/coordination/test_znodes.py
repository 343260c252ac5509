"""What the answers to fenced writes lead to."""

from typing import Any

import pytest
from kazoo.exceptions import NoNodeError, RolledBackError, SessionExpiredError

from metaq.coordination.session.kazoo_client import Client
from metaq.coordination.session.znodes import Znodes, set_data
from metaq.protocol.errors import SessionLost


class AnsweringClient(Client):
    """A client without a connection: each request is answered at once, as the test says."""

    def __init__(self, *answers: list[Any]) -> None:
        super().__init__("127.0.0.1:1")
        self.answers = list(answers)
        self.interrupts = 0

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return 7, b"password"

    def interrupt(self) -> None:
        self.interrupts += 1

    def _call(self, request: Any, async_object: Any) -> None:
        async_object.set(self.answers.pop(0))


@pytest.mark.parametrize(
    "answer",
    [
        [SessionExpiredError()],
        [SessionExpiredError(), SessionExpiredError()],
        [RolledBackError(), SessionExpiredError()],
    ],
)
def test_a_session_that_the_server_says_is_over_is_lost_and_the_connection_that_hides_it_ended(answer: list[Any]):
    """A server may go on answering reads and pings on a connection whose session is over."""
    client = AnsweringClient(answer)
    with pytest.raises(SessionLost, match="has ended"):
        Znodes(client, "here", 1.0).write_atomically(7, [set_data("/a", b"") for _ in answer])
    assert client.interrupts == 1


def test_another_failure_is_returned_and_leaves_the_connection_alone():
    client = AnsweringClient([RolledBackError(), NoNodeError()])
    failure = Znodes(client, "here", 1.0).write_atomically(7, [set_data("/a", b""), set_data("/b", b"")])
    assert isinstance(failure, NoNodeError)
    assert client.interrupts == 0
