"""A new kind of message takes one module (counters.py) and one row: everything else about it works for all kinds."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred

from metaq.broker import tuning
from metaq.broker.assembly.kinds import KINDS, MessageKind
from metaq.broker.assembly.stats import stats_text
from metaq.broker.http.metrics import exposition
from metaq.broker.moving.moves import BrokerMoves
from metaq.cli.app import run
from metaq.coordination.records.move_payloads import Move, MoveState
from metaq.protocol.replication_stream import Lane, StreamEntry, encode_block
from tests.unit.broker.harness import Harness, Lives, overwrite, worked_off
from tests.unit.broker.memory.counters import Counters
from tests.unit.broker.sets.test_follower import LeaderSide


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, Counters.topic, MessageKind("metaqcounters", 1 << 16, memory=Counters))


@pytest.fixture
def lives(tmp_path: Path) -> Any:
    lives = Lives(tmp_path)
    yield lives
    lives.end()


def counters(lives: Lives) -> Counters:
    return lives.broker.memory(Counters)


def log_of(harness: Harness) -> Any:
    (log,) = harness.store.internal_logs(Counters.topic)
    return log


def test_it_is_stored_and_recovered(lives: Lives) -> None:
    assert [counters(lives).count(key) for key in ("a", "b", "a")] == [1, 1, 2]
    lives.kill()
    assert counters(lives).counts == {"a": 2, "b": 1}
    lives.restart()
    assert counters(lives).count("a") == 3


def test_its_log_is_made_shorter_and_says_the_same(lives: Lives) -> None:
    for number in range(500):
        counters(lives).count(f"k{number % 5}")
    before = log_of(lives.harness).end_offset
    for _ in range(3):
        counters(lives).tick()
        lives.work()
    log = log_of(lives.harness)
    assert log.first_offset == before
    assert log.end_offset - before < before / 50
    lives.kill()
    assert counters(lives).counts == {f"k{number}": 100 for number in range(5)}


def test_what_is_counted_while_its_log_is_made_shorter_counts(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "WORK_SLICE_SECONDS", 0.0)
    for number in range(500):
        counters(lives).count(f"k{number % 5}")
    counters(lives).tick()
    for number in range(5):
        counters(lives).count(f"k{number}")
    lives.work()
    lives.kill()
    assert counters(lives).counts == {f"k{number}": 101 for number in range(5)}


def test_stats_and_metrics_show_it(lives: Lives) -> None:
    counters(lives).count("a")
    text = worked_off(stats_text(lives.broker, "counters")).decode()
    assert text == "STATS\r\ncounted 1\r\ncount:a 1\r\nEND\r\n"
    shown = "".join(filter(None, exposition(lives.broker)))
    assert "# HELP metaq_counters_counted_total Keys counted\n# TYPE metaq_counters_counted_total counter" in shown
    assert "metaq_counters_keys 1.0" in shown


def checked(lives: Lives, capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    """What `metaq check` finds in the internal logs after a kill."""
    lives.files.kill()
    run(["check", str(lives.directory / "data"), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return [each for each in found if "metaqcounters" in each["place"]]


def test_metaq_check_reads_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lives = Lives(tmp_path)
    counters(lives).count("a")
    assert checked(lives, capsys) == []
    lives.files.heal()
    lives.start()
    table = counters(lives)
    log = log_of(lives.harness)
    end = log.end_offset
    table._write(log, b"short")
    table.count("b")
    (found,) = checked(lives, capsys)
    assert found["level"] == "damage"
    assert found["text"].startswith(f"the record at byte {end}: a counter cannot be read")
    overwrite(log.segments[0].path, end + 22, b"x")
    (found,) = checked(lives, capsys)
    assert found["text"] == f"25 damaged bytes [{end}, {end + 25}): counters are lost"


def test_a_move_waits_for_what_stays(harness: Harness) -> None:
    move = Move("t", 0, 0, 2, 1, 1, MoveState.COPYING)
    session: Any = SimpleNamespace(nodes=None, paths=None, set_backs=0)
    registration: Any = None
    moves = BrokerMoves(harness.broker, session, registration)
    answers: list[Any] = []
    for key in ("", "t-1/a"):
        if key:
            harness.broker.memory(Counters).count(key)
        ensureDeferred(moves._as_source(move)).addCallback(answers.append)
    assert answers == [{"state": "copying"}, {"state": "copying", "waitsFor": "counters to be read (t-1)"}]


def test_a_set_copies_it_and_its_next_leader_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Harness(tmp_path / "a"), Harness(tmp_path / "b")
    for key in ("a", "b", "a"):
        first.broker.memory(Counters).count(key)
    follower = second.broker.memory(Counters)
    follower.follow()
    log = log_of(first)
    size = log.end_offset // 3

    def records(begin: int, end: int) -> StreamEntry:
        data = log.segments.snapshot().read(begin * size, (end - begin) * size)
        units = log.segments[0].index.units(begin, end)
        return StreamEntry(b"/counters-0", begin * size, 0, Lane.MEMORY, units.tobytes(), (data,))

    leader = LeaderSide(second, monkeypatch)
    leader.go_live(1, copied=[records(0, 1)])
    second.threads.run()
    leader.say(encode_block(2, (2, 2), [records(1, 3)]))
    assert log_of(second).end_offset == log.end_offset
    follower.tick()
    assert follower.counts == {"a": 2, "b": 1}
    follower.lead()
    assert follower.count("a") == 3
    for each in (first, second):
        each.close()
