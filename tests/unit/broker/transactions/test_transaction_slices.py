"""What takes long of transactions is done in slices: others are served in between, and every order is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from metaq.protocol.text import TransactionType
from tests.raising import raising
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.test_slices import step, turns
from tests.unit.broker.transactions.conversation import XID, Asker, bodies, tx, tx_put

PARTITIONS = 9


def made(directory: Path) -> Harness:
    """A broker with a topic of so many partitions."""
    return Harness(directory, topics=f"[topic=many]\nnumPartitions={PARTITIONS}\n")


def started_again(directory: Path) -> Harness:
    """One that finds what this directory's has written so far, as after a kill."""
    shutil.copytree(directory / "data", directory / "again" / "data")
    return made(directory / "again")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return made(tmp_path)


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is one thing."""
    monkeypatch.setattr("metaq.broker.tuning.WORK_SLICE_SECONDS", 0.0)


BEGIN, ROLLBACK = TransactionType.BEGIN.name, TransactionType.ROLLBACK.name
PREPARE, COMMIT = TransactionType.PREPARE.name, TransactionType.COMMIT_ONE_PHASE.name


def test_the_transactions_of_a_lost_connection_count_until_they_are_rolled_back(harness: Harness) -> None:
    lost, other = Asker(harness), Asker(harness)
    for number in range(5):
        lost.ok(tx(f"TX:s:{number}", BEGIN))
    lost.peer.lose()
    account = harness.broker.account.transactions
    assert account.used == 4
    assert "another connection" in other.refused(tx("TX:s:0", BEGIN))
    turns(harness)
    assert account.used == 0
    other.ok(tx("TX:s:0", BEGIN))


def test_one_of_a_lost_connection_that_has_ended_meanwhile_is_left_alone(harness: Harness) -> None:
    lost = Asker(harness)
    for number in range(3):
        lost.ok(tx(f"TX:s:{number}", BEGIN))
    lost.peer.lose()
    harness.broker.transactions.complete("TX:s:0", "rollback")
    turns(harness)
    other = Asker(harness)
    other.ok(tx("TX:s:0", BEGIN))
    assert harness.broker.account.transactions.used == 1


# --- commits ----------------------------------------------------------------------------------------------------------


def begun(harness: Harness, key: str = "TX:s:0", words: str = "body") -> Asker:
    """A connection with a transaction that has a message for each partition of a topic."""
    asker = Asker(harness)
    asker.ok(tx(key, BEGIN))
    for partition in range(PARTITIONS):
        asker.ok(tx_put(key, "many", partition, b"%s %d" % (words.encode(), partition)))
    return asker


def visible(harness: Harness) -> list[bytes]:
    """What consumers see of all partitions, in their order."""
    return [body for partition in range(PARTITIONS) for body in bodies(harness, "many", partition)]


def all_of(words: str) -> list[bytes]:
    return [b"%s %d" % (words.encode(), partition) for partition in range(PARTITIONS)]


def work_off(harness: Harness) -> None:
    """Let the reactor and the threads do what they have, until nothing is left."""
    while harness.threads.run() or any(call.getTime() <= 0 for call in harness.reactor.calls):
        harness.turn()


def holding(harness: Harness) -> list[list[str]]:
    """What may still bring messages to the partitions."""
    logs = [harness.store.get_or_create("many", partition) for partition in range(PARTITIONS)]
    return [harness.broker.transactions.holding(log) for log in logs]


def test_others_are_served_while_a_commit_of_many_messages_of_one_partition_is_recorded(harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.tuning.COMMIT_SLICE_RECORDS", 2)
    asker, other = Asker(harness), harness.connect()
    asker.ok(tx("TX:s:0", BEGIN), *(tx_put("TX:s:0", "t", 0, b"%d" % number) for number in range(9)))
    asker.peer.send(tx("TX:s:0", COMMIT))
    for turn in range(4):
        assert other.ask(put("t", 0, b"other", turn)).code == 200
        assert not harness.threads.waiting  # nothing is recorded before all of it is ready
        step(harness)
    work_off(harness)
    assert bodies(harness, "t", 0) == [b"other"] * 4 + [b"%d" % number for number in range(9)]
    assert holding(harness) == [[]] * PARTITIONS
    assert bodies(started_again(Path(harness.store.data_paths[0]).parent), "t", 0) == bodies(harness, "t", 0)


def test_the_times_of_a_commit_need_not_be_raised_if_a_put_comes_in_between(harness, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.writer.ordered_units", raising(AssertionError("they are raised")))
    asker, other = Asker(harness), harness.connect()
    asker.ok(tx("TX:s:0", BEGIN), *(tx_put("TX:s:0", "t", 0, b"%d" % number) for number in range(9)))
    asker.peer.send(tx("TX:s:0", COMMIT))
    harness.time += 5
    other.ask(put("t", 0, b"other"))
    work_off(harness)
    assert bodies(harness, "t", 0) == [b"other"] + [b"%d" % number for number in range(9)]


def test_others_are_served_while_a_commit_to_many_partitions_is_recorded_and_while_it_is_appended(harness):
    asker, other = begun(harness), harness.connect()
    served: list[int] = []

    def between(turn: int) -> None:
        served.append(other.ask(put("t", 0, b"other", turn)).code)
        assert asker.peer.received() == b""

    asker.peer.send(tx("TX:s:0", COMMIT))
    turns(harness, between)
    assert len(served) >= PARTITIONS - 1
    assert visible(harness) == []  # nothing comes before the record is on the disk
    served.clear()
    harness.threads.run()
    turns(harness, between)
    assert len(served) >= PARTITIONS - 1
    assert set(served) == {200}
    assert [answer.code for answer in asker.peer.answers()] == [200]
    assert visible(harness) == all_of("body")


def test_commits_are_appended_one_behind_the_other(harness: Harness) -> None:
    first, second = begun(harness, words="first"), begun(harness, "TX:s:1", "second")
    first.peer.send(tx("TX:s:0", COMMIT))
    second.peer.send(tx("TX:s:1", COMMIT))
    work_off(harness)
    pairs = zip(all_of("first"), all_of("second"), strict=True)
    assert visible(harness) == [body for pair in pairs for body in pair]


@pytest.mark.parametrize("when", ["recording", "appending"])
def test_the_record_names_the_right_places_if_others_put_in_between(harness, tmp_path, when):
    asker, other = begun(harness), harness.connect()
    asker.peer.send(tx("TX:s:0", COMMIT))
    if when == "appending":
        turns(harness)
        harness.threads.run()
    step(harness)
    for partition in range(PARTITIONS):
        assert other.ask(put("many", partition, b"other")).code == 200
    work_off(harness)
    seen = visible(harness)
    assert sorted(seen) == sorted(all_of("body") + [b"other"] * PARTITIONS)
    again = started_again(tmp_path)
    assert visible(again) == seen
    assert again.broker.transactions.holding(again.store.get("many", 0)) == []


def test_a_key_is_free_again_when_its_commit_is_recorded(harness: Harness) -> None:
    for key, code in (("TX:s:0", ""), (XID, "code=-8")):
        asker = begun(harness, key)
        asker.peer.send(tx(key, COMMIT))
        refused = Asker(harness).refused(tx(key, BEGIN))
        assert "is being committed" in refused
        assert code in refused
        turns(harness)
        asker.peer.send(tx(key, BEGIN, opaque=2))
        work_off(harness)
        assert [answer.code for answer in asker.peer.answers()] == [200, 200]
        assert asker.ok(tx(key, ROLLBACK)) == ""


def test_a_partition_is_held_until_it_has_its_messages(harness: Harness) -> None:
    asker = begun(harness)
    asker.peer.send(tx("TX:s:0", COMMIT))
    transactions = harness.broker.transactions
    seen = 0
    while harness.reactor.getDelayedCalls() or harness.threads.waiting:
        held = holding(harness)
        missing = [not bodies(harness, "many", partition) for partition in range(PARTITIONS)]
        assert [each == ["a commit"] for each in held] == missing
        assert transactions.is_waited_for or harness.threads.waiting
        seen += 1
        if harness.reactor.getDelayedCalls():
            step(harness)
        else:
            harness.threads.run_one()
    assert seen >= 2 * PARTITIONS - 2
    assert holding(harness) == [[]] * PARTITIONS
    assert not transactions.is_waited_for
    assert [answer.code for answer in asker.peer.answers()] == [200]


@pytest.mark.parametrize("phase", ["recording", "written", "appending"])
def test_a_stop_completes_commits_that_are_under_way(harness: Harness, tmp_path: Path, phase: str) -> None:
    asker = begun(harness)
    asker.peer.send(tx("TX:s:0", COMMIT))
    if phase != "recording":
        turns(harness)
    if phase == "appending":
        harness.threads.run()
    assert bool(harness.reactor.getDelayedCalls()) is (phase != "written")
    harness.close()
    assert [answer.code for answer in asker.peer.answers()] == [200]
    assert visible(started_again(tmp_path)) == all_of("body")


@pytest.mark.parametrize(("phase", "local"), [("recording", "code=-7"), ("appending", "code=7")])
def test_a_leader_that_is_deposed_appends_nothing_more_and_says_what_it_knows(harness, tmp_path, phase, local):
    askers = begun(harness), begun(harness, XID)
    for key, asker in zip(("TX:s:0", XID), askers, strict=True):
        asker.peer.send(tx(key, COMMIT))
    if phase == "appending":
        turns(harness)
        harness.threads.run()
    step(harness)
    before = visible(harness)
    harness.broker.transactions.abandon("another node leads")
    for code, asker in zip((local, "code=-7"), askers, strict=True):
        (answer,) = asker.peer.answers()
        assert answer.code == 500
        assert code in answer.text
        assert ("is committed" in answer.text) is (phase == "appending")
    work_off(harness)
    assert visible(harness) == before
    expected = [] if phase == "recording" else [body for body in all_of("body") for _ in askers]
    assert visible(started_again(tmp_path)) == expected


def test_a_partition_that_fails_while_others_are_appended_to_is_completed_by_the_next_start(harness, tmp_path):
    asker = begun(harness)
    asker.peer.send(tx("TX:s:0", COMMIT))
    turns(harness)
    harness.threads.run()
    harness.store.get_or_create("many", 4).durability.write_failed("broken")
    turns(harness)
    (answer,) = asker.peer.answers()
    assert "code=7" in answer.text
    assert visible(harness) == [body for body in all_of("body") if body != b"body 4"]
    assert visible(started_again(tmp_path)) == all_of("body")


# --- those who wait for one sync --------------------------------------------------------------------------------------


def test_those_who_wait_for_one_sync_are_told_in_slices_and_in_order(harness: Harness) -> None:
    keys = [f"XID:1:{number:02x}:0b:host" for number in range(5)]
    askers = [Asker(harness) for _ in keys]
    for key, asker in zip(keys, askers, strict=True):
        asker.ok(tx(key, BEGIN), tx_put(key, "t", 0, key.encode()))
    for key, asker in zip(keys, askers, strict=True):
        asker.peer.send(tx(key, PREPARE))
    told: list[list[int]] = []

    def look(turn: int = 0) -> None:
        told.append([number for number, asker in enumerate(askers) if asker.peer.received()])

    harness.threads.run_one()  # the first one's; the others share the next
    look()
    harness.threads.run_one()
    look()
    assert harness.broker.transactions.is_waited_for
    turns(harness, look)
    look()
    assert [each for each in told if each] == [[0], [1], [2], [3], [4]]
    assert not harness.broker.transactions.is_waited_for


def test_what_is_on_the_disk_of_the_partitions_is_found_out_in_slices(harness: Harness) -> None:
    asker = Asker(harness)
    for number in range(5):
        key = f"TX:s:{number}"
        asker.ok(tx(key, BEGIN), tx_put(key, "t", 0, b"body"))
        asker.peer.send(tx(key, COMMIT))
        work_off(harness)
        assert [answer.code for answer in asker.peer.answers()] == [200]
    for log in harness.store.logs():
        log.flush()
    harness.threads.run()
    (name,) = [path for path in Path(harness.broker.transactions.directory).iterdir() if path.name.startswith("redo")]
    log_of_all = harness.broker.transactions._log._writer
    harness.reactor.rightNow += 1.1
    harness.broker.transactions.tick()
    assert log_of_all.has_unsettled
    assert turns(harness) >= 5
    assert not log_of_all.has_unsettled
    assert name.exists()
