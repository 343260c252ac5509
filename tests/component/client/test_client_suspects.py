"""run(retry=…) behind a death: which message may have ended a process, and what becomes of it."""

import threading
from contextlib import contextmanager

from metaq import Retry
from metaq.client.consumer.offset_commit import OffsetCommitter
from metaq.client.consumer.suspects import Suspects
from metaq.client.fetching.tuning import SUSPECT_MESSAGES
from metaq.coordination.offsets.offset_store import OffsetStore
from metaq.coordination.records.payloads import Begun
from metaq.protocol.errors import CoordinationUnavailable
from tests.component.client.test_client_listener import Handler
from tests.component.client.test_client_listener_retries import Sender, failed, running
from tests.waiting import eventually

TOPICS = {"t": 1, "%RETRY%g": 1}
HERE, RETRIES = ("t", "0-0"), ("%RETRY%g", "0-0")


class Marks:
    """As BegunMarks, in memory. log: every write."""

    def __init__(self, found=None):
        self.there = {} if found is None else {HERE: found}
        self.log, self.failures = [], []

    def load(self, partitions):
        return [self.there.get(each) for each in partitions]

    def make(self, partitions, fence):
        self.log.append(sorted(partitions))
        self.there |= dict.fromkeys(partitions, Begun())

    def write(self, partition, begun, fence):
        if self.failures:
            raise self.failures.pop()
        self.log.append((partition, begun))
        self.there[partition] = begun

    def remove(self, partitions):
        for each in partitions:
            del self.there[each]


class Store(OffsetStore):
    """commits: the offsets of `t`, in order."""

    def __init__(self):
        self.commits = []

    def load_many(self, group, partitions):
        return [None for _ in partitions]

    def commit(self, group, offsets, fence):
        self.commits += [each.offset for name, each in offsets.items() if name == HERE]


@contextmanager
def careful(broker, marks, handler, sender=None, retry=None, **arguments):
    """A listener that runs, and its store."""
    store = Store()
    made = running(
        broker,
        handler,
        sender or Sender(),
        retry,
        suspects=lambda core: Suspects(marks, OffsetCommitter(store, "g"), core),
        **arguments,
    )
    with made:
        yield made, store


def test_without_a_death_partitions_are_marked_in_one_write_and_messages_are_not(broker):
    broker.append("t", 0, *[b"%d" % each for each in range(20)])
    marks, handler = Marks(), Handler()
    with careful(broker, marks, handler) as (_, store):
        eventually(lambda: len(handler.processed) == 20)
    assert marks.log == [[RETRIES, HERE]]
    assert store.commits == []


def test_behind_a_death_each_message_is_written_down_before_it_is_begun_and_what_is_done_is_committed_before(broker):
    offsets = broker.append("t", 0, b"1", b"2", b"3")
    marks, seen = Marks(found=Begun()), []

    def handler(messages):
        seen.append((messages[0].offset, marks.there[HERE]))

    with careful(broker, marks, handler, batch=10) as (_, store):
        eventually(lambda: len(seen) == 3)
    assert seen == [(each, Begun(each, 1)) for each in offsets]
    assert store.commits == offsets[1:]


def test_the_messages_behind_the_first_ones_are_committed_in_growing_steps_and_not_written_down(broker):
    offsets = broker.append("t", 0, *[b"%d" % each for each in range(6 * SUSPECT_MESSAGES)])
    marks, handler = Marks(found=Begun()), Handler()
    with careful(broker, marks, handler) as (_, store):
        eventually(lambda: len(handler.processed) == len(offsets))
    assert len(marks.log) == 1 + SUSPECT_MESSAGES  # and the mark of the retries
    assert store.commits[SUSPECT_MESSAGES - 1 :] == [offsets[SUSPECT_MESSAGES], offsets[3 * SUSPECT_MESSAGES]]


def test_a_message_at_which_an_owner_died_alone_has_failed_and_does_not_come_to_the_handler(broker):
    first, _ = broker.append("t", 0, b"kills", b"2")
    marks, handler, sender = Marks(found=Begun(first, 1)), Handler(), Sender()
    with careful(broker, marks, handler, sender):
        eventually(lambda: handler.processed == [b"2"])
    assert handler.seen == [b"2"]
    assert sender.failures == [("%RETRY%g", 1)]
    assert failed(sender.sent[0][1]).cause.startswith("metaq.client.consumer.suspects.WorkerDied: 1 processes ended")


def test_after_its_last_attempt_it_is_a_dead_letter(broker):
    first, _ = broker.append("t", 0, b"kills", b"2")
    handler, sender = Handler(), Sender()
    with careful(broker, Marks(found=Begun(first, 1)), handler, sender, Retry(attempts=1)):
        eventually(lambda: handler.processed == [b"2"])
    assert sender.failures == [("%DEAD%g", 1)]


def test_in_order_it_is_begun_again_and_the_deaths_are_counted(broker):
    first, _ = broker.append("t", 0, b"kills", b"2")
    marks, attempts = Marks(found=Begun(first, 1)), list[tuple[int, Begun]]()
    retry = Retry(attempts=3, first=0.001, most=0.001, ordered=True)

    def handler(messages):
        attempts.extend((each.attempts, marks.there[HERE]) for each in messages)

    with careful(broker, marks, handler, None, retry):
        eventually(lambda: len(attempts) == 2)
    assert attempts[0] == (2, Begun(first, 2))


def test_beside_others_a_death_names_a_message_and_does_not_count_until_it_is_handled_alone(broker):
    first, second = broker.append("t", 0, b"1", b"2")
    marks, at_once, seen = Marks(found=Begun(first, 0)), [], {}
    inside, begun, gate = [], threading.Event(), threading.Event()

    def handler(messages):
        inside.append(messages[0].payload)
        at_once.append(list(inside))
        seen[messages[0].payload] = marks.there[HERE]
        if messages[0].payload == b"other":
            begun.set()
            gate.wait(10)
        inside.remove(messages[0].payload)

    broker.append("%RETRY%g", 0, b"other")
    with careful(broker, marks, handler, threads=2):
        begun.wait(10)
        gate.set()
        eventually(lambda: len(seen) == 3)
    assert [b"1"] in at_once  # alone
    assert (seen[b"1"], seen[b"2"]) == (Begun(first, 1), Begun(second, 0))


def test_what_cannot_be_written_down_is_not_begun(broker, caplog):
    broker.append("t", 0, b"1")
    marks, handler = Marks(found=Begun()), Handler()
    marks.failures = [CoordinationUnavailable("no answer")] * 3
    with careful(broker, marks, handler):
        eventually(lambda: handler.processed == [b"1"])
    assert handler.seen == [b"1"]
    assert caplog.text.count("waits until ZooKeeper stores which messages it begins") == 1


def test_the_mark_of_a_partition_that_is_given_up_is_removed(broker):
    broker.append("t", 0, b"1")
    marks, handler = Marks(), Handler()
    with careful(broker, marks, handler) as (made, _):
        eventually(lambda: handler.processed)
        suspects = made.listener._handling.suspects
        assert suspects is not None
        assert marks.there.keys() == {HERE, RETRIES}
        made.core.lose(made.cursors)
        suspects.left(made.cursors)
    assert marks.there == {}
