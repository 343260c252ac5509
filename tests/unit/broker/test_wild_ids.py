"""Message ids stay positive, new and increasing, whatever ids lie in the store and whatever the clock says."""

import pytest

from metaq.broker.partitions.message_ids import MessageIds
from metaq.broker.store.batch import encode_puts
from metaq.protocol.message_id import counter_of, message_ids_from, store_time_ms
from metaq.protocol.record import checksum
from tests.unit.broker.harness import NOW, put

LAST_ID = (1 << 63) - 1
NOW_MS = int(NOW * 1000)


def store_record(log, record_id, body=b"foreign"):
    data, units = encode_puts([(0, checksum(body), body)], log.end_offset, (record_id,), NOW_MS)
    log.append(data, units)


def first_id(answer):
    assert answer.code == 200, answer
    return int(answer.text.split()[0])


@pytest.mark.parametrize("foreign", [LAST_ID, LAST_ID - 4096, 1 << 62, (1 << 63) - (1 << 22)])
def test_a_broker_starts_and_takes_puts_beside_a_foreign_id_near_the_end(lives, foreign):
    own = first_id(lives.peer.ask(put("t", 0)))
    store_record(lives.harness.store.get("t", 0), foreign)
    lives.restart()
    found = [first_id(lives.peer.ask(put("t", number % 2, opaque=number))) for number in range(3)]
    assert own < found[0] < found[1] < found[2]
    assert store_time_ms(found[2]) == NOW_MS


def test_a_foreign_id_does_not_hide_the_largest_own_one_of_its_log(lives):
    lives.harness.time = NOW + 3600
    own = first_id(lives.peer.ask(put("t", 0)))
    store_record(lives.harness.store.get("t", 0), LAST_ID)
    lives.restart()  # its clock is an hour behind
    assert first_id(lives.peer.ask(put("t", 1))) > own


@pytest.mark.parametrize(
    ("broker_id", "seconds", "time"),
    [
        pytest.param(0, NOW + 5 * 365 * 86400, NOW, id="of a clock that was some years ahead"),
        pytest.param(0, NOW, 0.0, id="of a clock that has lost its date since"),
        pytest.param(1023, NOW + 86400, NOW, id="of another broker"),
    ],
)
def test_ids_go_on_behind_those(broker_id, seconds, time):
    floor = MessageIds(broker_id, lambda: seconds).next()
    assert counter_of(MessageIds(0, lambda: time, floor).next()) > counter_of(floor)


@pytest.mark.parametrize("floor", [0, -5])
@pytest.mark.parametrize("time", [NOW, 0.0, -1e9, 1_303_895_660.0, 3.6e9, 1e11])
def test_ids_are_positive_and_increase_whatever_the_clock_says(time, floor):
    ids = MessageIds(1, lambda: time, floor)
    runs = [message_ids_from(ids.next(5000), 5000) for _ in range(3)]
    everything = [int(each) for run in runs for each in run]
    assert everything[0] > 0
    assert everything == sorted(set(everything))
    assert everything[-1] <= LAST_ID


def test_the_clock_may_come_back_from_beyond_the_last_id():
    time = 3.6e9
    ids = MessageIds(0, lambda: time)
    lost = ids.next()
    time = NOW
    assert store_time_ms(ids.next()) == NOW_MS
    assert lost > 0
