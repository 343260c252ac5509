"""What applications of the Java client sent, what is stored and what the group was handed: each finding is found."""

import pytest

from tests.failovers.java_clients import Attempt, Delivery, Record, judge, records_in

SENT = [
    Attempt(1.0, 1.1, "j0 0", "0-0", 0, 70, ""),
    Attempt(1.0, 1.1, "j1 0", "1-0", 0, 71, ""),
    Attempt(1.2, 1.3, "j0 1", "", -1, 0, "no connection"),
]
STORED = [Record("0-0", 0, 70, "j0 0"), Record("1-0", 0, 71, "j1 0")]
HANDED = [Delivery(1.2, "member0", "0-0", 70, "j0 0"), Delivery(1.2, "member1", "1-0", 71, "j1 0")]


def test_a_whole_history_has_no_findings():
    findings = judge(SENT, STORED, HANDED)
    assert (findings.problems, findings.acknowledged, findings.repeated, findings.kept) == ([], 2, 0, 0)
    assert findings.reasons == {"no connection": 1}


@pytest.mark.parametrize(
    ("stored", "handed", "found"),
    [
        (STORED[:1], HANDED, ["lost", "vanished"]),
        ([STORED[0], STORED[1]._replace(id=72)], HANDED, ["lost", "vanished"]),
        ([STORED[0], STORED[1]._replace(offset=24)], HANDED, ["lost"]),
        (STORED, HANDED[:1], ["unseen"]),
        ([*STORED, Record("0-1", 0, 73, "j0 9")], HANDED, ["false"]),
        (STORED, [*HANDED, Delivery(1.3, "member0", "0-0", 79, "j0 0")], ["vanished"]),
    ],
)
def test_what_is_wrong_is_named(stored, handed, found):
    problems = judge(SENT, stored, handed).problems
    assert sorted(problem.partition(":")[0] for problem in problems) == found


def test_what_the_client_did_by_itself_is_counted_apart():
    stored = [*STORED, Record("0-0", 24, 75, "j0 0"), Record("0-1", 0, 76, "j0 1")]
    findings = judge(SENT, stored, HANDED)
    assert (findings.problems, findings.repeated, findings.kept) == ([], 1, 1)


def test_only_the_topic_of_the_clients_is_read():
    assert records_in({"java 0-0": b"", "other 0-0": b"not a record"}) == []
