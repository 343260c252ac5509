"""When a leader hands over to the node that operators prefer, and how a set's status reads."""

from metaq.broker.replication.status import NodeStatus, ReplicationStatus
from metaq.broker.sets import tuning
from metaq.broker.sets.status import Preference

MINUTE = tuning.PREFERRED_SECONDS


def test_a_preferred_node_must_be_ready_for_a_minute_without_a_break():
    preference = Preference()
    assert not preference.due(0.0, "b", ready=True)
    assert not preference.due(MINUTE - 1, "b", ready=True)
    assert not preference.due(MINUTE, "b", ready=False)
    assert not preference.due(MINUTE + 1, "b", ready=True)
    assert not preference.due(2 * MINUTE, "b", ready=True)
    assert preference.due(2 * MINUTE + 1, "b", ready=True)


def test_another_preferred_node_waits_for_its_own_minute():
    preference = Preference()
    assert not preference.due(0.0, "b", ready=True)
    assert not preference.due(MINUTE, "c", ready=True)
    assert preference.due(2 * MINUTE, "c", ready=True)


def test_a_hand_over_that_failed_is_tried_again_after_a_minute():
    preference = Preference()
    assert not preference.due(0.0, "b", ready=True)
    assert preference.due(MINUTE, "b", ready=True)
    assert not preference.due(MINUTE + 1, "b", ready=True)
    assert not preference.due(2 * MINUTE - 1, "b", ready=True)
    assert preference.due(2 * MINUTE, "b", ready=True)


def test_the_status_of_a_leader_has_a_line_and_an_object_for_each_follower():
    live = NodeStatus("b", True, True, True, 12, 0.25, "", 5)
    gone = NodeStatus("c", False, False, False, None, None, "connection\nlost", 6)
    status = ReplicationStatus("leader", figures={"epoch": 3, "inSync": ["a", "b"]}, nodes=[live, gone])
    assert status.lines()[-2:] == [
        "follower b in_sync true connected true live true lag_bytes 12 lag_seconds 0.250 since_ms 5",
        "follower c in_sync false connected false live false lag_bytes unknown lag_seconds unknown since_ms 6 "
        "error connection lost",
    ]
    assert {"epoch 3", "inSync a,b"} <= set(status.lines())
    found = status.to_json()
    assert found["inSync"] == ["a", "b"]
    assert [(node["name"], node["lagBytes"], node["lagSeconds"]) for node in found["nodes"]] == [
        ("b", 12, 0.25),
        ("c", None, None),
    ]
    assert "nodes" not in ReplicationStatus("follower").to_json()
