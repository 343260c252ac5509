"""Each checker of failovers finds what it is there for in a history that was doctored, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from metaq.protocol.record import HEADER_BYTES, encode_record
from tests.failovers.checkers import CHECKERS, GROUP_CHECKERS, judge
from tests.failovers.facts import Failover, Failovers, Got, Lead, Put, Sent, Transaction
from tests.failovers.reading import leads_in, stored_in
from tests.failovers.report import pauses
from tests.history.facts import Ack, Call, Commit, History, Name, Owner, Place, Stored

MEMORY, DISK, ASKED = "memory 0-0", "disk 0-0", "asked 0-0"


def log_of(*messages: tuple[int, str]) -> bytes:
    """The bytes of a partition with these messages: id and name."""
    return b"".join(encode_record(f"{name} xxx".encode(), message_id, 0) for message_id, name in messages)


def sent(record: Stored, at: float) -> Sent:
    return Sent(at - 0.1, at, Ack(record.name, record.partition, record.offset, record.id))


def good() -> Failovers:
    """Node 0a leads epoch 1 and dies at 10; node 0b leads epoch 2 from 11 on."""
    logs = {
        MEMORY: log_of((1, "keyed/k/1"), (3, "keyed/k/2"), (5, "transaction/-/1")),
        DISK: log_of((2, "fixed/disk-0/1"), (6, "transaction/-/2")),
        ASKED: log_of((4, "probe0a/-/1"), (7, "probe0b/-/1")),
    }
    stored = stored_in(logs)
    second = len(log_of((4, "probe0a/-/1")))
    history = Failovers(
        groups=History(stored=stored, groups=["g"]),
        sent=[sent(stored[MEMORY][0], 5.0), sent(stored[DISK][0], 6.0), sent(stored[MEMORY][1], 12.0)],
        transactions=[
            Transaction(12.0, 13.0, "commit", [Name("transaction", "-", 1), Name("transaction", "-", 2)]),
            Transaction(13.0, 14.0, "rollback", [Name("transaction", "-", 3)]),
            Transaction(14.0, 15.0, "doubt", [Name("transaction", "-", 4), Name("transaction", "-", 5)]),
        ],
        puts=[
            Put(7.0, 7.1, "0a", "asked", 1, 200, 4, 0),
            Put(7.2, 7.3, "0a", "told", 2, 200, 8, 0),
            Put(12.0, 12.1, "0b", "asked", 1, 200, 7, second),
            Put(12.2, 12.3, "0a", "asked", 3, 503, 0, 0),
        ],
        gets=[Got(9.0, "0a", MEMORY, 0, 20, crc32(logs[MEMORY][:20]))],
        leads=[Lead(1.0, "0a", 1), Lead(11.0, "0b", 2)],
        faults=[Failover(10.0, 11.0, 12.0, 13.0, "kill", True, 0, "0a", "", 1, 2)],
        logs=logs,
        files={0: {"a": {"memory-0/0.meta": "x"}, "b": {"memory-0/0.meta": "x"}}},
        starts={0: [(1, {}), (2, {"asked-0": second, "memory-0": 30})]},
    )
    history.groups.acks = [each.ack for each in history.sent]
    for partition, records in stored.items():
        places = [Place(record.offset, record.id, record.name) for record in records]
        history.groups.owners.append(Owner("g", "m", partition, 1.0, calls=[Call(20.0, 20.0, places)]))
        history.groups.commits.append(Commit("g", partition, records[-1].end, len(history.groups.commits), 21.0))
    return history


def kinds(history: Failovers) -> set[str]:
    return {problem.kind for problem in judge(history)}


def test_nothing_is_found_in_a_good_history() -> None:
    history = good()
    assert judge(history) == []
    assert sum(map(len, history.groups.stored.values())) == 5


def lose_an_acknowledged_message(history: Failovers) -> None:
    history.groups.stored[DISK].pop(0)


def move_an_acknowledged_message(history: Failovers) -> None:
    ack = history.groups.acks[0]
    history.groups.acks[0] = ack._replace(offset=ack.offset + 1)


def lose_what_the_prober_was_promised(history: Failovers) -> None:
    history.puts[0] = history.puts[0]._replace(id=99)


def lose_the_end_of_what_the_prober_was_promised(history: Failovers) -> None:
    history.logs = {**history.logs, ASKED: b""}


def store_twice(history: Failovers) -> None:
    record = history.groups.stored[MEMORY][0]
    again = record._replace(partition="memory 1-0", id=77)
    history.groups.stored["memory 1-0"] = [again]


def reorder_a_key(history: Failovers) -> None:
    first, second, *rest = history.groups.stored[MEMORY]
    history.groups.stored[MEMORY] = [first._replace(name=second.name), second._replace(name=first.name), *rest]


def tear_a_commit(history: Failovers) -> None:
    history.groups.stored[DISK].pop()


def keep_a_rollback(history: Failovers) -> None:
    history.transactions[1] = history.transactions[1]._replace(names=[Name("transaction", "-", 1)])


def tear_a_doubt(history: Failovers) -> None:
    names = [Name("transaction", "-", 1), Name("transaction", "-", 5)]
    history.transactions[2] = history.transactions[2]._replace(names=names)


def change_what_was_read(history: Failovers) -> None:
    history.gets[0] = history.gets[0]._replace(checksum=1)


def cut_what_was_read(history: Failovers) -> None:
    size = len(history.logs[MEMORY])
    history.gets.append(Got(9.5, "0a", MEMORY, size - 4, 8, 0))


def change_what_a_group_was_handed(history: Failovers) -> None:
    call = history.groups.owners[0].calls[0]
    call.places = [place._replace(id=place.id + 100) for place in call.places]


def hand_nothing_to_the_group(history: Failovers) -> None:
    history.groups.owners.pop()


def let_two_nodes_lead_an_epoch(history: Failovers) -> None:
    history.leads.append(Lead(11.5, "0a", 2))


def acknowledge_in_the_epoch_of_another_node(history: Failovers) -> None:
    history.starts = {0: [(1, {}), (2, {"asked-0": 0})]}


def acknowledge_after_a_newer_epoch(history: Failovers) -> None:
    history.puts.append(Put(12.2, 12.3, "0a", "told", 5, 200, 9, 50))


def acknowledge_without_leading(history: Failovers) -> None:
    history.puts.append(Put(12.2, 12.3, "0c", "told", 5, 200, 9, 50))


def let_a_file_differ(history: Failovers) -> None:
    history.files = {0: {**history.files[0], "b": {"memory-0/0.meta": "y"}}}


def let_a_file_be_missing(history: Failovers) -> None:
    history.files = {0: {**history.files[0], "b": {}}}


DOCTORED: dict[Callable[[Failovers], None], str] = {
    lose_an_acknowledged_message: "lost",
    move_an_acknowledged_message: "lost",
    lose_what_the_prober_was_promised: "lost",
    lose_the_end_of_what_the_prober_was_promised: "lost",
    store_twice: "twice",
    reorder_a_key: "reordered",
    tear_a_commit: "torn",
    keep_a_rollback: "torn",
    tear_a_doubt: "torn",
    change_what_was_read: "vanished",
    cut_what_was_read: "vanished",
    change_what_a_group_was_handed: "false",
    hand_nothing_to_the_group: "unseen",
    let_two_nodes_lead_an_epoch: "two-leaders",
    acknowledge_in_the_epoch_of_another_node: "two-leaders",
    acknowledge_after_a_newer_epoch: "stale",
    acknowledge_without_leading: "stale",
    let_a_file_differ: "differ",
    let_a_file_be_missing: "differ",
}


@pytest.mark.parametrize("doctor", DOCTORED, ids=lambda doctor: doctor.__name__)
def test_what_is_wrong_is_found(doctor: Callable[[Failovers], None]) -> None:
    history = good()
    doctor(history)
    assert DOCTORED[doctor] in kinds(history)


def test_every_checker_has_a_history_that_it_rejects() -> None:
    assert set(CHECKERS) <= set(DOCTORED.values())
    assert set(CHECKERS) & set(GROUP_CHECKERS) == {"lost"}


def test_an_old_leader_may_answer_late_what_was_sent_before_the_newer_one_acknowledged() -> None:
    history = good()
    history.puts.append(Put(9.9, 12.5, "0a", "told", 5, 200, 9, 50))
    assert kinds(history) == set()


def test_a_message_whose_acknowledgement_promises_nothing_may_be_lost() -> None:
    history = good()
    history.sent.append(Sent(8.0, 8.1, Ack(Name("loose", "-", 1), "loose 0-0", 0, 9)))
    assert kinds(history) == set()


def test_a_pause_is_the_longest_time_without_an_acknowledgement_of_the_set() -> None:
    history = good()
    elsewhere = history.sent[0].ack._replace(partition="memory 1-0")
    history.sent.append(Sent(9.0, 9.1, elsewhere))
    assert pauses(history) == [(history.faults[0], 6.0)]
    history.faults[0] = history.faults[0]._replace(begin=5.5)
    assert pauses(history) == [(history.faults[0], 6.0)]


def test_elections_are_read_from_the_log_of_a_node() -> None:
    text = "2026-11-23 17:00:00,250 WARNING metaq.broker.sets.node: leads epoch 3; in sync: a, b\nother\n"
    (lead,) = leads_in(text, "0a", 0.0)
    assert (lead.node, lead.epoch, round(lead.time % 1, 2)) == ("0a", 3, 0.25)


def test_messages_are_read_from_the_bytes_of_a_partition() -> None:
    found = stored_in({MEMORY: log_of((1, "keyed/k/1"), (2, "keyed/k/2")), ASKED: log_of((3, "probe0a/-/1"))})
    assert list(found) == [MEMORY]
    assert [(each.id, str(each.name)) for each in found[MEMORY]] == [(1, "keyed/k/1"), (2, "keyed/k/2")]
    assert found[MEMORY][0].end - HEADER_BYTES == len(b"keyed/k/1 xxx")
