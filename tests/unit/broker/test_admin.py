"""Admin requests: who may make them, closing and opening partitions, and reading server.ini again."""

import json

import pytest
from twisted.internet.defer import Deferred

from metaq.broker.assembly.admin import admits
from metaq.broker.assembly.stats import all_lines, stats_lines
from metaq.broker.requests.gate import Nodes
from metaq.broker.runtime.account import MAX_ASKED_MOVES
from metaq.broker.store.directories import lock_data_path
from metaq.broker.store.files import REAL_FILES
from metaq.protocol.errors import DirectoryInUse
from metaq.protocol.frames import encode_frame
from metaq.protocol.remoting import ClosePartitionsRequest, MoveRequest, OpenPartitionsRequest, StatsRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_get
from tests.unit.broker.harness import noted, put


def request(code, ext=()):
    return encode_frame(code, 1, dict(ext))


def close(topic, start, end):
    return request(RequestCode.CLOSE_PARTITIONS, ClosePartitionsRequest(topic, start, end).to_ext())


def reload(harness, peer):
    frame = peer.ask_frame(request(RequestCode.RELOAD_CONFIG), work=True)
    return json.loads(bytes(frame.body)) if frame.code == ResponseCode.SUCCESS else frame


ADMIN_CODES = sorted(code for code in RequestCode if 1020 <= code <= 1026)


@pytest.mark.parametrize(
    ("admin_from", "listen", "admitted", "refused"),
    [
        pytest.param(
            *("loopback", "", "127.0.0.1 127.9.9.9 ::1 ::ffff:127.0.0.1", "10.0.0.7 ::ffff:10.0.0.7 ?"),
            id="this machine unless told otherwise",
        ),
        pytest.param("any", "", "10.0.0.7", "", id="anywhere if told so"),
        pytest.param(
            *("loopback", "10.0.0.5", "10.0.0.5 ::ffff:10.0.0.5 127.0.0.1", "10.0.0.6"),
            id="the only address that is listened on",
        ),
        pytest.param("loopback", "::", "", "10.0.0.5", id="no other one where all IPv6 ones are listened on"),
        pytest.param("loopback", "0.0.0.0", "", "10.0.0.5", id="no other one where all are listened on"),
        pytest.param("loopback", "fd00::5", "fd00:0::5", "", id="the only one however it is written"),
    ],
)
def test_admin_requests_are_taken_from(admin_from, listen, admitted, refused):
    assert all(admits(admin_from, host, listen) is True for host in admitted.split())
    assert not any(admits(admin_from, host, listen) for host in refused.split())


@pytest.mark.parametrize("code", ADMIN_CODES)
def test_every_admin_request_from_elsewhere_is_refused(harness, code):
    stranger = harness.connect("192.168.1.9")
    assert stranger.ask_frame(request(code)).code == ResponseCode.NO_PERMISSION
    harness.broker.admin_from = "any"
    assert stranger.ask_frame(request(code)).code != ResponseCode.NO_PERMISSION


def test_closed_partitions_refuse_puts_and_gets_until_the_topic_is_opened(peer):
    peer.ask(put("t", 1))
    answer = peer.ask_frame(close("t", 1, 2))
    assert json.loads(bytes(answer.body)) == {"topic": "t", "closed": [1, 2]}
    assert [peer.ask(put("t", partition)).code for partition in (0, 1, 2)] == [200, 403, 403]
    assert peer.ask(encode_get("t", "g", 1, 0, 100, 1)).code == 403
    opened = peer.ask_frame(request(RequestCode.OPEN_PARTITIONS, OpenPartitionsRequest("t").to_ext()))
    assert json.loads(bytes(opened.body)) == {"topic": "t", "opened": [1, 2]}
    assert peer.ask(put("t", 1)).code == 200


@pytest.mark.parametrize(("topic", "end"), [("none", 0), ("wild1", 0), ("t", 3)])
def test_only_partitions_of_configured_topics_can_be_closed(peer, topic, end):
    assert peer.ask_frame(close(topic, 0, end)).code == ResponseCode.TOPIC_NOT_EXIST


def test_an_end_behind_the_last_partition_is_refused_with_those_there_are(peer):
    assert peer.ask_frame(close("t", 0, 9)).remark == "wrong partition 9: there are 3, from 0 to 2"


def test_an_end_before_the_start_is_refused_naming_the_field(peer):
    answer = peer.ask_frame(close("t", 2, 1))
    assert (answer.code, "extFields.end" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)


# --- reload -----------------------------------------------------------------------------------------------------------


def test_an_unchanged_file_does_nothing(harness, peer):
    assert reload(harness, peer)["changed"] is False
    assert harness.registered == []


def test_topics_are_added_and_changed_and_registered_after_the_checksum_of_the_new_file(harness, peer):
    harness.ini = harness.ini.replace("numPartitions=3", "numPartitions=4") + "[topic=new]\nnumPartitions=2\n"
    assert peer.ask(put("t", 3)).code == peer.ask(put("new", 1)).code == 500
    report = reload(harness, peer)
    assert (report["addedTopics"], report["changedTopics"]) == (["new"], ["t"])
    assert peer.ask(put("t", 3)).code == peer.ask(put("new", 1)).code == 200
    assert harness.registered == [(harness.config.checksum, ("new", "t"))]
    assert peer.ask(b"stats config 9\r\n").text == harness.ini
    assert reload(harness, peer)["changed"] is False


def test_a_smaller_number_hides_no_partition_that_is_in_the_data_directory_and_says_so(harness, peer):
    peer.ask(put("t", 1))
    harness.ini = harness.ini.replace("numPartitions=3", "numPartitions=1")
    report = reload(harness, peer)
    assert harness.broker.partitions.served_topics()["t"].partitions == 2
    assert report["warnings"] == [
        "[topic=t] numPartitions=1 would hide t-1 of the data directory: 2 partitions are served; "
        "to have fewer, stop the broker and delete those with `metaq partitions delete`"
    ]
    assert [peer.ask(put("t", partition)).code for partition in (1, 2)] == [200, 500]
    assert len(peer.ask(encode_get("t", "g", 1, 0, 100, 1)).data) == 50


def test_what_comes_without_a_partition_reaches_all_that_are_served(harness, peer):
    peer.ask(put("t", 2))
    harness.ini = harness.ini.replace("numPartitions=3", "numPartitions=1")
    reload(harness, peer)
    assert {harness.broker.partitions.choose("t") for _ in range(100)} == {0, 1, 2}


def test_a_topic_that_is_gone_from_the_file_stays_accepted(harness, peer):
    harness.ini = harness.ini.replace("[topic=quiet]\nstat=false\n", "")
    assert reload(harness, peer)["removedTopics"] == ["quiet"]
    assert peer.ask(put("quiet", 0)).code == 200


def test_system_settings_wait_for_a_restart_also_where_topics_inherit_them(harness, peer):
    harness.ini = harness.ini.replace("numPartitions=1\n", "numPartitions=5\n").replace("zk.zkEnable=false", "")
    harness.ini += "[topic=new]\n"
    assert reload(harness, peer)["needsRestart"] == ["numPartitions", "zk.zkEnable"]
    assert peer.ask(put("new", 1)).code == 500
    harness.ini += "; a comment\n"
    assert reload(harness, peer)["needsRestart"] == ["numPartitions", "zk.zkEnable"]
    harness.ini += "[limits]\nmadeTopics=7\n[replication]\nzone=eu-1\n"
    assert reload(harness, peer)["needsRestart"] == ["madeTopics", "numPartitions", "zk.zkEnable", "zone"]


@pytest.mark.parametrize(
    ("line", "named"),
    [("numPartition=3", "numPartition"), ("deleteWhen=never", "deleteWhen"), ("dataPath=/dev/null", "/dev/null")],
)
def test_a_bad_file_changes_nothing_and_the_answer_says_what_is_wrong(harness, peer, line, named):
    harness.ini += f"[topic=new]\n{line}\n"
    answer = reload(harness, peer)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert named in answer.remark
    assert peer.ask(put("new", 0)).code == 500
    assert harness.registered == []


def test_a_topic_may_come_with_a_data_directory_of_its_own(harness, peer, tmp_path):
    harness.ini += f"[topic=new]\ndataPath={tmp_path / 'more'}\n"
    assert reload(harness, peer)["addedTopics"] == ["new"]
    assert harness.store.data_paths[1:] == [str(tmp_path / "more")]
    with pytest.raises(DirectoryInUse):
        lock_data_path(REAL_FILES, str(tmp_path / "more"))


def test_a_data_directory_with_partitions_waits_for_a_restart_and_is_not_locked(harness, peer, tmp_path):
    (tmp_path / "more" / "old-0").mkdir(parents=True)
    harness.ini += f"[topic=new]\ndataPath={tmp_path / 'more'}\n"
    assert "old-0" in reload(harness, peer).remark
    REAL_FILES.close(lock_data_path(REAL_FILES, str(tmp_path / "more")))


def test_partitions_whose_directory_no_section_names_any_more_are_reported(harness, peer, tmp_path):
    peer.ask(put("t", 0))
    harness.ini = harness.ini.replace(str(tmp_path / "data"), str(tmp_path / "other"))
    report = reload(harness, peer)
    assert report["needsRestart"] == ["dataPath"]
    assert str(tmp_path / "data") in report["warnings"][0]


def test_stat_changes_for_a_running_topic(harness, peer):
    peer.ask(put("quiet", 0))
    harness.ini = harness.ini.replace("stat=false", "stat=true")
    reload(harness, peer)
    peer.ask(put("quiet", 0))
    assert "topic_realtime_put Count=1," in peer.ask(b"stats quiet 9\r\n").text


def test_every_node_of_a_set_closes_and_opens_partitions(harness):
    """Else the next leader serves what an operator has closed."""
    for code in (RequestCode.CLOSE_PARTITIONS, RequestCode.OPEN_PARTITIONS, RequestCode.RELOAD_CONFIG):
        assert harness.gate.frames[code].nodes is Nodes.ALL


def test_a_stats_item_cannot_end_the_answer(peer):
    ext = StatsRequest("x\r\nEND\r\n\u2028y").to_ext()
    lines = bytes(peer.ask_frame(encode_frame(RequestCode.STATS, 1, ext)).body).decode().splitlines()
    assert (lines[1], lines.index("END")) == (r"x\r\nEND\r\n\u2028y", len(lines) - 1)


def test_a_name_in_a_line_of_statistics_cannot_end_the_line_or_turn_its_direction():
    lines = all_lines(iter(["group:a\u2028b\x85\u202ec asked 1", "topic\u00fc"]))
    with pytest.raises(StopIteration) as done:
        next(lines)
    assert done.value.value == [r"group:a\u2028b\x85\u202ec asked 1", "topic\u00fc"]


@pytest.mark.parametrize("item", ["", "topics"])
def test_stats_of_many_topics_make_the_settings_of_a_few_at_a_time(harness, peer, monkeypatch, item):
    for number in range(50):
        peer.ask(put(f"%RETRY%g{number}", 0))
    made = noted(monkeypatch, harness.broker.partitions, "_settings")
    steps = []
    for _ in stats_lines(harness.broker, item):
        steps.append(len(made))
        made.clear()
    assert max(steps) <= 1
    assert sum(steps) == (50 if item else 0)


@pytest.mark.parametrize("code", [RequestCode.HAND_OVER, RequestCode.RESTART_REPLICATION])
def test_a_broker_by_itself_has_no_replication_to_hand_over_or_restart(peer, code):
    frame = peer.ask_frame(request(code))
    assert (frame.code != ResponseCode.SUCCESS, "start it with --node" in frame.remark) == (True, True)


def test_a_broker_by_itself_moves_nothing(peer):
    frame = peer.ask_frame(request(RequestCode.MOVE, MoveRequest("t", 0, 0).to_ext()))
    assert (frame.code != ResponseCode.SUCCESS, "nothing can be moved" in frame.remark) == (True, True)


def test_so_many_moves_are_looked_at_at_once_and_further_ones_are_refused(harness, monkeypatch):
    """Each is looked at in a thread."""
    looks: list[Deferred[dict[str, str]]] = []

    class Moves:
        def asked(self, _):
            looks.append(Deferred())
            return looks[-1]

    monkeypatch.setattr(harness.broker, "moves", Moves())
    flood, other = harness.connect("127.0.0.2"), harness.connect("127.0.0.1")
    ask = request(RequestCode.MOVE, MoveRequest("t", 0, 0).to_ext())
    flood.send(ask * 200)
    harness.turn()
    refused = flood.frames()
    assert len(looks) < MAX_ASKED_MOVES
    assert len(looks) + len(refused) == 200
    assert {frame.code for frame in refused} == {ResponseCode.SYSTEM_BUSY}
    assert "too many moves that are looked at" in refused[0].remark
    other.send(ask)
    assert other.frames() == []
    for look in looks:
        look.callback({"state": "done"})
    assert harness.broker.account.asked_moves.used == 0
    assert len(other.frames()) == 1
