"""Handle rejected messages: messages on which the handler has failed in all of its tries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from urllib.parse import quote

from metaq.coordination.runtime.home import NO_HOME, in_home
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import ConfigError, LocalStoreError, LocalStoreInUse
from metaq.protocol.limits import check_group

from ..fetching.tuning import RECOVERED_PAGE
from ..records.local_store import LocalMessageStore, StoredMessage
from ..records.message import Message
from ..runtime.durations import Duration, check_wait
from ..runtime.timers import Scheduler
from ..settings.config import MAX_LOCAL_MESSAGES, RECOVER_FIRST_SECONDS, RECOVER_SECONDS, check_number

__all__ = ["LocalRecoverStore", "RejectHandler", "drop_message", "left_of_cluster", "of_cluster", "recovering"]

log = get_log(__name__)

_NAME_CHARACTERS = 200
"""Maximum number of characters in the name of a directory; file systems allow 255 bytes."""

RECOVER_DIRECTORY = "~/.metaq_recover"

_CHOICES = (
    "name another place with on_reject=LocalRecoverStore(directory), or choose on_reject=drop_message, a function of "
    "yours, or max_retries=None"
)

RejectHandler = Callable[[Message, Exception], None]
"""The type of a function that is called with a message and the exception of its last try. The message counts as
consumed when the function returns. If the function raises an exception, the message is tried again.
"""


def of_cluster(connect: str, root: str, group: str) -> LocalRecoverStore:
    """Open the default LocalRecoverStore for the rejected messages of a group, and return it. Raises ConfigError,
    LocalStoreError; the texts of both errors name options of run() that make the store unnecessary.
    """
    try:
        store = _unopened(connect, root)
    except ConfigError as error:
        told = f"a message that keeps failing would be kept in {RECOVER_DIRECTORY}, and {NO_HOME}: {_CHOICES}"
        raise ConfigError("on_reject", None, told) from error
    try:
        store.open(group)
    except LocalStoreError as error:
        raise LocalStoreError(f"{error}; it would keep messages that keep failing: {_CHOICES}") from error
    return store


def left_of_cluster(connect: str, root: str, group: str) -> LocalRecoverStore | None:
    """Open the store of rejected messages that former runs of the group left on this machine, and return the store.
    Return None if there is no such store.
    """
    try:
        store = _unopened(connect, root)
    except ConfigError:  # without a home directory no former run has left messages
        return None
    return store if store.take_over(group) else None


def _unopened(connect: str, root: str) -> LocalRecoverStore:
    """Return the store for rejected messages of one cluster, without opening it. Each cluster has a directory of its
    own for its rejected messages, below one directory in the user's home directory.
    """
    cluster = quote(f"{connect}{root}", safe=":,")[-_NAME_CHARACTERS:]
    return LocalRecoverStore(Path(RECOVER_DIRECTORY) / cluster)


def drop_message(message: Message, error: Exception) -> None:
    """Drop the message and log one line. (This function corresponds to DropPolicy of 1.x.)"""
    log.warning("dropped %r: %s: %s", message, type(error).__name__, error)


class LocalRecoverStore:
    """A RejectHandler that keeps rejected messages on this machine and gives them to the handler again and again until
    it succeeds. (It corresponds to LocalRecoverPolicy of 1.x. If the handler fails on a kept message again, 1.x does
    not try the other kept messages in this round, but this store tries them.)

    Each process writes its own file, `<directory>/<group>/<n>.db`, with the lowest free number. Each process also gives
    its handler the messages in the files of processes that have ended. Any thread may use the store.
    """

    def __init__(
        self,
        directory: str | PathLike[str] = RECOVER_DIRECTORY,
        *,
        first_seconds: Duration = RECOVER_FIRST_SECONDS,
        interval_seconds: Duration = RECOVER_SECONDS,
        max_per_topic: int = MAX_LOCAL_MESSAGES,
    ) -> None:
        """first_seconds: seconds from the consumer's start until the kept messages are given to the handler for the
        first time. interval_seconds: seconds between the end of one such round and the next round. max_per_topic:
        maximum number of messages that the store keeps for each topic.

        Raises ConfigError.
        """
        self.first_seconds = check_wait("first_seconds", first_seconds, more_than_0=True)
        self.interval_seconds = check_wait("interval_seconds", interval_seconds, more_than_0=True)
        self._directory = in_home(directory, "directory", "give LocalRecoverStore a directory that begins with /")
        check_number("max_per_topic", max_per_topic, unit="messages")
        self._max_per_topic = max_per_topic
        self._own: tuple[Path, LocalMessageStore] | None = None
        self._place: Path | None = None
        """Directory of the group's files. It is None while the store is not open."""

    def open(self, group: str) -> None:
        """Open a file for `group`'s rejected messages. Called by Consumer.run. Raises LocalStoreError, ConfigError."""
        place = self._free_place(group)
        number = 0
        while self._own is None:
            path = place / f"{number}.db"
            try:
                self._own = path, LocalMessageStore(path, max_per_queue=self._max_per_topic)
            except LocalStoreInUse:
                number += 1
        self._place = place

    def take_over(self, group: str) -> bool:
        """Open the store only to give the handler the messages that other processes of `group` have left on this
        machine. The store then keeps no new messages, so it creates no file. Call this instead of `open`.

        Return whether the group has files of other processes; if not, the store stays closed. Raises ConfigError.
        """
        place = self._free_place(group)
        if not any(place.glob("*.db")):
            return False
        self._place = place
        return True

    def _free_place(self, group: str) -> Path:
        if self._place is not None:
            raise ConfigError(
                "on_reject", f"a LocalRecoverStore of group {self._place.name}", "give each run() its own"
            )
        return self._directory / check_group(group)

    def __call__(self, message: Message, error: Exception) -> None:
        """Save a rejected message in this process's file. Raises LocalStoreError."""
        if self._own is None:
            raise LocalStoreError("this LocalRecoverStore is not open to keep messages")
        _, store = self._own
        store.append(message.topic, [StoredMessage.of(message)])
        log.warning("kept %r to be tried again: %s: %s", message, type(error).__name__, error)

    def rounds(self, topics: frozenset[str], deliver: Callable[[Message], object]) -> Generator[None]:
        """Run one round: give each kept message of `topics` to `deliver`, and remove the message from the store when
        `deliver` returns. The generator processes one message per step.

        If `deliver` raises an exception, it is logged, and the message stays in the store. Raises LocalStoreError.
        """
        for store in self._stores():
            for topic in sorted(topics.intersection(store.queues())):
                yield from self._round(store, topic, deliver)

    def schedule(self, topics: frozenset[str], deliver: Callable[[Message], object]) -> Generator[float]:
        """Run rounds without end. The generator processes one message per step, and yields the seconds to wait before
        the next step.
        """
        yield self.first_seconds
        while True:
            try:
                for _ in self.rounds(topics, deliver):
                    yield 0.0
            except LocalStoreError as error:
                log.error("kept messages cannot be tried again now: %s", error)
            yield self.interval_seconds

    def _stores(self) -> Iterator[LocalMessageStore]:
        """Yield the store in this process's own file, then the stores in the files of ended processes. A file of an
        ended process is open only until the caller requests the next store.
        """
        if self._place is None:
            return
        own = None
        if self._own is not None:
            own, store = self._own
            yield store
        for path in sorted(self._place.glob("*.db")):
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
        """Return the number of kept messages of `topic` in this process's file."""
        return 0 if self._own is None else self._own[1].count(topic)

    def close(self) -> None:
        """Close and unlock the file. Another process can then deliver the messages that are still in the file.
        Idempotent.
        """
        if self._own is not None:
            self._own[1].close()
        self._own = self._place = None


@contextmanager
def recovering(
    store: LocalRecoverStore,
    topics: Iterable[str],
    deliver: Callable[[Sequence[Message]], object],
    timers: Scheduler,
    add_work: Callable[[Callable[[], None]], None],
) -> Iterator[None]:
    """Context manager around a call of run(): give the messages of the open `store` to the handler again at regular
    times, and close the store afterwards.
    """
    pauses = store.schedule(frozenset(topics), lambda message: deliver([message]))
    ended = False

    def start() -> None:
        if not ended:
            add_work(go_on)

    def go_on() -> None:
        """Give the next kept message to the handler, and set a timer for the one after it. Runs on a worker thread."""
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
        # the workers have stopped; a hanging one keeps the store's file until its handler returns
        if inspect.getgeneratorstate(pauses) != inspect.GEN_RUNNING:
            pauses.close()
        store.close()
