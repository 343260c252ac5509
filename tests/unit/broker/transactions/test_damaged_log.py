"""Damage anywhere in the transaction log: the start succeeds, nothing false is delivered and nothing twice, whatever is
not damaged is kept, and both the broker's log and `metaq check` say what is damaged."""

import logging
import random
import shutil
from collections import Counter, defaultdict
from functools import cache

import pytest

from metaq.broker.inspection.data_directory import Options, inspect_directory
from metaq.broker.inspection.findings import Level
from metaq.broker.store.files import REAL_FILES
from tests.doubles.redo import read_redo
from tests.doubles.store import FaultyFiles
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.transactions.conversation import Asker, bodies, tx, tx_put
from tests.unit.broker.transactions.dying import Died, DyingFiles, contents

PARTITIONS = [("t", 0), ("safe", 0)]
A, B, C, D = (f"XID:1:{letter}:0b:h" for letter in ("0a", "0b", "0c", "0d"))
LOCAL, ROLLED_BACK = "TX:s:1", "TX:s:2"
MESSAGES = {
    LOCAL: [("t", 0, b"1a"), ("safe", 0, b"1b")],
    ROLLED_BACK: [("t", 0, b"2a")],
    A: [("t", 0, b"Aa"), ("t", 0, b"Ab")],
    B: [("t", 0, b"Ba")],
    C: [("t", 0, b"Ca")],
    D: [("safe", 0, b"Da"), ("t", 0, b"Db")],
}
COMMITTED, PREPARED = {LOCAL, B}, {A, D}
PLAIN = b"between"


@pytest.fixture(scope="module", params=["in the partitions", "lost"])
def original(request, tmp_path_factory):
    """A directory whose broker was killed, with or without the committed messages."""
    path = tmp_path_factory.mktemp("original")
    files = FaultyFiles()
    harness = Harness(path, files=files)
    ask = Asker(harness)
    for key, end in ((LOCAL, "COMMIT_ONE_PHASE"), (A, "PREPARE"), (ROLLED_BACK, "ROLLBACK")):
        begin(ask, key)
        ask.ok(tx(key, end))
    begin(ask, B)
    begin(ask, D)
    ask.ok(tx(D, "PREPARE"))
    ask.peer.send(tx(B, "COMMIT_ONE_PHASE"))
    Asker(harness).ok(put("t", 0, PLAIN))  # takes the place that was foreseen
    assert [answer.code for answer in ask.peer.answers()] == [200]
    begin(ask, C)
    ask.ok(tx(C, "PREPARE"), tx(C, "ROLLBACK"))
    files.kill()
    if request.param == "lost":
        for path_ in [*path.rglob("*.meta"), *path.rglob("*.index")]:
            path_.unlink()
    return path


def begin(ask, key):
    ask.ok(tx(key, "BEGIN"), *(tx_put(key, *message) for message in MESSAGES[key]))


@cache
def entries(path):
    """Of an `original`, which nothing changes."""
    return read_redo(REAL_FILES, str(redo(path))).entries


def redo(path):
    return path / "data" / "transactions" / "redo.1"


def is_lost(original):
    return not any(original.rglob("*.meta"))


def damaged_copy(original, target, data):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(original, target)
    redo(target).write_bytes(data)
    return target


def keys_touched(original, ranges):
    """Of the records that have one of these bytes."""
    return {
        entry.command.tx_key
        for entry in entries(original)
        if any(start < entry.offset + entry.size and entry.offset < end for start, end in ranges)
    }


class Outcome:
    """What a start made of a directory."""

    def __init__(self, path, caplog):
        caplog.clear()
        self.report = inspect_directory(path / "data", Options(fast=True))
        with caplog.at_level(logging.WARNING):
            self.harness = Harness(path, files=FaultyFiles())  # which waits for no disk
        self.said = [record for record in caplog.records if "redo.1" in record.getMessage()]
        self.delivered = self.read()
        self.prepared = set(filter(None, Asker(self.harness).ok(tx("null", "RECOVER")).split("\r\n")))
        self.answers = {key: Asker(self.harness)(tx(key, "COMMIT_TWO_PHASE")) for key in sorted(self.prepared)}
        self.finally_ = self.read()
        self.harness.threads.run()

    def read(self):
        return {where: bodies(self.harness, *where) for where in PARTITIONS if self.harness.store.find(*where)}


def count(found):
    return Counter(body for each in found.values() for body in each)


def verify(outcome, touched, *, lost=False, reported=True):
    """touched: keys of the transactions of which a record is damaged. lost: whether no partition had any message."""
    true = {body for messages in MESSAGES.values() for *_, body in messages} | {PLAIN}
    for found in (outcome.delivered, outcome.finally_):
        assert set(count(found)) <= true, "false messages"
        assert all(number == 1 for number in count(found).values()), f"twice: {count(found)}"
        for key in (ROLLED_BACK, *({C} - touched)):
            assert not {body for *_, body in MESSAGES[key]} & set(count(found)), f"{key} was rolled back"
    for key in COMMITTED - touched:
        assert {body for *_, body in MESSAGES[key]} <= set(count(outcome.delivered)), f"{key} was committed"
    for key in COMMITTED if lost else ():
        there = {body for *_, body in MESSAGES[key]} & set(count(outcome.delivered))
        assert len(there) in (0, len(MESSAGES[key])), f"a part of {key} is there"
    for key in PREPARED:
        mine = {body for *_, body in MESSAGES[key]}
        assert not mine & set(count(outcome.delivered)), f"{key} was not committed"
        if key not in touched:
            assert key in outcome.prepared
        if key in outcome.prepared and outcome.answers[key].code == 200:
            assert mine <= set(count(outcome.finally_)), f"{key} is committed, and not all of it is there"
        else:
            assert not mine & set(count(outcome.finally_)), f"a part of {key} is there"
    if reported:
        assert any(record.levelno >= logging.WARNING for record in outcome.said), "the broker's log says nothing"
        assert any(found.level is not Level.NOTE and "redo" in found.place for found in findings(outcome))


def findings(outcome):
    return outcome.report.transactions.findings


def test_the_undamaged_log(original, tmp_path, caplog):
    path = damaged_copy(original, tmp_path / "copy", redo(original).read_bytes())
    outcome = Outcome(path, caplog)
    verify(outcome, set(), reported=False)
    assert outcome.prepared == PREPARED
    assert not outcome.report.damaged
    outcome.harness.close()


def test_each_damaged_byte(original, tmp_path, caplog):
    """Each is read; a broker starts once for each different reading, of which it sees no more than that."""
    whole = redo(original).read_bytes()
    readings = defaultdict(list)
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1 << position % 8
        (tmp_path / "redo").write_bytes(data)
        touched = frozenset(keys_touched(original, [(position, position + 1)]))
        readings[repr(read_redo(REAL_FILES, str(tmp_path / "redo"))), touched].append((position, data))
    assert len(readings) > 100
    end_of_commits = 0
    for (_, touched), ((position, data), *others) in readings.items():
        outcome = Outcome(damaged_copy(original, tmp_path / "copy", data), caplog)
        try:
            verify(outcome, touched, lost=is_lost(original))
            exact = [found for found in findings(outcome) if found.level is Level.DAMAGE]
            if not exact:  # only places that are right although their checksum is not may be less than damage
                assert any("but right places" in found.text for found in findings(outcome))
                end_of_commits += 1 + len(others)
        except AssertionError as error:
            raise AssertionError(f"byte {position} of {touched}: {outcome.said} {findings(outcome)}") from error
        finally:
            outcome.harness.close()
    assert end_of_commits < 80


def random_damage(rng, size):
    """(start, new bytes): a zeroed, lost or overwritten stretch."""
    length = min(rng.choice([1, 2, 7, 40, 200, 512]), size)
    start = rng.randrange(size - length + 1)
    return start, bytes(length) if rng.random() < 0.5 else rng.randbytes(length)


@pytest.mark.parametrize("seed", range(15))
def test_random_damage_and_what_a_second_start_finds(original, tmp_path, caplog, seed):
    rng = random.Random(seed)
    whole = redo(original).read_bytes()
    data = bytearray(whole)
    ranges = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        start, new = random_damage(rng, len(data))
        data[start : start + len(new)] = new
        ranges.append((start, start + len(new)))
    if rng.random() < 0.2:
        cut = rng.randrange(len(data))
        ranges.append((cut, len(data)))
        del data[cut:]
    path = damaged_copy(original, tmp_path / "copy", data)
    touched = keys_touched(original, ranges)
    outcome = Outcome(path, caplog)
    verify(outcome, touched, lost=is_lost(original), reported=bytes(data) != whole[: len(data)])
    before = count(outcome.finally_)
    outcome.harness.store.close()  # killed, with nothing settled
    (path / "data" / "transactions" / "metaq.json").unlink(missing_ok=True)
    contents = read_redo(REAL_FILES, str(redo(path)))
    assert contents.problem is None, "the start has left damage in the file"
    again = Harness(path, files=FaultyFiles())
    found = {where: bodies(again, *where) for where in PARTITIONS if again.store.find(*where)}
    assert count(found) == before
    again.close()


def test_dying_while_a_damaged_log_is_repaired(original, tmp_path, caplog):
    """At each change of the disk; the next start says the same."""
    whole = redo(original).read_bytes()
    records = entries(original)
    for entry in records:
        data = bytearray(whole)
        data[entry.offset + 20] ^= 4
        number, died, examined = 0, True, set()
        while died:
            number += 1
            path = damaged_copy(original, tmp_path / "copy", data)
            files = DyingFiles(number)
            try:
                harness = Harness(path, files=files)
                harness.threads.run()
                died = False
            except Died:
                pass
            files.kill()
            if (state := contents(path)) not in examined:
                examined.add(state)
                outcome = Outcome(path, caplog)
                verify(outcome, {entry.command.tx_key}, lost=is_lost(original), reported=False)
                outcome.harness.close()
        assert number > len(examined) > 3
