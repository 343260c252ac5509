"""Each checker of failovers finds what it is there for in a history that was doctored, and nothing in a good one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from metaq.protocol.record import HEADER_BYTES, encode_record
from tests.failovers.checkers import CHECKERS, GROUP_CHECKERS, judge
from tests.failovers.facts import Failover, Failovers, Got, Lead, Put, Transaction
from tests.failovers.reading import leads_in
from tests.failovers.report import pauses
from tests.history.facts import Ack, Call, Commit, History, Name, Owner, Place, Send, Stored
from tests.history.reading import stored_in

MEMORY, DISK, ASKED = "memory 0-0", "disk 0-0", "asked 0-0"


def log_of(*messages: tuple[int, str]) -> bytes:
    """The bytes of a partition with these messages: id and name."""
    return b"".join(encode_record(f"{name} xxx".encode(), message_id, 0) for message_id, name in messages)


def sent(record: Stored, at: float) -> Send:
    return Send(at - 0.1, at, record.name, Ack(record.name, record.partition, record.offset, record.id))


def files(b: dict[str, str]) -> dict[int, dict[str, dict[str, str]]]:
    """What node b has beside a's one file."""
    return {0: {"a": {"memory-0/0.meta": "x"}, "b": b}}


def good() -> Failovers:
    """Node 0a leads epoch 1 and dies at 10; node 0b leads epoch 2 from 11 on."""
    logs = {
        MEMORY: log_of((1, "keyed/k/1"), (3, "keyed/k/2"), (5, "transaction/-/1")),
        DISK: log_of((2, "fixed/disk-0/1"), (6, "transaction/-/2")),
        ASKED: log_of((4, "probe0a/-/1"), (7, "probe0b/-/1")),
    }
    stored = stored_in(logs, ("memory", "disk"))
    second = len(log_of((4, "probe0a/-/1")))
    history = Failovers(
        groups=History(stored=stored, groups=["g"]),
        sends=[sent(stored[MEMORY][0], 5.0), sent(stored[DISK][0], 6.0), sent(stored[MEMORY][1], 12.0)],
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
        files=files(b={"memory-0/0.meta": "x"}),
        starts={0: [(1, {}), (2, {"asked-0": second, "memory-0": 30})]},
    )
    history.groups.acks = [each.ack for each in history.sends if each.ack]
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


def change(things: list[Any], index: int, **fields: object) -> None:
    things[index] = things[index]._replace(**fields)


def put(history: Failovers, **fields: object) -> None:
    for name, value in fields.items():
        setattr(history, name, value)


def store_twice(history: Failovers) -> None:
    history.groups.stored["memory 1-0"] = [history.groups.stored[MEMORY][0]._replace(partition="memory 1-0", id=77)]


def reorder_a_key(history: Failovers) -> None:
    first, second, *_ = records = history.groups.stored[MEMORY]
    records[:2] = [first._replace(name=second.name), second._replace(name=first.name)]


def change_what_a_group_was_handed(history: Failovers) -> None:
    call = history.groups.owners[0].calls[0]
    call.places = [place._replace(id=place.id + 100) for place in call.places]


def names(*numbers: int) -> list[Name]:
    return [Name("transaction", "-", number) for number in numbers]


def told(node: str) -> Put:
    """What a node acknowledges after the failover."""
    return Put(12.2, 12.3, node, "told", 5, 200, 9, 50)


DOCTORED: dict[str, tuple[str, Callable[[Failovers], object]]] = {
    "an acknowledged message is lost": ("lost", lambda it: it.groups.stored[DISK].pop(0)),
    "an acknowledged message is moved": ("lost", lambda it: change(it.groups.acks, 0, offset=1)),
    "what the prober was promised is lost": ("lost", lambda it: change(it.puts, 0, id=99)),
    "the end of what the prober was promised is lost": ("lost", lambda it: put(it, logs={**it.logs, ASKED: b""})),
    "a message is stored twice": ("twice", store_twice),
    "a key is reordered": ("reordered", reorder_a_key),
    "a commit is torn": ("torn", lambda it: it.groups.stored[DISK].pop()),
    "a rollback is kept": ("torn", lambda it: change(it.transactions, 1, names=names(1))),
    "a doubtful commit is torn": ("torn", lambda it: change(it.transactions, 2, names=names(1, 5))),
    "what was read changes": ("vanished", lambda it: change(it.gets, 0, checksum=1)),
    "what was read is cut": (
        "vanished",
        lambda it: it.gets.append(Got(9.5, "0a", MEMORY, len(it.logs[MEMORY]) - 4, 8, 0)),
    ),
    "what a group was handed changes": ("false", change_what_a_group_was_handed),
    "a group is handed nothing": ("unseen", lambda it: it.groups.owners.pop()),
    "two nodes lead an epoch": ("two-leaders", lambda it: it.leads.append(Lead(11.5, "0a", 2))),
    "a node acknowledges in the epoch of another one": (
        "two-leaders",
        lambda it: put(it, starts={0: [(1, {}), (2, {"asked-0": 0})]}),
    ),
    "a node acknowledges after a newer epoch": ("stale", lambda it: it.puts.append(told("0a"))),
    "a node acknowledges without leading": ("stale", lambda it: it.puts.append(told("0c"))),
    "a file differs": ("differ", lambda it: put(it, files=files(b={"memory-0/0.meta": "y"}))),
    "a file is missing": ("differ", lambda it: put(it, files=files(b={}))),
}


@pytest.mark.parametrize(("kind", "doctor"), DOCTORED.values(), ids=DOCTORED)
def test_what_is_wrong_is_found(kind: str, doctor: Callable[[Failovers], object]) -> None:
    history = good()
    doctor(history)
    assert kind in kinds(history)


def test_every_checker_has_a_history_that_it_rejects() -> None:
    assert set(CHECKERS) <= {kind for kind, _ in DOCTORED.values()}
    assert set(CHECKERS) & set(GROUP_CHECKERS) == {"lost"}


LOOSE = Ack(Name("loose", "-", 1), "loose 0-0", 0, 9)
FINE: dict[str, Callable[[Failovers], object]] = {
    "an old leader answers late what was sent before the newer one acknowledged": (
        lambda it: it.puts.append(told("0a")._replace(begun=9.9, time=12.5))
    ),
    "a message is lost whose acknowledgement promises nothing": lambda it: it.sends.append(
        Send(8.0, 8.1, LOOSE.name, LOOSE)
    ),
}


@pytest.mark.parametrize("doctor", FINE.values(), ids=FINE)
def test_what_is_allowed_is_not_found(doctor: Callable[[Failovers], object]) -> None:
    history = good()
    doctor(history)
    assert kinds(history) == set()


def test_a_pause_is_the_longest_time_without_an_acknowledgement_of_the_set() -> None:
    history = good()
    elsewhere = history.groups.stored[MEMORY][0]._replace(partition="memory 1-0")
    history.sends += [sent(elsewhere, 9.1), Send(9.0, 9.2, elsewhere.name, None, "refused")]
    assert pauses(history) == [(history.faults[0], 6.0)]
    history.faults[0] = history.faults[0]._replace(begin=5.5)
    assert pauses(history) == [(history.faults[0], 6.0)]


def test_elections_are_read_from_the_log_of_a_node() -> None:
    text = "2026-11-23 17:00:00,250 WARNING metaq.broker.sets.node: leads epoch 3; in sync: a, b\nother\n"
    (lead,) = leads_in(text, "0a", 0.0)
    assert (lead.node, lead.epoch, round(lead.time % 1, 2)) == ("0a", 3, 0.25)


def test_messages_are_read_from_the_bytes_of_a_partition() -> None:
    found = stored_in(
        {MEMORY: log_of((1, "keyed/k/1"), (2, "keyed/k/2")), ASKED: log_of((3, "probe0a/-/1"))}, ["memory"]
    )
    assert list(found) == [MEMORY]
    assert [(each.id, str(each.name)) for each in found[MEMORY]] == [(1, "keyed/k/1"), (2, "keyed/k/2")]
    assert found[MEMORY][0].end - HEADER_BYTES == len(b"keyed/k/1 xxx")
