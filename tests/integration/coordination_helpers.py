"""What the coordination tests do to a real ZooKeeper."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from metaq.coordination.session.presence import Presence
from metaq.coordination.session.zk_session import ZkSession
from tests.history.sessions import end_session
from tests.waiting import DEADLINE, eventually

SESSION_TIMEOUT = 10.0

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str) -> T:
    """`eventually` for conditions that always have a name."""
    return eventually(condition, what=what)


def make_chroot(connect: str) -> str:
    """Return `connect`, whose chroot exists now: for clients that come before the first broker, and for Java."""
    session = ZkSession(connect)
    session.start(DEADLINE, create_chroot=True)
    session.close()
    return connect


@contextmanager
def session_at(connect: str, timeout: float = SESSION_TIMEOUT) -> Iterator[ZkSession]:
    session = ZkSession(connect, session_timeout=timeout)
    session.start(DEADLINE)
    try:
        yield session
    finally:
        session.close()


def end_on_server(session: ZkSession) -> None:
    """End the session on the server as if its time had run out. Its client may come back in between, so a second client
    of the same session would not do: both would take it from each other for ever.
    """
    host, _, port = session.connect.partition("/")[0].split(",")[0].rpartition(":")
    session_id, _ = session.zk.client_id

    def ended() -> bool:
        try:
            end_session([(host, int(port))], session_id)
        except ConnectionError:  # its client was faster
            return False
        return True

    eventually(ended)


def expire(session: ZkSession) -> None:
    """As `end_on_server`; return once this process has a new session."""
    before = session.session_id
    end_on_server(session)
    wait_for(lambda: session.alive and not session.is_current(before), "a new session")


def hear_all(session: ZkSession) -> None:
    """Return when everything that was told to the session's listeners before has been heard."""
    done = threading.Event()
    session.events.post(done.set)
    assert done.wait(DEADLINE)


@contextmanager
def deaf(session: ZkSession) -> Iterator[None]:
    """Keep the session's event thread busy, so that nobody hears what happens to the session meanwhile.

    Nobody appears on a new session either: what was heard before is acted by on other threads, whose end is awaited.
    """
    busy, gate = threading.Event(), threading.Event()

    def stay() -> None:
        busy.set()
        gate.wait(DEADLINE)

    session.events.post(stay)
    assert busy.wait(DEADLINE)
    try:
        owners = [getattr(each, "__self__", None) for each in session._listeners]
        tasks = [each._task for each in owners if isinstance(each, Presence)]
        wait_for(lambda: all(each._thread is None for each in tasks), "the end of what was begun before")
        yield
    finally:
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
