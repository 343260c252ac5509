"""Who reads from a connection: what is left to the one that does."""

from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.runtime.waiting import Waiter
from metaq.client.transport.reading_role import ReadingRole


@pytest.fixture
def role() -> ReadingRole:
    """Somebody has it."""
    wire: Any = SimpleNamespace(failure=None, closed=False)
    wire.close = lambda: setattr(wire, "closed", True)
    stream: Any = SimpleNamespace(pending={}, outcomes=[], torn=False)
    role = ReadingRole("reader", wire, stream, lambda patience: None, lambda: None, lambda: 0.0)
    role.leader = Waiter()
    return role


def test_the_socket_of_a_failed_connection_is_closed_when_nobody_reads_from_it_any_more(role: ReadingRole) -> None:
    """The number of a socket that is closed under its reader may be that of another one by then."""
    wire: Any = role._wire
    wire.failure, role.has_ended = ConnectionError(), True
    role.look_again()
    assert not wire.closed
    role.leader = None
    role.look_again()
    assert wire.closed


def test_no_thread_is_begun_while_somebody_reads(role: ReadingRole) -> None:
    role.wake_background()
    assert not role.has_thread
