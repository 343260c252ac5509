"""The checkers of runs in which everything is killed: what each must reject, and what it must accept."""

from collections import Counter

import pytest

from tests.kills.journal import Journal, read_journal
from tests.kills.retries.checkers import (
    ATTEMPTS,
    CHECKERS,
    PAUSE,
    Call,
    Facts,
    Letter,
    facts_in,
    failures_of,
    judge,
    judge_redrive,
    payload_of,
    repeated,
)

FINE, ONCE, TWICE, HOPELESS = 0, 4, 6, 7  # by their numbers: how often each fails


def calls(number, *attempts, began=100.0, pause=PAUSE):
    return [Call(number, attempt, began + index * pause) for index, attempt in enumerate(attempts)]


def good():
    return Facts(
        {FINE, ONCE, TWICE, HOPELESS},
        [*calls(FINE, 1), *calls(ONCE, 1, 2), *calls(TWICE, 1, 2, 3), *calls(HOPELESS, 1, 2, 3)],
        {FINE, ONCE, TWICE},
        [Letter(HOPELESS, ATTEMPTS, "0-0:0")],
    )


def test_the_numbers_used_here_fail_as_they_should():
    assert [failures_of(each) for each in (FINE, ONCE, TWICE, HOPELESS)] == [0, 1, 2, ATTEMPTS]
    assert payload_of(14) == b"14 2"


def test_a_good_run_has_no_problem_and_repetitions_are_counted():
    facts = good()
    assert judge(facts) == []
    facts.calls += [*calls(ONCE, 1, 2, began=200.0), *calls(FINE, 1)]  # a member was killed before its commit
    facts.letters.append(Letter(HOPELESS, ATTEMPTS, "1-0:0"))
    facts.acked.discard(TWICE)  # nobody knows whether it is stored
    assert judge(facts) == []
    assert repeated(facts) == (3, 1)


def test_an_attempt_that_was_begun_twice_may_have_ended_its_process_and_counts_then():
    facts = good()
    facts.calls += [*calls(FINE, 1), *calls(FINE, 2, began=300.0)]
    assert judge(facts) == []
    facts.calls += calls(FINE, 3, began=400.0)
    assert [each.kind for each in judge(facts)] == ["attempts_count_from_one"]


def test_a_run_that_is_not_over_tells_what_is_missing():
    facts = good()
    facts.succeeded.discard(ONCE)
    facts.letters.clear()
    assert facts.unsettled() == {ONCE, HOPELESS}


def drop(facts, number, attempt):
    facts.calls = [each for each in facts.calls if (each.number, each.attempt) != (number, attempt)]


def early(facts):
    facts.calls = [each for each in facts.calls if each.number != ONCE] + calls(ONCE, 1, 2, pause=PAUSE - 0.01)


INJURED = {
    "one is lost": (lambda it: it.succeeded.discard(TWICE), "nothing_is_lost"),
    "one is dead too soon": (
        lambda it: it.letters.append(Letter(ONCE, ATTEMPTS, "0-0:9")),
        "only_the_hopeless_are_dead",
    ),
    "a hopeless one is processed": (lambda it: it.succeeded.add(HOPELESS), "only_the_hopeless_are_dead"),
    "too few attempts": (
        lambda it: it.letters.__setitem__(0, Letter(HOPELESS, ATTEMPTS - 1, "0-0:0")),
        "dead_letters_have_had_all_attempts",
    ),
    "an attempt is left out": (lambda it: drop(it, TWICE, 2), "attempts_count_from_one"),
    "an attempt too many": (lambda it: it.calls.extend(calls(ONCE, 3, began=200.0)), "attempts_count_from_one"),
    "a success too soon": (lambda it: drop(it, TWICE, 3), "attempts_count_from_one"),
    "an attempt is early": (early, "nothing_comes_early"),
}


@pytest.mark.parametrize(("injure", "checker"), INJURED.values(), ids=INJURED)
def test_each_checker_rejects_what_is_wrong(injure, checker):
    facts = good()
    injure(facts)
    assert {problem.kind for problem in judge(facts)} == {checker}
    assert checker in {each.__name__ for each in CHECKERS}


@pytest.mark.parametrize(
    ("sent", "kills", "texts"),
    [
        ([HOPELESS, ONCE], 0, []),  # one that is dead by mistake is no fault of its redrive, and hides no other finding
        ([HOPELESS, HOPELESS, ONCE], 1, []),
        ([HOPELESS, HOPELESS, ONCE, ONCE], 1, ["2 were sent twice by 1 interrupted redrives: at most one each may be"]),
        ([ONCE], 1, [f"{HOPELESS} was not redriven"]),
        ([HOPELESS, ONCE, FINE], 1, [f"{FINE} was redriven and is no dead letter"]),
    ],
)
def test_a_redrive_sends_each_dead_letter_and_one_more_for_each_kill(sent, kills, texts):
    problems = judge_redrive(Counter(sent), Counter([HOPELESS, ONCE]), kills)
    assert [each.text for each in problems] == texts


def test_what_processes_have_noted_is_read_back(tmp_path):
    journal = Journal(tmp_path / "journal")
    for number in (0, 8):
        journal.write("acked", number)
    journal.write("call", 8, 1, at=12.5)
    journal.write("done", 8)
    journal.write("redriven", "0-0:0")
    assert facts_in(read_journal(tmp_path / "journal")) == Facts({0, 8}, [Call(8, 1, 12.5)], {8})
