"""Payloads of znodes, as 1.x writes and reads them (zookeeper.md §2)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.coordination.records.move_payloads import Move, MoveState, format_move, parse_move
from metaq.coordination.records.paths import Paths
from metaq.coordination.records.payloads import (
    MAX_PARTITIONS,
    Begun,
    ConsumerFilter,
    Offset,
    format_begun,
    format_broker_url,
    format_checksum,
    format_consumer_filter,
    format_consumer_id,
    format_consumer_zone,
    format_group_zones,
    format_offset,
    format_partition_count,
    format_plain_count,
    format_topics,
    format_zone,
    parse_begun,
    parse_broker_id,
    parse_broker_url,
    parse_consumer_filter,
    parse_consumer_id,
    parse_consumer_zone,
    parse_group_zones,
    parse_offset,
    parse_partition_count,
    parse_replica_name,
    parse_slave_name,
    parse_topics,
    parse_zone,
)
from metaq.coordination.records.set_payloads import (
    SetNode,
    SetState,
    format_set_node,
    format_set_state,
    may_revoke,
    parse_set_node,
    parse_set_state,
)
from metaq.protocol.errors import ConfigError, CoordinationError

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden" / "zookeeper.json"
NODES = {node["path"]: node["data"] for node in json.loads(GOLDEN.read_text("utf-8"))["nodes"]}
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def parse_node_a(path: str, data: bytes | None) -> SetNode | None:
    return parse_set_node(path, "a", data)


NOTHING: dict[Callable[[str, bytes | None], object], object] = {
    **dict.fromkeys((parse_broker_url, parse_partition_count, parse_offset, parse_consumer_id), None),
    **dict.fromkeys((parse_set_state, parse_node_a, parse_consumer_zone), None),
    parse_topics: [],
    parse_zone: "",
    parse_group_zones: {},
    parse_consumer_filter: {},
    parse_begun: Begun(),
}


@pytest.mark.parametrize("parse", NOTHING, ids=lambda parse: parse.__name__)
@pytest.mark.parametrize("data", [None, b"", b"  ", b"\n"])
def test_null_empty_and_blank_data_are_nothing(parse, data: bytes | None):
    assert parse("/p", data) == NOTHING[parse]


# --- as recorded from Java --------------------------------------------------------------------------------------------


def test_our_payloads_equal_those_recorded_from_java():
    paths = Paths()
    ours = {
        paths.broker(0): format_broker_url("127.0.0.1", 28223),
        paths.master(0): format_broker_url("127.0.0.1", 28223),
        paths.slave(0, 0): format_broker_url("127.0.0.1", 28224),
        paths.master_config_checksum(0): format_checksum(1929209308),
        paths.topic_broker("events", "0-m"): format_plain_count(12),
        paths.topic_broker("orders", "0-s0"): format_plain_count(3),
        paths.topic_pub_broker("events", "0-m"): format_partition_count(12, "0-m"),
        paths.topic_sub_broker("orders", "0-m"): format_partition_count(3, "0-m"),
        paths.consumer("g1", "g1_c1"): format_topics(["orders", "events"]),
        paths.owner("g1", "orders", "0-2"): format_consumer_id("g1_c1"),
        paths.offset("g1", "orders", "0-0"): format_offset(Offset(-5468918097727455232, 44)),
    }
    assert ours == {path: NODES[path].encode() for path in ours}


def test_every_payload_recorded_from_java_is_read():
    read = 0
    for path, data in NODES.items():
        raw = data.encode() if data else None
        if "/topics-" in path and path.endswith(("-m", "-s0")):
            assert parse_partition_count(path, raw) == (12 if "events" in path else 3)
        elif "/offsets/" in path and path[-1].isdigit():
            assert parse_offset(path, raw) == Offset(int(data[: data.rindex("-")]), int(data[data.rindex("-") + 1 :]))
        elif path.endswith(("master", "slave0")):
            assert parse_broker_url(path, raw) == ("127.0.0.1", 28223 if path.endswith("master") else 28224)
        elif data == "orders,events":
            assert parse_topics(path, raw) == ["orders", "events"]
        else:
            continue
        read += 1
    assert read > 20


# --- broker URLs ------------------------------------------------------------------------------------------------------


URLS = {
    b"meta://10.0.0.1:8123": ("10.0.0.1", 8123),
    b"meta://broker-1.example.com:1": ("broker-1.example.com", 1),
    b"meta://[::1]:65535": ("::1", 65535),
    b"meta://[fe80::1%eth0]:8123": ("fe80::1%eth0", 8123),
    b"meta://a_b:8123": ("a_b", 8123),
    b"meta://h:8123?slaveId=0": ("h", 8123),
    b" meta://h:8123\n": ("h", 8123),
}


@pytest.mark.parametrize(("data", "expected"), URLS.items())
def test_a_broker_url_is_host_and_port(data: bytes, expected: tuple[str, int]):
    assert parse_broker_url("/p", data) == expected


BAD_URLS = [
    b"http://h:1",
    b"meta://h",
    b"meta://:1",
    b"meta://h:0",
    b"meta://h:65536",
    b"meta://h:1:2",
    b"meta://::1:1",
]


@pytest.mark.parametrize("data", [*BAD_URLS, b"\xff"])
def test_a_damaged_broker_url_is_reported_with_its_path_and_data(data: bytes):
    with pytest.raises(CoordinationError, match="/meta/brokers/ids/7/master") as raised:
        parse_broker_url("/meta/brokers/ids/7/master", data)
    assert repr(data) in str(raised.value)


def test_an_ipv6_host_is_written_in_brackets():
    assert format_broker_url("::1", 8123) == b"meta://[::1]:8123"


@pytest.mark.parametrize("host", ["a_b", "", "a b", "a/b", "höst", "h\n"])
def test_a_host_that_java_cannot_parse_is_never_written(host: str):
    with pytest.raises(ConfigError, match="hostName"):
        format_broker_url(host, 8123)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_never_written(port: int):
    with pytest.raises(ConfigError, match="serverPort"):
        format_broker_url("h", port)


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_each_url_we_write_is_read_back(host: str, port: int):
    assert parse_broker_url("/p", format_broker_url(host, port)) == (host, port)


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"numParts":12,"broker":"0-m"}', 12),
        (b'{"broker":"0-m","numParts":12}', 12),
        (b'{"numParts":"12"}', 12),
        (b'{"numParts":0,"broker":"0-m"}', 0),
        (b"null", None),
    ],
)
def test_counts_are_read_as_java_reads_them(data: bytes, expected: int | None):
    assert parse_partition_count("/p", data) == expected


@pytest.mark.parametrize(
    "data",
    [
        *(b'{"numParts":12,"broker":"0-m","extra":1}', b'{"broker":"0-m"}', b'{"numParts":-1}', b'{"numParts":true}'),
        *(b'{"numParts":1.5}', b'{"numParts":"x"}', b'{"numParts":null}', b"12", b"[]", b"{"),
        b'{"numParts":%d}' % (MAX_PARTITIONS + 1),
    ],
)
def test_counts_that_java_skips_or_that_would_fill_the_memory_are_damage(data: bytes):
    with pytest.raises(CoordinationError, match="/p holds"):
        parse_partition_count("/p", data)


def test_a_checksum_is_unsigned():
    assert format_checksum(-1) == b"4294967295"


# --- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"-5468918097727455232-44", Offset(-5468918097727455232, 44)),
        (b"-1-438", Offset(-1, 438)),
        (b"7-0", Offset(7, 0)),
        (b"438", Offset(-1, 438)),
        (b"0-9223372036854775807", Offset(0, 9223372036854775807)),
    ],
)
def test_an_offset_is_cut_at_its_last_dash(data: bytes, expected: Offset):
    assert parse_offset("/p", data) == expected


@given(INT64, st.integers(0, (1 << 63) - 1))
def test_each_offset_we_write_is_read_back(message_id: int, offset: int):
    assert parse_offset("/p", format_offset(Offset(message_id, offset))) == Offset(message_id, offset)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_reported(data: bytes):
    for parse in (parse_offset, parse_partition_count, parse_broker_url, parse_topics, parse_consumer_id):
        try:
            parse("/p", data)
        except CoordinationError as error:
            assert "/p" in str(error)  # noqa: PT017 - most inputs are fine


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "expected"), [("0-m", (0, None)), ("12-s3", (12, 3))])
def test_a_replica_names_its_broker_and_slave(name: str, expected: tuple[int, int | None]):
    assert parse_replica_name("/p", name) == expected


@pytest.mark.parametrize("name", ["0", "0-x", "m", "0-s", "-1-m", "0-m-1", "a-m"])
def test_another_child_of_a_topic_is_reported(name: str):
    with pytest.raises(CoordinationError, match="/p has the child"):
        parse_replica_name("/p", name)


def test_only_numbers_are_broker_ids():
    assert parse_broker_id("/p", "17") == 17
    for name in ("x", "-1", "", "1a"):
        with pytest.raises(CoordinationError, match="not a broker id"):
            parse_broker_id("/p", name)


def test_only_slave_and_a_number_is_a_slave():
    names = ("slave0", "slave12", "master", "slave", "slavex")
    assert list(map(parse_slave_name, names)) == [0, 12, None, None, None]


# --- broker sets ------------------------------------------------------------------------------------------------------


def test_the_state_of_a_set_is_written_as_zk_paths_md_shows_it():
    state = SetState(4, "a", {"b": "c3", "a": "5e1c9a70"}, "b", ["c", "a"])
    written = b'{"epoch":4,"leader":"a","inSync":{"a":"5e1c9a70","b":"c3"},"preferred":"b","members":["a","b","c"]}'
    assert list(state.in_sync) == ["a", "b"]
    assert format_set_state(state) == written
    assert written.decode() in (Path(__file__).resolve().parents[3] / "zk_paths.md").read_text("utf-8")


@given(
    st.integers(0, 1 << 62),
    st.text(),
    st.dictionaries(st.text(min_size=1), st.text()),
    st.text(),
    st.lists(st.text(min_size=1)),
)
def test_each_state_of_a_set_is_read_as_it_was_written(epoch, leader, in_sync, preferred, members):
    state = SetState(epoch, leader, in_sync, preferred, members)
    assert parse_set_state("/p", format_set_state(state)) == state


WRITTEN: list[tuple[Callable[..., bytes], Callable[[str, bytes | None], object], object, bytes]] = [
    (
        format_set_state,
        parse_set_state,
        SetState(4, "", {"a": "x"}, chosen=4),  # by an operator
        b'{"epoch":4,"leader":"","inSync":{"a":"x"},"preferred":"","members":["a"],"chosen":4}',
    ),
    (
        format_set_node,
        parse_node_a,
        SetNode("a", "meta://[::1]:8123", "eu-1", "5e1c9a70"),
        b'{"url":"meta://[::1]:8123","zone":"eu-1","instance":"5e1c9a70"}',
    ),
    (
        format_set_node,
        parse_node_a,
        SetNode("a", "meta://h:1", "", "x", epoch=7),
        b'{"url":"meta://h:1","zone":"","instance":"x","epoch":7}',
    ),
    (format_consumer_zone, parse_consumer_zone, "west", b'{"strategy":"zone","zone":"west"}'),
    (format_group_zones, parse_group_zones, {10: "w\u00e9st", 1: "east"}, b'{"1":"east","10":"w\\u00e9st"}'),
    (format_zone, parse_zone, "w\u00e9st", "w\u00e9st".encode()),
    (
        format_consumer_filter,
        parse_consumer_filter,
        {"trades": ConsumerFilter(("buy", "sell"), "venue = 'XETRA'"), "a": ConsumerFilter()},
        b'{"a":{},"trades":{"tags":["buy","sell"],"where":"venue = \'XETRA\'"}}',
    ),
    (format_begun, parse_begun, Begun(4096, 1), b'{"offset":4096,"alone":1}'),
    (format_begun, parse_begun, Begun(), b"{}"),
]


@pytest.mark.parametrize(("write", "parse", "value", "written"), WRITTEN)
def test_a_payload_is_written_as_zk_paths_md_shows_it_and_read_again(write, parse, value, written: bytes):
    assert write(value) == written
    assert parse("/p", written) == value


LATER: list[tuple[Callable[[str, bytes | None], object], bytes, object]] = [
    (
        parse_set_state,
        b'{"epoch":1,"leader":"","inSync":{"b":"y","a":"x"},"preferred":"","members":[],"weights":{"a":2}}',
        SetState(1, "", {"a": "x", "b": "y"}),
    ),
    (parse_node_a, b'{"url":"meta://h:1","zone":"","instance":"x","rack":7}', SetNode("a", "meta://h:1", "", "x")),
    (parse_consumer_zone, b'{"strategy":"zone","zone":"west","rack":7}', "west"),
    (parse_consumer_zone, b'{"strategy":"zone-2"}', None),
    (parse_consumer_filter, b'{"t":{"tags":["b","a"],"rack":7}}', {"t": ConsumerFilter(("a", "b"))}),
    (parse_begun, b'{"offset":4096,"alone":1,"rack":7}', Begun(4096, 1)),
]


@pytest.mark.parametrize(("parse", "data", "value"), LATER)
def test_what_a_later_version_adds_is_ignored(parse, data: bytes, value):
    assert parse("/p", data) == value


def test_a_revoked_state_elects_nobody_and_keeps_what_operators_have_said():
    revoked = SetState(4, "a", {"a": "x", "b": "y"}, "b", ["c"], 2).revoked()
    assert revoked.is_revoked
    assert revoked == SetState(4, "", {}, "b", ["a", "b", "c"], 2)
    assert not revoked.has_in_sync("a", "x")


@pytest.mark.parametrize(
    ("epoch", "in_sync", "chosen", "revokes"),
    [(3, "ab", 0, True), (2, "ab", 0, True), (4, "ab", 0, False), (3, "b", 3, False), (3, "", 0, False)],
)
def test_an_older_state_is_revoked_unless_somebody_was_elected_or_chosen_by_it(epoch, in_sync, chosen, revokes):
    newest = SetState(3, "a", {"a": "x"}, chosen=1)
    assert may_revoke(SetState(epoch, "", dict.fromkeys(in_sync, "x"), chosen=chosen), newest) is revokes


# --- moves ------------------------------------------------------------------------------------------------------------


@given(st.sampled_from(MoveState), st.integers(-1, 999), st.lists(st.integers(0, 1 << 62)), st.text())
def test_each_state_of_a_move_is_read_as_it_was_written(state: MoveState, first: int, ends: list[int], note: str):
    move = Move("t", 0, 2, 3, 1, 1000, state, first, tuple(ends), note)
    assert parse_move("/p", "t", move.name, format_move(move)) == move


def test_a_move_reads_as_the_page_says_and_unknown_fields_are_ignored():
    data = b'{"state":"copying","count":2,"to":"1-4","rate":52428800,"later":1}'
    assert parse_move("/p", "t", "0-2", data) == Move("t", 0, 2, 2, 1, 52428800, MoveState.COPYING, 4)
    assert parse_move("/p", "t", "0-2", None) is None


# --- damage -----------------------------------------------------------------------------------------------------------

NO_OBJECT = [b"\xff", b"nonsense", b"[]", b"7"]

DAMAGED: dict[str, tuple[Callable[[str, bytes], object], str, list[bytes]]] = {
    "offset": (
        parse_offset,
        "/meta/consumers/g/offsets/t/0-0",
        [b"x", b"1-", b"a-1", b"1-b", b"1--2", b"1-99999999999999999999", b"1 - 2", b"\xff"],
    ),
    "filter of a consumer": (
        parse_consumer_filter,
        "/meta/consumers/g/filters/g_c",
        [*NO_OBJECT, b'{"t":7}', b'{"t":{"tags":"a"}}', b'{"t":{"where":7}}'],
    ),
    "begun message": (
        parse_begun,
        "/meta/consumers/g/begun/t/0-0",
        [*NO_OBJECT, b'{"offset":"4"}', b'{"offset":4,"alone":null}'],
    ),
    "zone of a consumer": (
        parse_consumer_zone,
        "/meta/consumers/g/zones/g_c",
        [*NO_OBJECT, b"{}", b'{"strategy":"zone","zone":7}'],
    ),
    "zones of a group": (parse_group_zones, "/meta/consumers/g/zones", [*NO_OBJECT, b'{"a":"east"}', b'{"0":7}']),
    "state of a set": (
        parse_set_state,
        "/meta/brokers/sets/0",
        [
            *NO_OBJECT,
            b'{"epoch":1,"leader":"a","inSync":{"a":"x"}}',
            b'{"epoch":-1,"leader":"a","inSync":{"a":"x"},"preferred":""}',
            b'{"epoch":true,"leader":"a","inSync":{"a":"x"},"preferred":""}',
            b'{"epoch":"1","leader":"a","inSync":{"a":"x"},"preferred":""}',
            b'{"epoch":1,"leader":null,"inSync":{"a":"x"},"preferred":""}',
            b'{"epoch":1,"leader":"a","inSync":"ab","preferred":""}',
            b'{"epoch":1,"leader":"a","inSync":["a"],"preferred":""}',
            b'{"epoch":1,"leader":"a","inSync":{"":"x"},"preferred":""}',
            b'{"epoch":1,"leader":"a","inSync":{"a":2},"preferred":""}',
        ],
    ),
    "node of a set": (
        parse_node_a,
        "/meta/brokers/sets/0/nodes/a",
        [
            *(b"nonsense", b"[]", b'{"url":"meta://h:1","zone":""}', b'{"url":"h:1","zone":"","instance":"x"}'),
            b'{"url":"meta://h:1","zone":null,"instance":"x"}',
            *(b'{"url":"meta://h:1","zone":"","instance":""}', b'{"url":"meta://h:1","zone":"","instance":7}'),
            b'{"url":"meta://h:1","zone":"","instance":"x","epoch":"7"}',
        ],
    ),
    "move": (
        lambda path, data: parse_move(path, "t", "0-2", data),
        "/meta/moves/t/0-2",
        [
            *(b"{}", b"[]", b"x", b'{"state":"later","count":2,"to":"1-4","rate":1}'),
            *(b'{"state":"done","count":0,"to":"1-4","rate":1}', b'{"state":"done","count":2,"to":"1-","rate":1}'),
            *(b'{"state":"done","count":2,"to":1,"rate":1}', b'{"state":"done","count":2,"to":"1","rate":0}'),
            b'{"state":"done","count":2,"to":"1-4","rate":1,"ends":[-1]}',
        ],
    ),
}


@pytest.mark.parametrize(("what", "data"), [(what, data) for what, (_, _, wrong) in DAMAGED.items() for data in wrong])
def test_what_is_damaged_is_an_error_that_names_the_znode(what: str, data: bytes):
    parse, path, _ = DAMAGED[what]
    with pytest.raises(CoordinationError, match=f"{path} "):
        parse(path, data)
