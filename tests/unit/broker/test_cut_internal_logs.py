"""A node that follows while the end of an internal log is being cut off: its files have less than its index says."""

import pytest

from metaq.broker.memory.topics import DELAYED_TOPIC, HALVES_TOPIC, SEQUENCES_TOPIC, SHARED_TOPIC
from metaq.protocol.delays import due_ms
from tests.unit.broker import test_delays, test_halves, test_sequences
from tests.unit.broker.harness import put
from tests.unit.broker.shared.test_shared_groups import acquire

ALICE = 1


def delayed(number):
    return test_delays.send("t", 0, b"a", delay=60_000 + number)


def memory_of(harness, topic):
    """What reads the topic's logs on."""
    broker = harness.broker
    return {
        DELAYED_TOPIC: broker.delays,
        HALVES_TOPIC: broker.halves,
        SEQUENCES_TOPIC: broker.sequences,
        SHARED_TOPIC: broker.shared,
    }[topic]


REQUESTS = {
    DELAYED_TOPIC: delayed,
    HALVES_TOPIC: lambda number: test_halves.send(b"a%d" % number),
    SEQUENCES_TOPIC: lambda number: test_sequences.send("t", 0, b"a", ALICE, 1 + number),
    SHARED_TOPIC: lambda number: acquire(f"m{number}", 1),
}


def written(harness, topic, count=3):
    """The log, and where it ended behind each request."""
    peer = harness.connect()
    for _ in range(count):
        peer.ask(put("t", 0))
    ends = []
    for number in range(count):
        peer.send(REQUESTS[topic](number))
        harness.turn()
        harness.threads.run()
        ends.append(harness.store.internal_logs(topic)[0].end_offset)
    (log,) = harness.store.internal_logs(topic)
    return log, ends


def cut_files(harness):
    """Until a worker has changed the files, and the store does not know yet; returns what tells it."""
    while True:
        harness.store.tick()
        for function, done in list(harness.threads.waiting):
            if getattr(function, "func", None) == harness.store._cutting._work:
                harness.threads.waiting.remove((function, done))
                result = function()
                return lambda: done(result)
        harness.threads.run()


@pytest.mark.parametrize("topic", REQUESTS)
@pytest.mark.parametrize("anew", [False, True])
def test_what_follows_reads_nothing_of_a_log_until_its_end_is_cut_off(harness, topic, anew):
    log, ends = written(harness, topic)
    memory = memory_of(harness, topic)
    memory.follow()
    done = []
    if anew:
        harness.store.begin_anew({log: log.end_offset + 512}, lambda kept, error: done.append(error))
    else:
        harness.store.cut({log: ends[0]}, lambda kept, error: done.append(error))
    tell = cut_files(harness)
    memory.tick()
    assert done == []
    tell()
    assert done == [None]
    memory.tick()


def test_delayed_messages_behind_the_cut_do_not_wait_any_more(harness):
    log, ends = written(harness, DELAYED_TOPIC)
    delays = harness.broker.delays
    delays.follow()
    delays.tick()
    harness.store.cut({log: ends[0]}, lambda kept, error: None)
    tell = cut_files(harness)
    delays.tick()
    tell()
    delays.lead()
    ((ids, _),) = [table.after(0, 9) for contents in delays.contents() for table in contents.tables()]
    assert [due_ms(each) - int(harness.time * 1000) for each in ids.tolist()] == [60_000]
