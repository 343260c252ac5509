"""The consumer API for users. The user's program polls for messages on one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TypeVar, Unpack

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.groups.membership import GroupMembership, broadcast_group
from metaq.coordination.offsets.begun_marks import BegunMarks
from metaq.coordination.records.payloads import ConsumerFilter
from metaq.coordination.runtime.interrupts import Aside, begin_elsewhere
from metaq.coordination.runtime.logs import get_log
from metaq.protocol.errors import BrokerUnavailable, ClientError, ConfigError, CoordinationError, InvalidName
from metaq.protocol.limits import DELAYS_MARK, INT32_MAX, check_zookeeper_group
from metaq.protocol.own_topics import retry_topic
from metaq.protocol.remoting import DEFAULT_FOUND_MESSAGES

from ..fetching.core import Accept, ConsumerCore
from ..fetching.cursor import PartitionCursor, Request
from ..fetching.fetcher import EndpointOf, Fetcher
from ..fetching.nearest_nodes import Nearby
from ..fetching.notices import OnPartitions
from ..fetching.pauses import PlacesGiven, places_given
from ..fetching.polling import NOT_ALONE, Poller, Taken
from ..fetching.tuning import CLOSE_SECONDS, DOUBT_LOOK_SECONDS
from ..questions.asking import following
from ..questions.finding import FoundMessages, MessageFinder
from ..questions.partition_bounds import lag_behind
from ..questions.places import Place, locate
from ..questions.sources import source_of
from ..questions.stored_records import read_messages
from ..records.health import ConsumerHealth
from ..records.message import Message
from ..records.results import Lag, TopicPartition
from ..runtime.durations import Duration, check_timeout, check_wait
from ..runtime.timers import END_SECONDS, Scheduler, TimeLeft, Timers
from ..serializers.base import Deserializer, deserializers
from ..settings.config import (
    BROWSE_BYTES,
    MAX_RETRIES,
    ConnectionConfig,
    ProducerConfig,
    check_call_back,
    check_call_backs,
    check_number,
    check_offset,
    check_texts,
    check_threads,
    config_or_default,
)
from ..settings.consumer_config import ConsumerConfig, MovedReading, check_tags, check_where
from ..settings.moved_options import with_moved
from ..transport.channel import Channel, Channels
from ..transport.pool import ConnectionPool
from ..transport.zookeeper import zk_session
from .beginnings import Beginnings
from .group_member import GroupMember
from .keeping_brokers import KeepingBrokers
from .listener import Deliver, Handling, Listener, accepting, delivering_living
from .offset_commit import StartPosition, committer_for
from .rejected import LocalRecoverStore, RejectHandler, drop_message, left_of_cluster, of_cluster, recovering
from .retry import AUTO, Auto, Retry
from .retrying import FailedMessages, FailedSender, giving_back
from .self_checks import PollWatch, SessionWatch
from .suspects import Suspects

__all__ = ["Consumer"]

log = get_log(__name__)

_T = TypeVar("_T")


class Consumer(Poller):
    """A member of a consumer group that reads topics. Messages are delivered at least once, and in order within a
    partition. Each partition has one owner in the group.

    A delivered message counts as consumed at the next poll(), at commit(), or when a `with` block ends without an
    exception. A commit covers only consumed messages. The consumer may be used by only one thread at a time, but
    another thread may call close(). A forked process must create its own consumer. In the forked process, the calls of
    a consumer that the parent has created raise ClientError. Only stop() and close() raise nothing there; they do not
    affect the parent.
    """

    def __init__(
        self,
        connect: str = "localhost:2181",
        *,
        group: str,
        topics: Iterable[str],
        start: str | int | Place = "earliest",
        tags: Iterable[str] | None = None,
        where: str | None = None,
        accept: Accept | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        deserializer: Deserializer | None = None,
        root: str = "/meta",
        config: ConsumerConfig | None = None,
        **moved: Unpack[MovedReading],
    ) -> None:
        """connect: the addresses of the ZooKeeper servers, `host:port,host:port/chroot`. root: the path of metaq's
        nodes below the chroot.

        start: the position where reading of a partition without a committed offset begins: "earliest", "latest" or an
        offset in bytes. With "always_latest" reading begins at the partition's end each time this consumer gets the
        partition, regardless of committed offsets. `start` may also be a datetime, Last(n), AtMessage(id) or AtKey(key)
        (see places.py); then the constructor searches for the message. tags: only messages with one of these tags are
        delivered. where: a filter such as "region = 'EU' AND amount > 100" (docs/filters.md); only messages whose
        properties match it are delivered, and the others count as consumed. A broker that can filter by tags and
        `where` sends only matching messages; the consumer checks them again. If topics or tags is a single text, it is
        one topic or one tag. accept: a function that is called with each message; if it returns false, the message is
        skipped and counts as consumed. If `accept` raises an exception, poll() raises the exception. on_assigned,
        on_revoked: functions that are called inside poll() or run() with the partitions; revoked partitions are handed
        over when on_revoked returns. deserializer: decodes `message.value`. If there are several, the message's content
        type selects one; the first one also decodes messages without a content type.

        The constructor returns when ZooKeeper is connected; the consumer joins the group in the background. Raises
        ConfigError, InvalidName, TypeError (if the group is not a string), CoordinationUnavailable.
        """
        config = with_moved(config_or_default(config, ConsumerConfig), "Consumer", moved, "protocol", "on_damaged")
        check_call_backs(accept=accept, on_assigned=on_assigned, on_revoked=on_revoked)
        topics = check_texts("topics", topics)
        wanted = check_tags(tags)
        chosen = check_where(where)
        reader = None if deserializer is None else deserializers("deserializer", deserializer)
        check_zookeeper_group(group)
        self.group = broadcast_group(group) if config.broadcast else group
        self._config = config
        self._stopped = False
        self._aside = Aside("metaq-consumer")
        self._committing = Aside("metaq-commit-now", drops=True)  # a second thread: close() does not wait for a commit
        self._ending = threading.Lock()  # held by the thread that ends the consumer
        self._has_ended = False
        self._listener: Listener | None = None
        self._failed: FailedMessages | None = None
        # whether it also reads the group's failed messages, which only run() with a Retry can handle
        self._reads_failed = False
        self._timers = self._make_timers()
        self._commit_timers = Timers("metaq-commit")
        self._pool = self._make_pool(config.connection)
        self._cluster = connect, root
        self._session = zk_session(connect, root, config.session_timeout_seconds, config=config.connection)
        self._view = ClusterView(self._session)
        self._accept = accept
        core = ConsumerCore(
            self.group,
            config,
            tags=wanted,
            where=chosen,
            accept=accept,
            is_slave=lambda endpoint: member.is_slave(endpoint),
            follow=self._pool.follow,
            reader=reader,
        )
        core.notices.on_assigned, core.notices.on_revoked = on_assigned, on_revoked
        # The threads of these parts hold no reference to the consumer itself: otherwise they would keep an abandoned
        # consumer alive.
        nearby = self._nearby = Nearby(self._session, config.zone, lambda broker_id: fetcher.nearest_changed(broker_id))
        if config.read_from == "nearest" and config.connection.listener is None:  # followers publish no listeners
            core.nearest = nearby.nodes
        fetcher = self._make_fetcher(
            core, lambda partition: member.endpoint_of(partition), lambda request: beginnings.put(request)
        )
        super().__init__(core, fetcher)
        membership = GroupMembership(
            self._session,
            self.group,
            config.consumer_id,
            topics,
            lambda: member.changed(),
            zone=config.zone if config.strategy == "zone" else None,
            takes=ConsumerFilter(tuple(sorted(wanted or ())), where or "") if wanted or chosen else None,
        )
        self._topics = membership.topics
        self.consumer_id = membership.consumer_id
        self._poll_watch = PollWatch(self.group, self.consumer_id, config.max_poll_interval_seconds)
        self._committer = committer_for(config, self._session, membership)
        self._suspects = Suspects(BegunMarks(self._session, self.group), self._committer, core)
        beginnings = Beginnings(self._committer, core, fetcher, self._commit_timers)
        member = self._member = GroupMember(
            membership,
            self._committer,
            core,
            self._fetcher,
            self._timers,
            self._view,
            is_idle=self._poll_watch.is_idle,
            on_brokers=lambda ids: None if core.nearest is None else nearby.look(ids),
            on_given_up=self._suspects.left,
        )
        self._watch = SessionWatch(self._session, self.group, self._timers, self._member.holds_its_claims)
        self._connect_to = partial(self._pool.connection, timeout=config.connection.connect_timeout_seconds)
        self._brokers = KeepingBrokers(self._view, self._connect_to)
        self._finder = MessageFinder(self._view, self._connect_to, self._pool.follow)
        try:
            self._session.start(config.start_timeout_seconds)
            self._aside.do(self._begin, StartPosition.of(start, self._topics, self._finder))
            self._opened()
        except BaseException:
            begin_elsewhere((self._abandon,))
            self.close()
            raise

    # The consumer of an event loop replaces these three.

    def _make_timers(self) -> Scheduler:
        """Return the scheduler of the pauses before requests and of the checks of the group."""
        return Timers("metaq-fetch")

    def _make_pool(self, config: ConnectionConfig) -> Channels:
        return ConnectionPool(config)

    def _make_fetcher(self, core: ConsumerCore, endpoint_of: EndpointOf, record: Callable[[Request], None]) -> Fetcher:
        return Fetcher(core, self._pool, endpoint_of, self._timers, record)

    def _abandon(self) -> None:
        """Close the objects that the constructor had created before an interrupt ended it. They are closed in the
        background; this call does not wait.
        """
        self._closed = True
        self._aside.start(partial(self._end_once, CLOSE_SECONDS, True))

    def _begin(self, start: StartPosition) -> None:
        self._watch.prove()
        self._member.begin(start)
        self._poll_watch.begin(self._member, self._timers)
        if self._config.auto_commit_seconds:
            self._committer.commit_regularly(self._commit_timers, self._config.auto_commit_seconds, self._core)

    # --- polling ----------------------------------------------------------------------------------------------------

    def _poll(self, take: Callable[[], Taken], timeout: float) -> Taken | None:
        self._refuse_failed("poll()")
        return super()._poll(take, timeout)

    def _refuse_failed(self, what: str) -> None:
        """Raise ClientError if a run() of this consumer has subscribed to the group's topic of failed messages, because
        poll() would deliver the failed messages as messages of that topic, not of their original topics.
        """
        if self._reads_failed:
            raise ClientError(
                f"{what} after a run() that made this consumer read messages that wait for another attempt: go on with "
                "run(handler), make another consumer, or give every run() of this one retry=None"
            )

    def _attend(self) -> None:
        self._end_listener()
        self._poll_watch.attend()
        super()._attend()
        if self._core.notices.waiting:
            self._core.notices.tell()
        self._core.in_doubt = self._watch.may_have_lost_everything()

    def _wait(self, seconds: float) -> None:
        self._poll_watch.wait(partial(super()._wait, self._longest_wait(seconds)))

    def _longest_wait(self, seconds: float) -> float:
        """Return for how long a poll that has `seconds` left may wait before it looks for messages again."""
        # no arrival wakes the poll when a doubt ends: messages wait already
        return min(seconds, DOUBT_LOOK_SECONDS) if self._core.in_doubt else seconds

    # --- handlers ---------------------------------------------------------------------------------------------------

    def run(
        self,
        handler: Callable[[Message], object],
        *,
        max_retries: int | Auto | None = AUTO,
        on_reject: RejectHandler | None = None,
        retry: Retry | Auto | None = AUTO,
        threads: int = 1,
    ) -> None:
        """Call `handler` with each message until stop() or close(). A message counts as consumed when the handler has
        returned. threads: the number of threads that call the handler, 1 … 1024. The messages of one partition are
        handled by only one of these threads at a time, so the handler never works on two messages of a partition at the
        same time.

        retry: a Retry. If the handler raises an exception, the message goes back to the broker. After a pause it is
        delivered to any member of the group that also uses a Retry; after the last attempt it goes to the group's dead
        letters. The failed message counts as consumed when the broker has stored it for its next attempt or as a dead
        letter; until then its partition waits. Later messages of the partition may be handled before the failed message
        is tried again, unless the Retry has ordered=True. A consumer that has used a Retry cannot poll() any more. A
        Retry needs brokers that keep delayed messages, and cannot be used with broadcast=True.

        If retry is None, or if max_retries or on_reject is given, a failed message is tried again in place after a
        growing pause (retry_step_seconds, retry_max_seconds), while other partitions continue. max_retries: number of
        further tries (5 by default; None means without limit). on_reject: a function that gets the message after the
        last try, by default a LocalRecoverStore on this machine. The message counts as consumed when on_reject returns.

        By default `retry` is a Retry() if every broker of the topics keeps delayed messages; brokers that do not answer
        are ignored. By default `retry` is None for Java brokers and for broadcast=True. As long as no broker has
        answered, failed messages are tried again in place.

        Raises ConfigError, for example if options contradict `retry`, or if there is a Retry and a broker keeps no
        delayed messages. ConfigError is also raised if the LocalRecoverStore is needed but the user has no home
        directory. With a Retry, raises InvalidName if the group's name is too long, because the names of the group's
        own topics contain it. Also raises LocalStoreError, ClientError, exceptions of on_assigned and on_revoked, and
        exceptions of a handler that do not derive from Exception (SystemExit …); with a Retry also
        CoordinationUnavailable. Raises AccessRefused if a broker refuses to hand out the messages of a partition or to
        log the user in.
        """
        check_call_back("handler", handler)
        self._run(lambda messages: handler(messages[0]), 1, max_retries, on_reject, retry, threads)

    def run_batches(
        self,
        handler: Callable[[list[Message]], object],
        *,
        max_messages: int = 100,
        max_retries: int | Auto | None = AUTO,
        on_reject: RejectHandler | None = None,
        retry: Retry | Auto | None = AUTO,
        threads: int = 1,
    ) -> None:
        """Call the handler as `run` does, but with up to `max_messages` messages of one partition in each call. The
        messages of one call count as consumed together.

        If the handler fails on a batch, it then gets the messages of the batch one by one. With a Retry this happens at
        once. Without a Retry the handler first gets the whole batch again, and gets single messages only after it has
        failed on the batch max_retries times more. So a failed attempt is counted only for a message on which the
        handler fails alone, and only such a message can be rejected.
        """
        check_call_back("handler", handler)
        check_number("max_messages", max_messages, most=INT32_MAX)
        self._run(lambda messages: handler(list(messages)), max_messages, max_retries, on_reject, retry, threads)

    def stop(self) -> None:
        """Make run() return as soon as the running handlers have returned. If stop() is called before run(), the next
        run() returns at once. Any thread may call stop(), also a handler.
        """
        self._stopped = True
        if self._guard.is_elsewhere:
            return
        listener = self._listener
        if listener is not None:
            listener.stop()

    def _run(
        self,
        deliver: Deliver,
        batch: int,
        max_retries: int | Auto | None,
        on_reject: RejectHandler | None,
        retry: Retry | Auto | None,
        threads: int,
    ) -> None:
        check_threads(threads)
        if max_retries is not None and max_retries != AUTO:
            check_number("max_retries", max_retries, may_be_0=True)
        check_call_backs(on_reject=on_reject)
        self._check_open()
        if retry == AUTO and (max_retries != AUTO or on_reject is not None or self._config.broadcast):
            retry = None
        if retry is None:
            self._refuse_failed("run() with retry=None")
        elif retry != AUTO:
            self._check_retry(retry, max_retries, on_reject)
        if self._polling:
            raise ClientError(NOT_ALONE)
        self._polling = True
        try:
            self._end_listener()
            self._core.acknowledge()
            if isinstance(retry, Retry):
                self._begin_retrying()
            ending = ExitStack()

            def choose(handling: Handling) -> Handling | None:
                chosen = self._choose_retry() if retry == AUTO else retry
                if chosen == AUTO:
                    return None
                kept = delivering_living(deliver, self._core)
                store: LocalRecoverStore | None
                if chosen is not None:
                    failed = self._failed = FailedMessages(chosen, self.group, self._make_sender, self._brokers.keeps)
                    kept, store = giving_back(kept, failed), left_of_cluster(*self._cluster, self.group)
                    handling = handling._replace(failed=failed, suspects=self._suspects)
                else:
                    most = MAX_RETRIES if max_retries == AUTO else max_retries
                    reject, store = self._rejecting(most, on_reject)
                    handling = handling._replace(max_retries=most, reject=reject)
                if store is not None:
                    ending.enter_context(recovering(store, self._topics, kept, self._timers, listener.add_work))
                return handling

            listener = self._listener = Listener(
                Handling(accepting(deliver, self._accept), batch, None, drop_message, threads),
                self._core,
                self._fetcher,
                self._timers,
                self._poll_watch,
                lambda: not self._watch.may_have_lost_everything(),
                choose,
            )
            try:
                with ending:
                    if self._stopped:  # checked after _listener is set: stop() works in the reverse order
                        listener.stop()
                    listener.loop()
            finally:
                self._end_listener()
        finally:
            self._polling = False

    def _rejecting(
        self, max_retries: int | None, on_reject: RejectHandler | None
    ) -> tuple[RejectHandler, LocalRecoverStore | None]:
        """Return the function that gets messages after their last try. If it is a LocalRecoverStore, open it and return
        it also as the second value; otherwise the second value is None. Raises ConfigError, LocalStoreError.
        """
        if on_reject is None and max_retries is None:  # nothing is rejected, so no store is needed
            return drop_message, left_of_cluster(*self._cluster, self.group)
        if on_reject is None:
            store = of_cluster(*self._cluster, self.group)
            return store, store
        if not isinstance(on_reject, LocalRecoverStore):
            return on_reject, None
        on_reject.open(self.group)
        return on_reject, on_reject

    def _end_listener(self) -> None:
        """Clean up after run(). If an interrupt ends this method early, the next call of any method of the consumer
        cleans up the rest.
        """
        if self._listener is not None:
            self._listener.give_back()
            self._listener = None
            self._stopped = False
        if self._failed is not None:
            self._aside.do(self._failed.close, END_SECONDS)
            self._failed = None

    # --- failed messages that go back to the broker -------------------------------------------------------------------

    def _check_retry(self, retry: Retry, max_retries: int | Auto | None, on_reject: RejectHandler | None) -> None:
        """Check the options of run() that concern retries, without asking brokers. Raises ConfigError."""
        if not isinstance(retry, Retry):
            raise ConfigError(
                "retry",
                repr(retry),
                "make it a Retry(…), which takes each setting by its name, or None to try again in place",
            )
        if on_reject is not None:
            raise ConfigError(
                "retry", retry, "leave out on_reject, or retry: with retry the last failure goes to the dead letters"
            )
        if max_retries != AUTO:
            raise ConfigError(
                "retry", retry, f"leave out max_retries={max_retries}, or retry: Retry(attempts=…) says it"
            )
        if self._config.broadcast:
            raise ConfigError(
                "retry", retry, "leave out broadcast=True, or retry: a message of all hosts comes again to none of them"
            )

    def _begin_retrying(self) -> None:
        """Prepare to send failed messages back to brokers. Raises ConfigError if a broker of the topics keeps no
        delayed messages, InvalidName, CoordinationError.
        """
        topic = retry_topic(self.group)
        lacking = self._aside.do(self._brokers.look, self._topics).lacking
        if lacking is not None:
            raise ConfigError(
                "retry",
                "Retry(…)",
                f"{lacking} does not keep messages until their time ({DELAYS_MARK}): start it with this version of "
                "metaq, or choose retry=None, which needs nothing of brokers",
            )
        self._read_failed(topic)

    def _choose_retry(self) -> Retry | Auto | None:
        """Determine the value of `retry` for a run() that was called without this option: a Retry, or None if failed
        messages must be tried again in place. Return AUTO if this cannot be determined yet, because no broker has said
        whether it keeps delayed messages.
        """
        try:
            topic = retry_topic(self.group)
        except InvalidName as error:
            self._say_in_place(f"its name leaves no room for its topics ({error})")
            return None
        try:
            if not self._reads_failed:
                found = self._aside.do(self._brokers.look, self._topics)
                if found.lacking is not None:
                    self._say_in_place(f"{found.lacking} does not keep messages until their time")
                    return None
                if not found.answered:
                    return AUTO
            self._read_failed(topic)
        except CoordinationError:  # the log already reports ZooKeeper's absence
            return AUTO
        return Retry()

    def _say_in_place(self, reason: str) -> None:
        log.info(
            "group %s: %s, so a message that fails is tried again in its place, and kept on this machine behind the "
            "last try",
            self.group,
            reason,
        )

    def _read_failed(self, topic: str) -> None:
        """Subscribe to `topic`, which contains the group's failed messages for their next attempts. Further calls have
        no effect. Raises CoordinationError.
        """
        self._reads_failed = True  # first, because an interrupt may come
        self._aside.do(self._member.subscribe, topic)

    def _make_sender(self) -> FailedSender:
        from ..producer import Producer  # not imported by a consumer whose handler never fails
        from ..questions.zookeeper_metadata import ZooKeeperMetadata

        return Producer(
            config=ProducerConfig(connection=self._config.connection),
            metadata=ZooKeeperMetadata("", "", self._config.session_timeout_seconds, session=self._session),
        )

    # --- positions --------------------------------------------------------------------------------------------------

    def assignment(self) -> list[TopicPartition]:
        """Return the owned partitions, sorted. A new partition is included as soon as the offset where the group begins
        to read it is committed.
        """
        self._guard.check()
        return sorted(partition for partition, cursor in self._core.owned.items() if cursor.recorded)

    def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> int:
        """Count all delivered messages as consumed, commit their offsets now, and return the number of partitions whose
        offset has changed.

        positions: commit only these offsets, each of an owned partition, such as {message.partition:
        message.next_offset}. Delivered messages from such an offset on do not count as consumed by this call, but by
        the next poll(). Raises NotOwner, and ConfigError for an offset after messages that were not delivered yet;
        nothing is committed then. Also raises SessionLost if the partitions now belong to other members, and
        CoordinationUnavailable.
        """
        self._check_open()
        if positions is None:
            self._core.acknowledge()
            return self._committing.do(self._committer.commit_owned, self._core)
        self._settle()
        cursors = [self._core.cursor(partition) for partition in positions]
        for cursor, offset in zip(cursors, positions.values(), strict=True):
            check_offset("positions", offset)
            if not cursor.may_commit(offset):
                remedy = f"the consumer is at {cursor.position} there: commit an offset up to it, or seek() first"
                raise ConfigError("positions", f"{cursor.partition.topic} {cursor.partition} {offset}", remedy)
        for cursor, offset in zip(cursors, positions.values(), strict=True):
            cursor.consumed_before(offset)
        return self._committing.do(self._committer.commit, cursors)

    def pause(self, places: PlacesGiven) -> None:
        """Deliver no messages of these topics or partitions until `resume`. The consumer stays their owner; call poll()
        as before. Messages that poll() has returned, or that a handler has, are not affected.

        places: one or several topics of this consumer, or partitions of these topics. A pause of a topic also holds for
        partitions that this consumer gets later. A pause also holds while another member owns the partition meanwhile.
        Failed messages that come again after a pause of a Retry are not paused. Raises ConfigError.
        """
        self._set_paused(places_given(places, self._topics), True)

    def resume(self, places: PlacesGiven | None = None) -> None:
        """Deliver messages of these topics or partitions again; with None, of all. Raises ConfigError."""
        self._set_paused(self._topics if places is None else places_given(places, self._topics), False)

    def paused(self) -> list[TopicPartition]:
        """Return the owned partitions that are paused, sorted."""
        return [partition for partition in self.assignment() if self._core.pauses.holds(partition)]

    def _set_paused(self, places: Iterable[str | TopicPartition], paused: bool) -> None:
        self._check_open()
        self._core.pause(self._core.pauses.changed(places, paused))
        self._fetcher.serve_soon()
        self._fetcher.wake()

    def position(self, partition: TopicPartition) -> int:
        """Return the byte offset of the next message that poll() returns. Raises NotOwner."""
        self._settle()
        return self._core.cursor(partition).position

    def seek(self, partition: TopicPartition, to: int | str | Place) -> None:
        """Continue reading a partition at another position. to: a byte offset where a message begins, "earliest",
        "latest", a datetime (the first message stored from then on), Last(n) messages, AtMessage(id) or AtKey(key)
        (places.py).

        Messages before that position count as consumed. Raises NotOwner, ConfigError, BrokerUnavailable,
        MessageNotFound, SearchIncomplete. Raises RequestRefused if the position must be searched and the broker speaks
        only the text protocol.
        """
        self._settle()
        self._move(self._core.cursor(partition), self._place(partition, to))

    def _place(self, partition: TopicPartition, to: int | str | Place) -> int:
        """Return the byte offset of a position in an owned partition. Raises the errors of `seek`."""
        self._core.cursor(partition)
        found = locate(to, [partition.topic], self._finder, "to")
        return found if isinstance(found, int) else self._ask(partition, found)

    def _move(self, cursor: PartitionCursor, offset: int) -> None:
        cursor.moved_to(offset)
        self._fetcher.serve_soon()

    def health(self) -> ConsumerHealth:
        """Return the consumer's state, as far as it knows the state itself. This call asks no server and does not wait;
        any thread may call it, also while another thread is in poll() or run(), and after close().
        """
        self._guard.check()
        membership, trouble = self._member.condition
        owned = list(self._core.owned)
        return ConsumerHealth(
            self._session.connected,
            sorted(map(str, self._pool.down)),
            membership,
            trouble,
            len(owned),
            sum(map(self._core.pauses.holds, owned)),
            self._core.in_doubt or self._watch.may_have_lost_everything(),
            self._closed,
        )

    def __repr__(self) -> str:
        topics = ", ".join(self._topics[:3]) + (", …" if len(self._topics) > 3 else "")
        state = "closed" if self._closed else f"{len(self._core.owned)} partitions"
        return f"<Consumer {self.consumer_id} of the group {self.group}, {topics}: {state}>"

    def lag(self) -> dict[TopicPartition, Lag]:
        """Return for each owned partition how much data the broker has after this consumer's position. Raises
        BrokerUnavailable.
        """
        self._settle()
        return {
            partition: self._ask(partition, partial(lag_behind, offset=cursor.position))
            if cursor.opened
            else Lag(None, None)
            for partition, cursor in sorted(self._core.owned.items())
        }

    def _settle(self) -> None:
        self._guard.check()
        if not self._polling:
            self._end_listener()
        super()._settle()

    def fetch(
        self, partition: TopicPartition, offset: int, max_bytes: int = BROWSE_BYTES, timeout: Duration | None = None
    ) -> list[Message]:
        """Return messages of any partition, owned or not, from the byte position `offset` on: at least one message, or
        [] at the end of the partition. A fetch takes one round trip to the broker. It does not change the consumer's
        position, and the messages do not count as consumed. timeout: seconds (None: request_timeout_seconds).

        Raises OffsetOutOfRange, CorruptRecord, BrokerUnavailable, RequestTimedOut, RequestRefused.
        """
        seconds = None if timeout is None else check_timeout(timeout)
        check_offset("offset", offset)
        check_number("max_bytes", max_bytes, most=INT32_MAX)
        self._check_open()
        return self._ask(partition, partial(read_messages, offset=offset, max_bytes=max_bytes, timeout=seconds))

    def view_message(self, topic: str, message_id: int) -> Message:
        """Return the message of `topic` with this id; any topic is allowed. The consumer's state does not change.
        Blocks up to a few seconds per broker, and SEARCH_TIMEOUT_SECONDS (30) for a broker that does not answer.

        Raises MessageNotFound. Raises SearchIncomplete if the message was not found but may be where the search could
        not look, for example on a broker that is not registered now. Also raises NoPartition, BrokerUnavailable,
        RequestTimedOut, RequestRefused (a Java broker cannot search), CorruptRecord.
        """
        self._check_open()
        return self._finder.view_message(topic, message_id).message

    def query_message(
        self,
        topic: str,
        key: str,
        max_messages: int = DEFAULT_FOUND_MESSAGES,
        begin: datetime | None = None,
        end: datetime | None = None,
    ) -> FoundMessages:
        """Return the newest messages of `topic` that have this key and were stored from `begin` to `end`, at most
        `max_messages` (1 … 1,024). Any topic is allowed.

        The result also says whether there are more such messages, how many bytes could not be searched, and which
        messages are damaged. Raises the errors of view_message; but if no message is found, returns an empty result.
        """
        self._check_open()
        return self._finder.query_message(topic, key, max_messages, begin, end)

    def _ask(self, partition: TopicPartition, question: Callable[[Channel, TopicPartition], _T]) -> _T:
        return following(self._pool.follow, lambda: question(self._connection(partition), partition))

    def _connection(self, partition: TopicPartition) -> Channel:
        """Return a connection to the broker from which this consumer reads a partition. As long as the membership knows
        no node of this broker, because the consumer has not joined its group yet, look the broker up in the list of
        registered brokers.
        """
        endpoint = self._member.endpoint_of(partition) or source_of(self._view.brokers(), partition)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {partition.broker} is not registered")
        return self._connect_to(endpoint)

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, timeout: Duration = CLOSE_SECONDS) -> None:
        """Commit the consumed messages, release the partitions and leave the group, within `timeout` seconds.

        If ZooKeeper does not answer, closing takes at most END_SECONDS more, and other members can get the partitions
        only when the ZooKeeper session expires.

        Idempotent. If another thread waits in poll(), poll() returns []; if another thread is in run(), run() returns.
        close() waits until the running handlers have returned, but not longer than half of the timeout. If a handler
        itself calls close(), close() does not wait for handlers, and the message of this handler is delivered again. In
        a forked process, close() only closes that process's copies of the sockets.
        """
        seconds = check_wait("timeout", timeout)
        self._closes()
        self._closed = True
        if self._guard.is_elsewhere:
            self._pool.close()
            return
        if not self._has_ended:
            listener = self._listener
            self._aside.do(self._end_once, seconds, listener is None or not listener.is_worker())

    def _end_once(self, timeout: float, waits: bool) -> None:
        """Close the objects of the consumer one after another. Called on a thread that no interrupt can reach, because
        if an interrupt ended the closing early, other members could not get the partitions. waits: whether to wait for
        running handlers, and for a close() on another thread.
        """
        if not self._ending.acquire(blocking=waits):
            return
        try:
            if not self._has_ended:
                self._end(timeout, waits)
                self._has_ended = True
        finally:
            self._ending.release()

    def _end(self, timeout: float, waits: bool) -> None:
        self._fetcher.wake()
        left = TimeLeft(timeout)
        listener = self._listener
        if listener is not None:
            listener.stop()
            if waits:
                listener.wait(timeout / 2)
        failed = self._failed
        if failed is not None:
            failed.close(min(1.0, left.part(0.25)))
        self._nearby.close()
        self._commit_timers.close(min(1.0, left.part(0.25)))
        self._member.close(left.part(0.75))
        left = TimeLeft(max(left.seconds, END_SECONDS))
        self._timers.close(min(1.0, left.part(0.25)))
        self._pool.close(left.part(0.5))
        self._session.close(left.seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and not self._guard.is_elsewhere:
            self._core.acknowledge()
        super().__exit__(kind, error, traceback)
