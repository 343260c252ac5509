"""What applications of the Java client sent, what is stored and what the group was handed: each finding is found."""

import pytest

from tests.failovers.java_clients import judge
from tests.history.facts import Ack, Delivery, Name, Place, Send, Stored
from tests.history.reading import stored_in

A, B, FAILED, STRANGE = Name("jx", "-", 0), Name("jy", "-", 0), Name("jx", "-", 1), Name("jx", "-", 9)
ON_A, ON_B = Stored("java 0-0", 0, 24, 70, A), Stored("java 1-0", 0, 24, 71, B)
SENT = [
    Send(1.0, 1.1, A, Ack(A, "java 0-0", 0, 70)),
    Send(1.0, 1.1, B, Ack(B, "java 1-0", 0, 71)),
    Send(1.2, 1.3, FAILED, None, "no connection"),
]
HANDED = [Delivery(1.2, "member0", "java 0-0", Place(0, 70, A)), Delivery(1.2, "member1", "java 1-0", Place(0, 71, B))]
AT_24 = HANDED[1]._replace(place=Place(24, 71, B))


def log(*records):
    return {each.partition: [other for other in records if other.partition == each.partition] for each in records}


def test_a_whole_history_has_no_findings():
    findings = judge(SENT, log(ON_A, ON_B), HANDED)
    assert (findings.problems, findings.acknowledged, findings.repeated, findings.kept) == ([], 2, 0, 0)
    assert findings.reasons == {"no connection": 1}


@pytest.mark.parametrize(
    ("records", "handed", "found"),
    [
        pytest.param([ON_A], HANDED, ["false", "lost"], id="what is handed out is not there"),
        pytest.param([ON_A, ON_B._replace(id=72)], HANDED, ["false", "lost"], id="another id"),
        pytest.param([ON_A, ON_B._replace(offset=24)], [HANDED[0], AT_24], ["lost"], id="another place"),
        pytest.param([ON_A, ON_B], HANDED[:1], ["unseen"], id="nobody gets it"),
        pytest.param([ON_A, ON_B, Stored("java 0-1", 0, 24, 73, STRANGE)], HANDED, ["unsent"], id="nobody sent it"),
        pytest.param(
            [ON_A, ON_B],
            [*HANDED, Delivery(1.3, "member0", "java 0-0", Place(-1, 79, A))],
            ["false"],
            id="an id that is not there",
        ),
    ],
)
def test_what_is_wrong_is_named(records, handed, found):
    assert sorted(problem.kind for problem in judge(SENT, log(*records), handed).problems) == found


def test_what_the_client_did_by_itself_is_counted_apart():
    more = [Stored("java 0-0", 24, 48, 75, A), Stored("java 0-1", 0, 24, 76, FAILED)]
    findings = judge(SENT, log(ON_A, ON_B, *more), HANDED)
    assert (findings.problems, findings.repeated, findings.kept) == ([], 1, 1)


def test_only_the_topic_of_the_clients_is_read():
    assert stored_in({"java 0-0": b"", "other 0-0": b"not a record"}, ["java"]) == {"java 0-0": []}
