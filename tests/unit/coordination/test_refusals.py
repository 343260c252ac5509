"""When a session is given up because no server takes it any more."""

import pytest

from metaq.coordination.session.diagnosis import ServerFinding, _judged
from metaq.coordination.session.giving_up import Refusals, is_set_back

A, B = ("a", 2181), ("b", 2181)
SEEN = 0x500


def finding(zxid=None, *, decides=False, waits=False):
    return ServerFinding("", certain=False, waits=waits, zxid=zxid, decides=decides)


def test_every_server_must_have_refused_when_it_was_tried_last():
    refusals = Refusals(lambda: 0.0)
    refusals.refused(A)
    assert not refusals.by_all([A, B])
    refusals.refused(B)
    assert refusals.by_all([A, B])
    refusals.unreachable(A)
    assert not refusals.by_all([A, B])


def test_the_time_counts_from_the_first_try_without_a_connection():
    now = 100.0
    refusals = Refusals(lambda: now)
    assert not refusals.lasted(0)
    refusals.unreachable(A)
    now = 129.9
    refusals.refused(A)
    assert not refusals.lasted(30)
    now = 130.0
    assert refusals.lasted(30)
    refusals.connected()
    assert not refusals.lasted(0)
    assert not refusals.by_all([A])


@pytest.mark.parametrize(
    ("findings", "refused_by_all", "set_back"),
    [
        ([finding(), finding()], True, True),  # they say nothing
        ([finding(), finding()], False, False),
        ([finding(0x20), finding(0x20)], True, True),
        ([finding(0x20), finding(0x20)], False, False),  # followers that lag behind a leader nobody can reach
        ([finding(0x20, decides=True), finding()], False, True),  # a machine of the ensemble is away for good
        ([finding(SEEN, decides=True)], True, False),  # it refuses for another reason
        ([finding(SEEN + 1), finding(0x20, decides=True)], True, False),  # a leader that does not know that it is none
        ([finding(waits=True)], True, False),  # an ensemble without a majority closes each connection, too
        ([finding(waits=True), finding(0x20)], True, False),
    ],
)
def test_zookeeper_was_set_back_if_those_who_must_have_what_was_seen_have_it_not(findings, refused_by_all, set_back):
    assert is_set_back(SEEN, findings, refused_by_all=refused_by_all) is set_back


def test_what_a_server_says_of_itself_is_read():
    answer = b"Zookeeper version: 3.9.3-c26634\nZxid: 0x1f00000002\nMode: %s\nNode count: 5\n"
    leader, follower = _judged("a:1", answer % b"leader"), _judged("a:1", answer % b"follower")
    assert (leader.zxid, leader.decides, follower.decides) == (0x1F00000002, True, False)
    assert _judged("a:1", answer % b"standalone").decides
    silent = _judged("a:1", b"srvr is not executed because it is not in the whitelist.\n")
    assert (silent.zxid, silent.decides, silent.waits) == (None, False, False)
    assert _judged("a:1", b"This ZooKeeper instance is not currently serving requests\n").waits
