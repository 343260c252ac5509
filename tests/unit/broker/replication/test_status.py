"""What operators are shown of replication, as text and as JSON."""

import simplejson

from metaq.broker.replication.status import CopyState, PartitionStatus, ReplicationStatus
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness


class Part:
    """A broker's part in replication."""

    def __init__(self) -> None:
        self.restarted = 0

    def status(self) -> ReplicationStatus:
        partition = PartitionStatus("t", 1, CopyState.STOPPED, 10, 25, None, "two\nlines", 5)
        return ReplicationStatus("slave", "meta://m:1", True, "", 7, {"slaveId": 3}, [partition])

    def restart(self) -> None:
        self.restarted += 1


def test_a_plain_master_says_so(harness: Harness):
    assert harness.connect().ask(b"stats replication 1\r\n").text.split("\r\n")[:2] == ["STATS", "role master"]


def test_every_partition_has_a_line(harness: Harness):
    harness.broker.replication = Part()
    lines = harness.connect().ask(b"stats replication 1\r\n").text.split("\r\n")
    assert lines == [
        *("STATS", "role slave", "peer meta://m:1", "connected true", "since_ms 7", "slaveId 3"),
        "t part 1 state stopped offset 10 master_end 25 lag_bytes 15 lag_messages unknown since_ms 5 error two lines",
        *("END", ""),
    ]


def test_the_frames_say_the_same(harness: Harness):
    part = harness.broker.replication = Part()
    peer = harness.connect()
    for code in (RequestCode.REPLICATION_STATUS, RequestCode.RESTART_REPLICATION):
        frame = peer.ask_frame(encode_frame(code, 1, {}))
        assert simplejson.loads(bytes(frame.body)) == part.status().to_json()
    assert part.restarted == 1


def test_only_a_broker_with_a_part_can_restart_it_and_only_operators_may(harness: Harness):
    code = RequestCode.RESTART_REPLICATION
    assert harness.connect().ask_frame(encode_frame(code, 1, {})).code == ResponseCode.SYSTEM_ERROR
    assert harness.connect("10.0.0.1").ask_frame(encode_frame(code, 1, {})).code == ResponseCode.NO_PERMISSION
