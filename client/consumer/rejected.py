"""What becomes of a message that its handler cannot process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from urllib.parse import quote

from metaq.coordination.logs import get_log
from metaq.protocol.errors import ConfigError, LocalStoreError, LocalStoreInUse
from metaq.protocol.limits import check_group

from ..config import MAX_LOCAL_MESSAGES, RECOVER_FIRST_SECONDS, RECOVER_SECONDS, check_number
from ..durations import Duration, check_wait
from ..local_store import LocalMessageStore, StoredMessage
from ..message import Message
from ..timers import Timers
from .tuning import RECOVERED_PAGE

__all__ = ["LocalRecoverStore", "RejectHandler", "drop_message", "of_cluster", "recovering"]

log = get_log(__name__)

_NAME_CHARACTERS = 200
"""Of a directory's name; file systems take 255 bytes."""

RECOVER_DIRECTORY = "~/.metaq_recover"

RejectHandler = Callable[[Message, Exception], None]
"""Called with a message and what its last try raised. The message counts as consumed once this returns; if it raises,
the message is tried again."""


def of_cluster(connect: str, root: str) -> LocalRecoverStore:
    """The store of a consumer that was given none: clusters share a machine's home directory, and no messages."""
    cluster = quote(f"{connect}{root}", safe=":,")[-_NAME_CHARACTERS:]
    return LocalRecoverStore(Path(RECOVER_DIRECTORY) / cluster)


def drop_message(message: Message, error: Exception) -> None:
    """Forget the message; one line of the log says so. (1.x's DropPolicy.)"""
    log.warning("dropped %r: %s: %s", message, type(error).__name__, error)


class LocalRecoverStore:
    """A RejectHandler that keeps messages on this machine, from where they go to the handler again and again until it
    succeeds. (1.x's LocalRecoverPolicy; here one failing message does not end a round for the others.)

    Each process writes a file of its own, `<directory>/<group>/<n>.db`, with the lowest number that is free; it also
    takes over what a process that is gone has left in others. Any thread.
    """

    def __init__(
        self,
        directory: str | PathLike[str] = RECOVER_DIRECTORY,
        *,
        first_seconds: Duration = RECOVER_FIRST_SECONDS,
        interval_seconds: Duration = RECOVER_SECONDS,
        max_per_topic: int = MAX_LOCAL_MESSAGES,
    ) -> None:
        """first_seconds: when the messages are first tried again after a consumer began, then every interval_seconds.

        Raises ConfigError.
        """
        self.first_seconds = check_wait("first_seconds", first_seconds, more_than_0=True)
        self.interval_seconds = check_wait("interval_seconds", interval_seconds, more_than_0=True)
        self._directory = Path(directory).expanduser()
        check_number("max_per_topic", max_per_topic, unit="messages")
        self._max_per_topic = max_per_topic
        self._own: tuple[Path, LocalMessageStore] | None = None
        self._group = ""

    def open(self, group: str) -> None:
        """Take a file for what `group` rejects. Consumer.run does it. Raises LocalStoreError, ConfigError."""
        if self._own is not None:
            raise ConfigError("on_reject", f"a LocalRecoverStore of group {self._group}", "give each run() its own")
        self._group = check_group(group)
        directory = self._directory / group
        number = 0
        while self._own is None:
            path = directory / f"{number}.db"
            try:
                self._own = path, LocalMessageStore(path, max_per_queue=self._max_per_topic)
            except LocalStoreInUse:
                number += 1

    def __call__(self, message: Message, error: Exception) -> None:
        """Keep the message. Raises LocalStoreError."""
        if self._own is None:
            raise LocalStoreError("this LocalRecoverStore is not open")
        _, store = self._own
        store.append(message.topic, [StoredMessage.of(message)])
        log.warning("kept %r to be tried again: %s: %s", message, type(error).__name__, error)

    def rounds(self, topics: frozenset[str], deliver: Callable[[Message], object]) -> Generator[None]:
        """One round, a message a step: give each kept message of `topics` to `deliver` and forget it when that returns.

        What it raises is logged and the message stays. Raises LocalStoreError.
        """
        for store in self._stores():
            for topic in sorted(topics.intersection(store.queues())):
                yield from self._round(store, topic, deliver)

    def schedule(self, topics: frozenset[str], deliver: Callable[[Message], object]) -> Generator[float]:
        """Rounds without end, a message a step: the seconds to wait before the next step."""
        yield self.first_seconds
        while True:
            try:
                for _ in self.rounds(topics, deliver):
                    yield 0.0
            except LocalStoreError as error:
                log.error("kept messages cannot be tried again now: %s", error)
            yield self.interval_seconds

    def _stores(self) -> Iterator[LocalMessageStore]:
        """Our own file, then those of processes that are gone, each while it is looked at."""
        if self._own is None:
            return
        own, store = self._own
        yield store
        for path in sorted(own.parent.glob("*.db")):
            if path == own:
                continue
            try:
                with LocalMessageStore(path, max_per_queue=self._max_per_topic) as left:
                    yield left
            except LocalStoreInUse:
                continue

    def _round(self, store: LocalMessageStore, topic: str, deliver: Callable[[Message], object]) -> Iterator[None]:
        last = 0
        while page := store.peek(topic, RECOVERED_PAGE, after=last):
            for last, kept in page:
                message = kept.to_message()
                try:
                    deliver(message)
                except Exception as error:
                    log.warning("%r failed again: %s: %s", message, type(error).__name__, error)
                else:
                    store.remove(topic, [last])
                yield

    def count(self, topic: str) -> int:
        """Messages of `topic` in this process's file."""
        return 0 if self._own is None else self._own[1].count(topic)

    def close(self) -> None:
        """Release the file; what it holds stays for the next process. Idempotent."""
        if self._own is not None:
            self._own[1].close()
            self._own = None


@contextmanager
def recovering(
    reject: RejectHandler,
    group: str,
    topics: Iterable[str],
    deliver: Callable[[Sequence[Message]], object],
    timers: Timers,
    add_work: Callable[[Callable[[], None]], None],
) -> Iterator[None]:
    """While a handler runs: if it rejects into a LocalRecoverStore, that is open and tries its messages again."""
    if not isinstance(reject, LocalRecoverStore):
        yield
        return
    reject.open(group)
    pauses = reject.schedule(frozenset(topics), lambda message: deliver([message]))
    ended = False

    def start() -> None:
        if not ended:
            add_work(go_on)

    def go_on() -> None:
        """On a worker: the next message."""
        pause = next(pauses, None)
        if pause:
            timers.call_later(pause, start)
        elif pause is not None:
            add_work(go_on)

    try:
        go_on()
        yield
    finally:
        ended = True
        # the workers have stopped; one that hangs keeps its file until its handler returns
        if inspect.getgeneratorstate(pauses) != inspect.GEN_RUNNING:
            pauses.close()
        reject.close()
