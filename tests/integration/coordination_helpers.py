"""What the coordination tests do to a real ZooKeeper."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from metaq.coordination.session import ZkSession
from tests.waiting import DEADLINE, eventually

SESSION_TIMEOUT = 10.0

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str) -> T:
    """`eventually` for conditions that always have a name."""
    return eventually(condition, what=what)


@contextmanager
def session_at(connect: str, timeout: float = SESSION_TIMEOUT) -> Iterator[ZkSession]:
    session = ZkSession(connect, session_timeout=timeout)
    session.start(DEADLINE)
    try:
        yield session
    finally:
        session.close()


def expire(session: ZkSession) -> None:
    """End the session on the server as if its time had run out; return once this process has a new one."""
    before = session.session_id
    twin = KazooClient(session.connect, client_id=session.zk.client_id, timeout=SESSION_TIMEOUT)
    twin.start(DEADLINE)  # takes the session over
    twin.stop()  # and ends it
    twin.close()
    wait_for(lambda: session.alive and not session.is_current(before), "a new session")


@contextmanager
def deaf(session: ZkSession) -> Iterator[None]:
    """Keep the session's event thread busy, so that nobody hears what happens to the session meanwhile."""
    gate = threading.Event()
    session.events.post(lambda: gate.wait(DEADLINE))
    yield
    gate.set()


def tree(zk: KazooClient, path: str = "/") -> dict[str, tuple[bytes | None, bool]]:
    """Data, and whether it is ephemeral, by path, of everything below `path`. Nodes may go while it looks."""
    found: dict[str, tuple[bytes | None, bool]] = {}
    with suppress(NoNodeError):
        for child in zk.get_children(path):
            below = f"{path.rstrip('/')}/{child}"
            with suppress(NoNodeError):
                data, stat = zk.get(below)
                found[below] = (data, stat.ephemeralOwner != 0)
                found |= tree(zk, below)
    return found
