"""Half messages. The broker stores them in an internal log, and delivers them to their partitions when their
transaction is committed.

Half messages are implemented as delayed messages (broker/delays) that are due at the time of their first check. When a
half message is due, the broker asks a producer of its group for the outcome. So that the broker can ask, producers send
CHECK_HALVES requests, which wait at the broker until it has half messages to ask about. As long as the producer that
sent the half message sends such requests, the broker asks only this producer (producer_groups.py). To commit a half
message, the broker first writes a mark to the internal log, and immediately appends the message to its partition. To
roll it back, the broker cancels the message, like a delayed message. Each question is also written to the internal log
as a mark, so that a new leader or a restarted broker knows how often producers were asked already.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from operator import add
from typing import Any, NamedTuple, cast

import numpy as np
from twisted.internet.defer import Deferred, ensureDeferred

from metaq.protocol.access import Quota
from metaq.protocol.errors import AccountSpent, HalfRefused, NotLeader
from metaq.protocol.half_messages import (
    CheckedHalf,
    CheckHalvesRequest,
    EndHalfReply,
    EndHalfRequest,
    HalfOutcome,
    HalfState,
    half_of,
)
from metaq.protocol.limits import HALF_GRACE_SECONDS
from metaq.protocol.record import Buffer

from .. import tuning
from ..delays.delayed_log import DelayedLog, read_records
from ..delays.delays import Delays, Pended
from ..delays.deliverer import DueWrite
from ..delays.owners import Owners
from ..delays.waiting_table import NOWHERE
from ..memory.delayed_records import DelayTarget, Group, Ids, MarkKind, Marks, Pending
from ..memory.figures import Lines, Metrics, counter, gauges
from ..memory.topics import HALVES_TOPIC
from ..partitions.counters import OTHERS
from ..runtime.account import Account
from ..runtime.reactor import ReactorTime
from ..runtime.slices import SlicedWork
from ..store.partition_log import PartitionLog
from ..store.store import Store
from .half_log import Decision, HalfLog, Questions
from .producer_groups import NEVER, AskedGroup, Half, Poll, ProducerGroups

__all__ = ["HalfFigures", "Halves"]

_log = logging.getLogger(__name__)

Checked = Sequence[CheckedHalf]


class HalfFigures(NamedTuple):
    """Three numbers about one producer group. The first two numbers count only half messages whose first check is due
    or was made.
    asked: number of half messages whose outcome the broker asks for. parked: number of half messages whose outcome the
    broker no longer asks for. askers: number of producers whose CHECK_HALVES request waits for half messages.
    """

    asked: int
    parked: int
    askers: int


def _figures(group: AskedGroup[Checked]) -> HalfFigures:
    return HalfFigures(group.asked, group.parked, len(group.polls))


def _waiting(row: tuple[str, HalfFigures]) -> int:
    return row[1].asked + row[1].parked


class Halves(Delays):
    """The half messages of one broker. Used only on the reactor thread. Like Delays, this object delivers messages and
    asks producers only while this node leads.
    """

    topic = HALVES_TOPIC
    name = "half messages"
    item = "halves"
    ending = "to be committed or rolled back"
    quota = Quota.HALF_BYTES

    def __init__(
        self,
        store: Store,
        make_write: Callable[[PartitionLog, Sequence[Buffer], Buffer], DueWrite],
        clock: Callable[[], float],
        reactor: ReactorTime,
        in_thread: Callable[[Callable[[], Any]], Deferred[Any]],
        account: Account,
        *,
        first_seconds: float,
        checks: int,
    ) -> None:
        """first_seconds: seconds from a half message's arrival to its first check. checks: the greatest number of
        questions about each half message. Delays.__init__ describes the other arguments.
        """
        super().__init__(store, make_write, clock, reactor, in_thread, account)
        self.first_seconds = first_seconds
        self._groups: ProducerGroups[Checked] = ProducerGroups(checks, tuning.HALVES_SILENT_SECONDS, HALF_GRACE_SECONDS)
        self._given: dict[object, dict[str, list[Half]]] = {}  # by caller and group: what its last answer contained
        self._lost: deque[tuple[list[Half], float]] = deque()  # half messages of lost callers, and when others get them
        self._reading: dict[tuple[object, str], Poll[Checked]] = {}  # polls for which a thread is reading
        self._ran, self._seen_at = 0.0, reactor.seconds()
        self._works = SlicedWork(reactor)  # drops the state after another node has begun to lead
        self._ending: dict[int, list[Deferred[None]]] = {}  # by id: other requests that wait until an outcome is safe
        self.committed = self.rolled_back = self.questions = 0
        """Three numbers since the broker's start: half messages committed, half messages rolled back, and questions
        about half messages.
        """

    @property
    def turn_records(self) -> int:
        return tuning.HALVES_TURN_RECORDS

    # --- half messages come -------------------------------------------------------------------------------------------

    def _due(self, flag: int, body: Buffer, now_ms: int) -> int:
        after = half_of(flag, body).check_after_ms
        return now_ms + (int(self.first_seconds * 1000) if after is None else after)

    def _check_room(self, count: int, size: int) -> None:
        super()._check_room(count, size)
        if (why := self._account.half_messages.why_not(self._account.asker, count)) is not None:
            raise AccountSpent(
                f"{why}; they wait for their outcomes: see `metaq halves list`, and start a producer that checks them"
            )

    def noted(self, pended: Pended, base: int) -> None:
        super().noted(pended, base)
        cast(HalfLog, pended.log).senders.came(self._account.asker, np.array(pended.ids, np.int64))

    def _reader(self, log: PartitionLog) -> DelayedLog:
        return HalfLog(log, self._account.half_messages, Owners(self._account.users, self.quota))

    def _half_logs(self) -> Iterator[HalfLog]:
        for contents in self._logs.values():
            yield cast(HalfLog, contents)

    # --- checks become due --------------------------------------------------------------------------------------------

    def _running(self) -> float:
        """Return for how many seconds this process has run, without the times when it was suspended. All times in
        producer_groups.py are times of this clock. If this clock also ran during a suspension, all producers would
        count as gone afterwards, although they only could not reach the broker.
        """
        now = self.seconds()
        if now - self._seen_at <= tuning.HALVES_STEP_SECONDS:
            self._ran += now - self._seen_at
        self._seen_at = now
        return self._ran

    def tick(self) -> None:
        self._running()
        super().tick()

    def _turn(self) -> None:
        super()._turn()
        until = self.seconds() + tuning.TURN_SECONDS
        while self._lost and self.seconds() < until:
            given, soon = self._lost.popleft()
            for half in given:
                if self._groups.get(half.id) is half and soon < half.at < NEVER:
                    self._groups.put_off(half, soon)
        self._groups.turn(self._running(), self._read_for, self._end_poll, lambda: self.seconds() < until)
        for poll in [each for each in self._reading.values() if each.ends_at <= self._ran]:
            self._end_poll(poll)

    def _wanted_at(self, now_ms: float, seconds: float) -> float:
        pause = tuning.DELAYED_LEAST_SECONDS
        if not self._lost:
            pause = max(pause, self._groups.next_at() - self._running())
        return min(super()._wanted_at(now_ms, seconds), now_ms + pause * 1000)

    def _give(self, contents: DelayedLog, ids: Ids, records: Sequence[bytes]) -> None:
        """The first check of these half messages is due: register the messages in their producer groups, so that
        producers are asked about them. (The class Delays, in contrast, delivers due messages.)
        """
        found = self.decoded(contents, ids, records)
        half_log = cast(HalfLog, contents)
        half_log.set_due(np.array([each.id for each in found], np.int64))
        now = self._running()
        for pending in found:
            group, _, producer = half_of(pending.flag, pending.body)
            asked, last_ms = half_log.questions.get(pending.id, Questions(0, 0))
            at = now
            if asked:
                at += max(0.0, self._pause_after(asked) - max(0, self.now_ms() - last_ms) / 1000)
            self._groups.add(Half(pending.id, group, pending.place, asked, at, last_ms, producer), now)

    def _pause_after(self, asked: int) -> float:
        """Return the minimum number of seconds between the last question about a half message and the next one. asked:
        number of questions about it so far.
        """
        pause: float = self.first_seconds * 2 ** (asked - 1)
        return min(pause, max(self.first_seconds, tuning.HALVES_MOST_PAUSE_SECONDS))

    # --- producers are asked ------------------------------------------------------------------------------------------

    def checks(self, request: CheckHalvesRequest, caller: object) -> Deferred[Checked]:
        """Serve a CHECK_HALVES request: find half messages whose outcomes this producer should tell. The Deferred gets
        such half messages as soon as there are any; if there are still none at the end of the request's waiting time,
        the Deferred gets an empty sequence. The Deferred fails with NotLeader when this broker stops being the leader.
        Raises HalfRefused if the connection already asks for the half messages of too many groups.
        """
        group = request.group
        if self._groups.asked_for(caller, group) >= tuning.HALVES_CALLER_GROUPS:
            raise HalfRefused(
                f"this connection asks for half messages of {tuning.HALVES_CALLER_GROUPS} groups already: connect anew"
            )
        self._drop_given(caller, group)
        for before in (self._groups.end_poll(caller, group), self._reading.get((caller, group))):
            if before is not None:
                self._end_poll(before)
        answer: Deferred[Checked] = Deferred()
        ends_at = self._running() + request.wait_ms / 1000
        poll = Poll(caller, group, request.limit, ends_at, answer, request.topics, request.producer)
        self._groups.arrive(poll)
        halves = self._groups.take(poll, self._ran) if self.enabled else []
        if halves:
            self._read_for(poll, halves)
        elif halves is None or request.wait_ms:
            self._groups.wait(poll)
        else:
            self._end_poll(poll)
        self._sleep()
        return answer

    def _drop_given(self, caller: object, group: str) -> None:
        """Called when the caller has sent a new request for this group, which shows that it has handled the last
        answer: forget which half messages this answer had.
        """
        given = self._given.get(caller)
        if given is not None and given.pop(group, None) is not None and not given:
            del self._given[caller]

    def _end_poll(self, poll: Poll[Checked], checked: Checked = ()) -> None:
        """Answer a poll (a waiting CHECK_HALVES request) with the half messages `checked`, by default with none."""
        if not poll.answer.called:
            self._groups.answered(poll, self._running())
            poll.answer.callback(checked)

    def connection_lost(self, caller: object) -> None:
        """Record that a connection was lost. Other producers are then asked about the half messages that were handed
        out on this connection.
        """
        now = self._running()
        groups = self._given.pop(caller, {})
        reading = [each for each in self._reading.values() if each.caller is caller]
        for poll in [*self._groups.lost(caller, now), *reading]:
            if not poll.answer.called:
                poll.answer.callback(())
        self._lost.extend((given, now + tuning.HALVES_LOST_SECONDS) for given in groups.values())
        if self.enabled:
            self._sleep()

    def _read_for(self, poll: Poll[Checked], halves: Sequence[Half]) -> None:
        """Answer a poll with these half messages. If their records are not in the page cache, read them in a worker
        thread first.
        """
        ids = np.array([half.id for half in halves], np.int64)
        for contents in self._half_logs():
            offsets = contents.asked.find(ids)
            here = offsets != NOWHERE
            if not here.any():
                continue
            for half, chosen in zip(halves, here.tolist(), strict=True):
                if not chosen:  # it is in the other log: the next poll gets it
                    self._groups.put_off(half, half.at)
            chosen_halves = [half for half, chosen in zip(halves, here.tolist(), strict=True) if chosen]
            most = tuning.HALVES_TURN_BYTES
            records = read_records(contents.log.segments.read, offsets[here], most)
            if records is not None:
                self._answer(records, contents, poll, chosen_halves)
                return
            self._reading[poll.caller, poll.group] = poll
            read = partial(read_records, contents.log.segments.snapshot().read, offsets[here], most)
            self.in_thread(read).addBoth(self._answer, contents, poll, chosen_halves)
            return
        self._wait_again(poll)

    def _answer(self, result: Any, contents: HalfLog, poll: Poll[Checked], halves: Sequence[Half]) -> None:
        """Answer a poll with half messages whose records were read. result: the records of `halves` in the same order,
        or a Failure if the read has failed. If the records do not fit into one answer, `result` has only the first of
        them.
        """
        if self._reading.get((poll.caller, poll.group)) is poll:
            del self._reading[poll.caller, poll.group]
        waiting = [half if self._groups.get(half.id) is half else None for half in halves]
        if not isinstance(result, list):
            if self.enabled:  # otherwise another node leads, and the log may have been cut during the read
                _log.error("half messages cannot be read, trying again: %s", result.value)
            later = self._running() + tuning.DELAYED_RETRY_SECONDS[1]
            for half in filter(None, waiting):
                self._groups.put_off(half, later)
            self._wait_again(poll)
            return
        for half in filter(None, waiting[len(result) :]):
            self._groups.put_off(half, half.at)
        wanted = [(half, record) for half, record in zip(waiting, result, strict=False) if half is not None]
        ids = np.array([half.id for half, _ in wanted], np.int64)
        messages = self.decoded(contents, ids, [record for _, record in wanted])
        for half_id in set(ids.tolist()).difference(each.id for each in messages):
            self._groups.discard(half_id)  # damaged
        if not messages or poll.answer.called or not self.enabled:
            for pending in messages:
                if (left := self._groups.get(pending.id)) is not None:
                    self._groups.put_off(left, left.at)
            self._wait_again(poll)
            return
        self._ask(contents, poll, messages)

    def _wait_again(self, poll: Poll[Checked]) -> None:
        if not poll.answer.called:
            if self.enabled and poll.ends_at > self._running():
                self._groups.wait(poll)
                self._sleep()
            else:
                self._end_poll(poll)

    def _ask(self, contents: HalfLog, poll: Poll[Checked], messages: Sequence[Pending]) -> None:
        now_ms, seconds = self.now_ms(), self._running()
        given = self._given.setdefault(poll.caller, {}).setdefault(poll.group, [])
        checked = []
        for pending in messages:
            half = self._groups.get(pending.id)
            assert half is not None
            half.asked += 1
            half.last_ms = now_ms
            self._groups.put_off(half, seconds + self._pause_after(half.asked))
            given.append(half)
            topic, partition = pending.place
            asked = topic, partition, half.asked, pending.taken
            checked.append(CheckedHalf(*asked, pending.id, pending.flag, pending.checksum, pending.body))
        self.questions += len(checked)
        self._tell_asked(contents, messages)
        self._end_poll(poll, checked)

    def _tell_asked(self, contents: HalfLog, messages: Sequence[Pending]) -> None:
        """Write to the internal log how often producers were asked about each of these half messages. If this write
        fails, the broker does not know of these questions after a restart.
        """
        groups = []
        for pending in messages:
            half = self._groups.get(pending.id)
            asked, last = (
                contents.questions.get(pending.id, Questions(0, 0)) if half is None else (half.asked, half.last_ms)
            )
            if asked:
                ids, times = np.array([pending.id], np.int64), np.array([asked], np.int64)
                groups.append(Group(pending.place, ids, times, last))
        if not groups:
            return
        for group in groups:
            contents.asked_for(group)
        error = self._append_marks(contents, Marks(MarkKind.ASKED, 0, groups))
        if error is not None:
            _log.warning("the number of questions for half messages cannot be stored: %s", error)

    def rewritten(self, contents: DelayedLog, messages: Sequence[Pending]) -> None:
        self._tell_asked(cast(HalfLog, contents), messages)

    def _drop_damaged(self, contents: DelayedLog, ids: Sequence[int]) -> None:
        super()._drop_damaged(contents, ids)
        for half_id in ids:
            self._groups.discard(half_id)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def end(self, request: EndHalfRequest) -> Deferred[EndHalfReply]:
        """Commit or roll back a half message. The Deferred fires when the outcome is stored as safely as the
        partition's messages. The Deferred fails with the error of a refused put or with StoreError.
        """
        place = request.topic, request.partition
        return ensureDeferred(self._end(place, request.message_id, HalfOutcome(request.outcome)))

    async def _end(self, place: DelayTarget, half_id: int, outcome: HalfOutcome) -> EndHalfReply:
        found = await self._find(place, half_id)
        if found is not None:
            contents, pending = found
            return (await self._decide(contents, (pending,), outcome)).replies()[0]
        if half_id in self._ending:
            others: Deferred[None] = Deferred()
            self._ending[half_id].append(others)
            await others
        return self._decided(place, half_id) or EndHalfReply(HalfOutcome.UNKNOWN)

    def end_many(self, place: DelayTarget, outcomes: Sequence[tuple[int, HalfOutcome]]) -> Deferred[list[EndHalfReply]]:
        """Commit or roll back several half messages, like `end`; the replies have the order of `outcomes`. Messages
        whose records are in the page cache are handled in groups, each with as many messages as one turn may read; the
        others are handled one by one. For each group, one mark in the internal log stores the outcome; committed and
        rolled-back messages are in different groups.
        """
        return ensureDeferred(self._end_many(place, outcomes))

    async def _end_many(self, place: DelayTarget, outcomes: Sequence[tuple[int, HalfOutcome]]) -> list[EndHalfReply]:
        replies: dict[int, EndHalfReply] = {}
        for outcome in (HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK):
            chosen = [each for each, wanted in outcomes if wanted is outcome]
            for contents in [*self._half_logs()] if chosen else ():
                ids = np.unique(np.array(chosen, np.int64))
                while len(ids) and self._logs.get(contents.log) is contents:
                    ids, found = self._read_together(contents, ids)
                    found = [each for each in found if each.place == place]
                    if found:
                        decision = await self._decide(contents, found, outcome)
                        replies.update(zip(decision.group.ids.tolist(), decision.replies(), strict=True))
        return [
            replies.get(half_id) or self._decided(place, half_id) or await self._end(place, half_id, outcome)
            for half_id, outcome in outcomes
        ]

    def _read_together(self, contents: HalfLog, ids: Ids) -> tuple[Ids, list[Pending]]:
        """Read from this log those of these half messages that wait in it, but at most as many as one turn may read.
        Return the ids of the half messages that wait in the log but exceed this limit, and the half messages that were
        read. If the read would have to wait for the disk, return two empty values.
        """
        offsets = contents.find(ids)
        here = (offsets != NOWHERE) & (offsets < contents.log.segments.visible_end)
        ids, offsets = ids[here], offsets[here]
        if not len(ids):
            return ids, []
        records = read_records(contents.log.segments.read, offsets, tuning.HALVES_TURN_BYTES)
        if records is None:
            return ids[:0], []
        return ids[len(records) :], self.decoded(contents, ids, records)

    def _decided(self, place: DelayTarget, half_id: int) -> EndHalfReply | None:
        """Return the outcome of a half message, or None if the outcome is unknown or not stored safely yet."""
        if half_id in self._ending:
            return None
        for contents in self._half_logs():
            if (reply := contents.reply(place, half_id)) is not None:
                return reply
        return None

    async def _find(self, place: DelayTarget, half_id: int) -> tuple[HalfLog, Pending] | None:
        """Return the internal log and the decoded record of a half message, or None if no half message with this id
        waits for this partition.
        """
        ids = np.array([half_id], np.int64)
        for contents in self._half_logs():
            offsets = contents.find(ids)
            if offsets[0] == NOWHERE:
                continue
            records = None
            waits = True
            if offsets[0] < contents.log.segments.visible_end:
                records = read_records(contents.log.segments.read, offsets, 0)
            if records is None:  # or not visible: its producer may be answered before all nodes of the set have it
                records = await self.in_thread(partial(read_records, contents.snapshot().read, offsets, 0))
                waits = self._logs.get(contents.log) is contents and contents.find(ids)[0] != NOWHERE
            (pending,) = self.decoded(contents, ids, records) or (None,)
            return (contents, pending) if pending is not None and pending.place == place and waits else None
        return None

    async def _decide(self, contents: HalfLog, halves: Sequence[Pending], outcome: HalfOutcome) -> Decision:
        """Commit or roll back half messages of one partition, wait until the outcome is stored safely, and return it.
        If the broker cannot write the outcome, this method raises the error, and the messages wait as before.
        """
        if outcome is HalfOutcome.COMMITTED:
            decision, write, waiting = self._commit(contents, halves)
        else:
            decision, write, waiting = self._roll_back(contents, halves)
        ids = [half.id for half in halves]
        if len(self._groups):
            for half_id in ids:
                self._groups.discard(half_id)
        if not waiting and write.failure is None:
            return decision
        others: list[Deferred[None]] = []
        self._ending.update(dict.fromkeys(ids, others))
        try:
            await self._until_safe(write, waiting)
        finally:
            for half_id in ids:
                del self._ending[half_id]
            for other in others:
                other.callback(None)
        return decision

    def _commit(self, contents: HalfLog, halves: Sequence[Pending]) -> tuple[Decision, DueWrite, list[DueWrite]]:
        delivery = self._delivery(halves[0].place, halves)
        mark, waiting = self._append_marked(contents, (delivery,))
        error = mark.error or delivery.write.error
        if error is not None:
            raise error
        self.committed += len(halves)
        return contents.decide(delivery.group, committed=True), delivery.write, waiting

    def _roll_back(self, contents: HalfLog, halves: Sequence[Pending]) -> tuple[Decision, DueWrite, list[DueWrite]]:
        group, write, waiting = self._cancel_now(contents, halves)
        self.rolled_back += len(halves)
        return contents.decide(group, committed=False), write, waiting

    # --- leading and following ----------------------------------------------------------------------------------------

    def lead(self) -> None:
        super().lead()
        if self._logs:  # otherwise nobody has sent a half message before
            self._groups.presumed_until = self._running() + tuning.HALVES_SILENT_SECONDS

    def _stop(self) -> None:
        self._works.add(self._refuse(self._groups.clear()))
        for contents in self._half_logs():
            self._works.add(self._drop(contents.questions, contents.decided))
            contents.questions, contents.decided = {}, OrderedDict()
            contents.forget()
        self._works.add(self._drop(self._given))
        self._given = {}
        self._lost.clear()
        super()._stop()

    def _refuse(self, left: Iterator[Poll[Checked] | None]) -> Iterator[None]:
        """Answer the waiting CHECK_HALVES requests `left` with the error NotLeader. Yield at the end of each slice, so
        that the reactor can do other work.
        """
        for poll in left:
            if poll is not None:
                poll.answer.errback(NotLeader(self.writing.partitions.broker_id, ""))
            if self._works.is_over:
                yield

    def _drop(self, *known: dict[Any, Any]) -> Iterator[None]:
        """Empty these dictionaries, which can be very large. Yield at the end of each slice, so that the reactor can do
        other work.
        """
        for each in known:
            while each:
                each.popitem()
                if self._works.is_over:
                    yield

    # --- what is shown ------------------------------------------------------------------------------------------------

    def lines(self) -> Lines:
        for state, count in self.states().items():
            yield f"{state.value} {count}"
        yield f"bytes {self.live_bytes}"
        yield f"committed {self.committed}"
        yield f"rolled_back {self.rolled_back}"
        yield f"questions {self.questions}"
        yield f"damaged {self.damaged}"
        for name, figures in (yield from self.largest(tuning.STATS_NAMED)).items():
            yield f"group:{name} asked {figures.asked} parked {figures.parked} askers {figures.askers}"

    def metrics(self) -> Metrics:
        text = "Half messages: waiting for their producer, asked for, or parked until an operator decides"
        states = sorted((state.value, count) for state, count in self.states().items())
        yield gauges("metaq_halves", text, "state", states)
        figures = (yield from self.largest(tuning.PAGE_GROUPS)).items()
        for state in ("asked", "parked"):
            counts = ((name, getattr(each, state)) for name, each in figures)
            yield gauges(f"metaq_halves_{state}", f"Half messages that are {state}", "group", counts)
        askers = ((name, each.askers) for name, each in figures)
        yield gauges("metaq_halves_askers", "Producers that wait for questions", "group", askers)
        yield counter("metaq_halves_committed", "Half messages committed", self.committed)
        yield counter("metaq_halves_rolled_back", "Half messages rolled back", self.rolled_back)
        yield counter("metaq_halves_questions", "Questions for a half message", self.questions)

    # --- what is asked ------------------------------------------------------------------------------------------------

    def figures(self, most: int) -> dict[str, HalfFigures]:
        """Return the HalfFigures of at most `most` producer groups, by group name. If there are more groups, return
        those that the broker has known longest.
        """
        return {name: _figures(group) for name, group in self._groups.first(most)}

    def largest(self, most: int) -> Generator[None, None, dict[str, HalfFigures]]:
        """Return the HalfFigures of the producer groups with the largest numbers of half messages (at most `most`
        groups), sorted by group name. The key OTHERS has the sums over all other groups. Other requests may be served
        at each `yield`.
        """
        largest: list[tuple[str, HalfFigures]] = []
        others = HalfFigures(0, 0, 0)
        for groups in self._groups.slices(tuning.HALVES_COUNTED):
            largest += [(name, _figures(group)) for name, group in groups]
            largest.sort(key=_waiting, reverse=True)
            for _, figures in largest[most:]:
                others = HalfFigures(*map(add, others, figures))
            del largest[most:]
            yield
        return dict(sorted(largest)) | ({OTHERS: others} if any(others) else {})

    def states(self) -> Counter[HalfState]:
        """Return the number of half messages in each state."""
        asked, parked = self._groups.asked, self._groups.parked
        counts = Counter({HalfState.ASKED: asked, HalfState.PARKED: parked})
        counts[HalfState.WAITING] = len(self) - asked - parked
        return counts

    def state(self, half_id: int) -> tuple[HalfState, Half | None]:
        """Return the state of a waiting half message and its Half object; the second value is None if the message's
        first check is not due yet.
        """
        half = self._groups.get(half_id)
        if half is None:
            return HalfState.WAITING, None
        return HalfState.PARKED if self._groups.is_parked(half) else HalfState.ASKED, half

    def next_check_ms(self, half: Half) -> int | None:
        """Return the earliest time (Unix ms) of the next question to a producer about this half message, or None if the
        half message is parked, so that there are no further questions.
        """
        return None if half.at == NEVER else int(self.now_ms() + (half.at - self._running()) * 1000)
