"""Consuming by a handler: retries, rejects, hand-overs and stopping, against a broker in memory."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metaq.client.consumer.listener import Handling, Listener, accepting
from metaq.client.consumer.self_checks import PollWatch
from metaq.client.consumer.works import RetryLater
from metaq.client.fetching.core import ConsumerCore
from metaq.client.fetching.fetcher import Fetcher
from metaq.client.fetching.notices import Notice
from metaq.client.runtime.timers import Timers
from metaq.client.settings.consumer_config import ConsumerConfig
from metaq.client.transport.pool import ConnectionPool
from metaq.protocol.errors import AccessRefused, CorruptRecord
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import ResponseCode
from tests.raising import raising
from tests.waiting import DEADLINE, eventually

TOPICS = {"t": 2}
FAST = ConsumerConfig(
    retry_step_seconds=0.002, retry_max_seconds=0.005, text_idle_step_ms=1, text_idle_max_ms=5, stop_seconds=5.0
)


class Running:
    """A listener on a thread of its own, over the partitions of one fake broker."""

    def __init__(
        self,
        broker,
        handler,
        batch=1,
        max_retries=2,
        reject=None,
        threads=1,
        accept=None,
        config=FAST,
        failed=None,
        suspects=None,
        choose=None,
    ):
        self.broker = broker
        self.rejected: list[tuple[bytes, str]] = []
        self.may_work = True
        self.damaged: list[CorruptRecord] = []
        self.told = []
        self.pool, self.timers = ConnectionPool(config.connection), Timers("fetch")
        self.core = ConsumerCore("g", replace(config, on_damaged=self.damaged.append))
        self.core.notices.on_assigned, self.core.notices.on_revoked = self.tell(True), self.tell(False)
        self.fetcher = Fetcher(self.core, self.pool, lambda _: broker.endpoint, self.timers)
        self.cursors = self.claim(broker.partitions, announced=True)
        self.poll_watch = PollWatch("g", "g_me", None)
        member: Any = SimpleNamespace(stepped_out=False, owned={})
        self.poll_watch.begin(member, self.timers)
        self.listener = Listener(
            Handling(
                accepting(handler, accept),
                batch,
                max_retries,
                reject or (lambda message, error: self.rejected.append((message.payload, str(error)))),
                threads,
                failed,
                None if suspects is None else suspects(self.core),
            ),
            self.core,
            self.fetcher,
            self.timers,
            self.poll_watch,
            lambda: self.may_work,
            choose,
        )
        self.error = None
        self.thread = threading.Thread(target=self.loop)

    def claim(self, partitions, announced=False):
        return list(self.core.claim(partitions, [0] * len(partitions), announced=announced))

    def tell(self, assigned):
        return lambda partitions: self.told.append((assigned, [str(each) for each in partitions]))

    def loop(self):
        try:
            self.listener.loop()
        except BaseException as error:
            self.error = error

    def until(self, condition):
        """Wait as a thread in poll() does."""

        def holds():
            self.fetcher.listen()
            found = condition()
            if not found:
                self.fetcher.wait(0.01)
            return found

        return eventually(holds)

    def await_workers(self):
        assert all(worker.join(DEADLINE) for worker in self.listener._workers)

    def stop(self):
        self.listener.stop()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()

    def __enter__(self):
        self.fetcher.serve_soon()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop()
        self.core.lose(self.core.owned.values())
        self.timers.close()
        self.pool.close()


def is_consumed(running, number=0, records=None):
    """Whether a partition's position to commit is behind all its records, or the first ones."""
    log = running.broker.log("t", number)
    end = log.end if records is None else log.starts[records]
    return running.cursors[number].consumed == (end, log.ids[(records or len(log.ids)) - 1])


class Held:
    """A handler that has begun when it is `inside`, and returns when it may go on."""

    def __init__(self):
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, messages):
        self.inside.set()
        assert self.go_on.wait(DEADLINE)


@pytest.fixture
def held():
    handler = Held()
    yield handler
    handler.go_on.set()


class Handler:
    """Notes the payloads it gets and fails as told. `failures`: payload -> how many times still."""

    def __init__(self, failures=None):
        self.seen, self.processed, self.failures = [], [], dict(failures or {})

    def __call__(self, messages):
        payloads = [message.payload for message in messages]
        self.seen += payloads
        for payload in payloads:
            if self.failures.get(payload, 0) > 0:
                self.failures[payload] -= 1
                raise ValueError(f"cannot take {payload!r}")
        self.processed += payloads


def test_each_message_is_processed_in_order_and_then_counts_as_consumed(broker):
    handler = Handler()
    broker.append("t", 0, *(b"%d" % number for number in range(1200)))
    with Running(broker, handler) as running:
        eventually(lambda: len(handler.processed) == 1200)
        eventually(lambda: is_consumed(running))
        assert handler.processed == [b"%d" % number for number in range(1200)]
        broker.append("t", 0, b"later")
        eventually(lambda: is_consumed(running))


def test_a_refusal_of_a_broker_ends_the_run(broker):
    handler = Handler()
    broker.refuse = lambda request: ResponseCode.ACCESS_REFUSED if isinstance(request, Frame) else None
    with Running(broker, handler) as running:
        running.thread.join(DEADLINE)
        assert not running.thread.is_alive()
    assert isinstance(running.error, AccessRefused)
    assert handler.seen == []


def test_a_handler_that_outlives_its_run_keeps_no_member_idle(broker, held):
    """What it has in work comes again: the next poll() or run() decides whether somebody is there."""
    broker.append("t", 0, b"1")
    running = Running(broker, held, config=replace(FAST, stop_seconds=0.01))
    with running:
        assert held.inside.wait(DEADLINE)
        assert running.poll_watch._working
    assert not running.poll_watch._working
    held.go_on.set()
    running.await_workers()
    assert not running.poll_watch._working


def test_a_failing_message_is_tried_again_while_other_partitions_go_on(broker):
    handler = Handler({b"bad": 3})
    broker.append("t", 0, b"before", b"bad", b"after")
    broker.append("t", 1, b"other")
    with Running(broker, handler, max_retries=5) as running:
        eventually(lambda: len(handler.processed) == 4)
        assert [payload for payload in handler.seen if payload != b"other"] == [b"before", *[b"bad"] * 4, b"after"]
        assert running.rejected == []


def test_a_message_that_keeps_failing_is_rejected_after_its_retries_and_only_then_passed(broker):
    handler = Handler({b"bad": 99})
    broker.append("t", 0, b"bad", b"after")
    with Running(broker, handler, max_retries=2) as running:
        eventually(lambda: handler.processed == [b"after"])
        assert handler.seen == [b"bad"] * 3 + [b"after"]
        assert running.rejected == [(b"bad", "cannot take b'bad'")]
        eventually(lambda: is_consumed(running))


def test_a_message_in_front_of_a_failing_one_counts_and_the_failing_one_does_not(broker):
    handler = Handler({b"bad": 10**6})
    broker.append("t", 0, b"good", b"bad")
    with Running(broker, handler, max_retries=None) as running:
        eventually(lambda: handler.seen.count(b"bad") > 8)
        assert is_consumed(running, records=1)
        assert running.rejected == []


def test_what_cannot_be_put_aside_is_not_skipped(broker):
    handler, full = Handler({b"bad": 99}), [OSError("disk full")] * 3
    kept = []

    def reject(message, error):
        if full:
            raise full.pop()
        kept.append(message.payload)

    broker.append("t", 0, b"bad", b"after")
    with Running(broker, handler, max_retries=0, reject=reject):
        eventually(lambda: handler.processed == [b"after"])
        assert handler.seen == [b"bad"] * 4 + [b"after"]
        assert kept == [b"bad"]


def test_a_handler_may_ask_for_the_message_again_without_a_complaint(broker, caplog):
    calls = []

    def handler(messages):
        calls.append(messages[0].payload)
        if len(calls) < 3:
            raise RetryLater

    broker.append("t", 0, b"x")
    with Running(broker, handler, max_retries=5):
        eventually(lambda: len(calls) == 3)
    assert "failed" not in caplog.text


def test_a_batch_that_keeps_failing_is_given_message_by_message(broker):
    handler = Handler({b"bad": 99})
    broker.append("t", 0, b"1", b"2", b"bad", b"3", b"4")
    with Running(broker, handler, batch=10, max_retries=1) as running:
        eventually(lambda: handler.processed == [b"1", b"2", b"3", b"4"])
        assert running.rejected == [(b"bad", "cannot take b'bad'")]


def test_what_the_filter_refuses_is_passed_over_and_what_it_raises_is_a_failure(broker):
    handler = Handler()

    def accept(message):
        if message.payload == b"odd":
            raise KeyError("header")
        return message.payload != b"no"

    broker.append("t", 0, b"no", b"yes", b"odd", b"no")
    with Running(broker, handler, accept=accept) as running:
        eventually(lambda: is_consumed(running))
        assert handler.processed == [b"yes"]
        assert running.rejected == [(b"odd", "'header'")]


def test_partitions_are_worked_on_side_by_side_but_each_by_one_thread(broker):
    meeting, busy, overlaps = threading.Barrier(2, timeout=DEADLINE), set(), []

    def handler(messages):
        where = messages[0].partition
        overlaps.append(where in busy)
        busy.add(where)
        if messages[0].payload == b"0":
            meeting.wait()  # only passes if both partitions are in a handler at once
        busy.discard(where)

    for number in range(2):
        broker.append("t", number, *(b"%d" % each for each in range(50)))
    with Running(broker, handler, threads=4):
        eventually(lambda: len(overlaps) == 100)
    assert not any(overlaps)


def test_a_partition_is_handed_over_once_its_handler_has_returned_and_no_earlier(broker, held):
    broker.append("t", 0, b"1", b"2")
    handed_over = threading.Event()
    with Running(broker, held) as running:
        assert held.inside.wait(DEADLINE)
        state = running.cursors[0]
        state.revoke()
        assert running.core.is_out([state])
        running.core.notices.put(Notice(False, [state.partition], lambda _: handed_over.set()))
        running.fetcher.wake()
        assert not handed_over.wait(0.05)
        held.go_on.set()
        assert handed_over.wait(DEADLINE)
        assert is_consumed(running, records=1)  # the one in work counts, the next is not begun
        assert state.position == 21
        assert running.told == [(False, ["0-0"])]


def test_a_partition_lost_and_claimed_again_waits_for_its_former_handler_and_others_do_not(broker, held):
    """As when the session ends: the claim of now knows nothing of the handler that works for the one before."""
    seen = []

    def handler(messages):
        seen.append(messages[0].payload)
        if len(seen) == 1:
            held(messages)

    broker.append("t", 0, b"1", b"2")
    with Running(broker, handler, threads=2) as running:
        assert held.inside.wait(DEADLINE)
        running.core.lose([running.cursors[0]])
        (again,) = running.claim([broker.partitions[0]], announced=True)
        running.fetcher.serve_soon()
        eventually(lambda: again.buffered_bytes)
        broker.append("t", 1, b"other")
        eventually(lambda: b"other" in seen)  # the free worker would have taken what came before it
        meanwhile = list(seen)
        held.go_on.set()
        assert meanwhile == [b"1", b"other"]
        eventually(lambda: len(seen) == 4)
        assert seen == [b"1", b"other", b"1", b"2"]
        eventually(lambda: again.consumed == (broker.log("t", 0).end, broker.log("t", 0).ids[-1]))


def test_a_loss_is_told_while_a_handler_works_for_a_later_claim(broker, held):
    broker.append("t", 0, b"1")
    with Running(broker, held) as running:
        assert held.inside.wait(DEADLINE)
        partition = running.cursors[0].partition
        running.core.notices.put(Notice(False, [partition]))  # of an earlier claim, which did nothing
        running.core.notices.put(Notice(True, [partition]))
        running.fetcher.wake()
        eventually(lambda: running.told == [(False, ["0-0"]), (True, ["0-0"])])
        held.go_on.set()


def test_what_is_lost_and_claimed_again_is_told_before_its_next_message_and_waits_for_no_other_partition(broker, held):
    """One handler takes long. The other partition's user hears at once that it was lost and is there again."""
    seen = []

    def handler(messages):
        if messages[0].payload == b"slow":
            held(messages)
        else:
            seen.append((messages[0].payload, list(running.told)))

    broker.append("t", 0, b"slow")
    running = Running(broker, handler, threads=2)
    with running:
        assert held.inside.wait(DEADLINE)
        slow, quick = running.cursors[:2]
        broker.append("t", 1, b"quick")
        eventually(lambda: len(seen) == 1)
        partitions = [slow.partition, quick.partition]
        running.core.lose([slow, quick])
        running.core.notices.put(Notice(False, partitions))
        claims = running.claim(partitions)
        running.fetcher.serve_soon()
        eventually(lambda: all(claim.buffered_bytes for claim in claims))
        assert len(seen) == 1
        running.fetcher.wake()
        eventually(lambda: len(seen) == 2)
        assert seen[1] == (b"quick", [(False, ["0-1"]), (True, ["0-1"])])
        assert running.told == seen[1][1]
        held.go_on.set()
        eventually(lambda: len(running.told) == 4)
        assert running.told[2:] == [(False, ["0-0"]), (True, ["0-0"])]


def test_a_paused_partition_is_handed_over_at_once_and_its_message_comes_again_elsewhere(broker):
    handler = Handler({b"bad": 10**6})
    config = ConsumerConfig(retry_step_seconds=3600, retry_max_seconds=3600)
    broker.append("t", 0, b"good", b"bad")
    with Running(broker, handler, config=config) as running:
        state = running.cursors[0]
        eventually(lambda: handler.seen == [b"good", b"bad"] and not running.core.is_out([state]))
        assert is_consumed(running, records=1)
        assert state.position == 24


def test_a_seek_by_the_handler_is_followed(broker):
    seen = []
    offsets = broker.append("t", 0, b"0", b"1", b"2", b"3")

    def handler(messages):
        seen.append(messages[0].payload)
        if seen == [b"0"]:
            running.cursors[0].moved_to(offsets[2])
            running.fetcher.serve_soon()

    with Running(broker, handler) as running:
        eventually(lambda: seen == [b"0", b"2", b"3"])
        eventually(lambda: is_consumed(running))


def test_nothing_is_begun_while_another_may_own_the_partition(broker):
    handler = Handler()
    with Running(broker, handler) as running:
        running.may_work = False
        broker.append("t", 0, b"x")
        eventually(lambda: running.cursors[0].fetch_offset and not running.cursors[0].buffered_bytes)  # taken, and held
        assert handler.seen == []
        running.may_work = True
        eventually(lambda: handler.processed == [b"x"])


def test_a_damaged_record_stops_its_partition_only_and_is_read_once_it_is_whole(broker, caplog):
    handler = Handler()
    log = broker.log("t", 0)
    broker.append("t", 0, b"good", b"bad")
    log.data[-1] ^= 1
    with Running(broker, handler) as running:
        eventually(lambda: "the partition waits at damaged bytes" in caplog.text)
        broker.append("t", 1, b"other")
        eventually(lambda: handler.processed == [b"good", b"other"])
        log.data[-1] ^= 1
        eventually(lambda: handler.processed == [b"good", b"other", b"bad"])
    assert caplog.text.count("the partition waits") == 1
    assert [(each.position, each.end) for each in running.damaged] == [(24, 47)]


def test_damage_is_skipped_if_that_is_wanted_and_counts_as_consumed(broker, caplog):
    handler = Handler()
    broker.append("t", 0, b"good", b"bad", b"after")
    broker.log("t", 0).data[46] ^= 1
    with Running(broker, handler, config=replace(FAST, damage="skip")) as running:
        eventually(lambda: handler.processed == [b"good", b"after"])
        broker.append_damaged("t", 0, b"last")
        eventually(lambda: running.cursors[0].consumed[0] == broker.log("t", 0).end)
    assert [(each.position, each.end) for each in running.damaged] == [(24, 47), (72, 96)]
    assert caplog.text.count("passed over") == 2


def test_stopping_waits_for_the_handler_and_what_was_not_begun_comes_with_the_next_run(broker, held):
    broker.append("t", 0, b"1", b"2")
    with Running(broker, held) as running:
        assert held.inside.wait(DEADLINE)
        running.listener.stop()
        held.go_on.set()
        running.stop()
        assert is_consumed(running, records=1)
        eventually(lambda: running.cursors[0].buffered_bytes)
        assert [message.payload for message in running.core.take(10)] == [b"2"]


def test_stopping_is_bounded_when_a_handler_hangs_and_its_message_does_not_count(broker, held, caplog):
    broker.append("t", 0, b"1")
    with Running(broker, held, config=ConsumerConfig(stop_seconds=0.02)) as running:
        assert held.inside.wait(DEADLINE)
        running.stop()
        assert "has not returned within stop_seconds=0.02" in caplog.text
        held.go_on.set()
        running.await_workers()
        assert running.cursors[0].consumed is None


def test_what_was_taken_comes_again_when_an_interrupt_ends_the_waiting_for_handlers(broker, held):
    broker.append("t", 0, b"1", b"2", b"3")
    with Running(broker, held) as running:
        assert held.inside.wait(DEADLINE)
        state = running.cursors[0]
        assert state.next_chunk() is None  # all of it is with the worker
        running.listener._stop_workers = raising(KeyboardInterrupt)
        running.stop()
        assert isinstance(running.error, KeyboardInterrupt)
        eventually(state.next_chunk, what="the same messages")
        assert (state.next_chunk().offset, state.position) == (0, 0)
        held.go_on.set()
        running.listener.wait(DEADLINE)
        running.await_workers()
        assert state.consumed is None


def test_a_worker_that_comes_to_its_partition_when_its_run_is_over_takes_nothing_of_it(broker, held):
    handler = Handler()
    broker.append("t", 0, b"1", b"2")
    with Running(broker, handler) as running:
        state = running.cursors[0]
        hold = state.hold

        def late():
            taken = hold()
            held([])
            return taken

        state.hold = late
        eventually(state.next_chunk)
        assert held.inside.wait(DEADLINE)
        running.listener.give_back()  # as behind a run() that an interrupt has ended
        state.hold = hold
        eventually(state.next_chunk, what="the same messages")
        held.go_on.set()
        running.await_workers()
        assert [message.payload for message in running.core.take(10)] == [b"1", b"2"]
        assert handler.seen == []


def test_a_move_between_two_steps_of_a_worker_loses_nothing(broker):
    def moving():
        if not moved and next_chunk() and threading.current_thread().name.startswith("metaq-handler"):
            moved.append(True)
            cursor.moved_to(0)
            running.fetcher.serve_soon()
            eventually(next_chunk)
        return next_chunk()

    moved: list[bool] = []
    handler = Handler()
    broker.append("t", 0, b"1", b"2")
    running = Running(broker, handler)
    cursor = running.cursors[0]
    next_chunk, cursor.next_chunk = cursor.next_chunk, moving
    with running:
        eventually(lambda: handler.seen == [b"1", b"2"])
    assert moved


def test_an_exit_in_a_handler_ends_the_run_with_it(broker):
    broker.append("t", 0, b"1")
    with Running(broker, raising(SystemExit(3))) as running:
        running.thread.join(DEADLINE)
        assert isinstance(running.error, SystemExit)
        assert running.cursors[0].consumed is None


def test_other_work_is_done_by_the_workers(broker):
    done: list[bool] = []
    with Running(broker, Handler()) as running:
        running.listener.add_work(lambda: done.append(running.listener.is_worker()))
        eventually(lambda: done)
        assert done == [True]
        assert not running.listener.is_worker()
