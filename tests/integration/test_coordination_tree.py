"""zk_paths.md, golden/zookeeper.json and the tree of a live cluster: all three must agree."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.groups.membership import GroupMembership, new_consumer_id
from metaq.coordination.moves.move_nodes import Moves
from metaq.coordination.offsets.begun_marks import BegunMarks
from metaq.coordination.offsets.offset_store import ZooKeeperOffsetStore
from metaq.coordination.records.acl_policy import AclPolicy
from metaq.coordination.records.move_payloads import Move
from metaq.coordination.records.payloads import Begun, ConsumerFilter, format_topics, parse_offset, parse_topics
from metaq.coordination.records.security_payloads import format_acl_policy
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import create_ephemeral
from metaq.coordination.sets.broker_set import BrokerSet, SetNode, SetState
from metaq.protocol.errors import SessionLost
from tests.integration.coordination_helpers import session_at, tree

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests/data/golden/zookeeper.json").read_text("utf-8"))["nodes"]
ROW = re.compile(r"\| `R/([^`]+)` \| `[a-z_]+` \| (persistent|ephemeral) \|")
PATTERNS = {
    "<b>-<p>": r"\d+-\d+",
    "<replica>": r"\d+-(?:m|s\d+)",
    "<b>": r"\d+",
    "<s>": r"\d+",
    "<N>": "[^/]+",
    "<T>": "[^/]+",
    "<G>": "[^/]+",
    "<C>": "[^/]+",
    "<Q>": "[^/]+",
    "<U>": "[^/]+",
}

OURS_ALONE = re.compile(
    "/meta/(?:security|spark|brokers/(?:sets|moves|zones|listeners)|consumers/.+/(?:zones|filters|begun))(?:/|$)"
)
"""Of paths that no Java program knows: not in a cluster that was recorded from it."""

GENERATED = re.compile(r"_[\d.]+-\d+-\d+-\d+")
"""Of a consumer id: ip, process id, milliseconds, number."""

Tree = dict[str, tuple[bytes | None, bool]]


def documented() -> list[tuple[re.Pattern[str], str]]:
    """A pattern for each path of zk_paths.md, and its kind."""
    rows = ROW.findall((ROOT / "zk_paths.md").read_text("utf-8"))
    assert len(rows) > 20
    compiled = []
    for path, kind in rows:
        pattern = re.escape(path)
        for placeholder, expression in PATTERNS.items():
            pattern = pattern.replace(re.escape(placeholder), expression)
        compiled.append((re.compile(f"/meta/{pattern}"), kind))
    return compiled


@pytest.fixture
def sessions(chroot: str) -> Iterator[list[ZkSession]]:
    with ExitStack() as stack:
        yield [stack.enter_context(session_at(chroot)) for _ in range(5)]


def replicate(session: ZkSession) -> None:
    """The nodes of an asynchronous slave of 1.x: a consumer without owner nodes and offsets (zookeeper.md §6)."""
    group = "meta-slave-group"
    session.nodes.ensure([session.paths.group_ids(group)])
    path = session.paths.consumer(group, new_consumer_id(group))
    session.nodes.write(session.session_id, [create_ephemeral(path, format_topics(["orders", "events"]))])


@pytest.fixture
def live(sessions: list[ZkSession]) -> Tree:
    """The cluster of golden/zookeeper.json, made by metaq: a master, a slave, two consumers, one producer."""
    topics = [TopicRegistration("orders", 3), TopicRegistration("events", 12)]
    BrokerRegistration(sessions[0], BrokerAddress(0, None, "127.0.0.1", 28223), 1929209308).register(topics)
    BrokerRegistration(sessions[1], BrokerAddress(0, 0, "127.0.0.1", 28224)).register(topics)
    replicate(sessions[1])
    members = [
        GroupMembership(session, "g1", consumer_id, ["orders", "events"], lambda: None)
        for session, consumer_id in ((sessions[2], None), (sessions[3], "c1"))
    ]
    for member in members:
        member.join()
    for node in GOLDEN:
        _, found, place = node["path"].partition("/owners/")
        if found and "/" in place:
            member = members[1] if node["data"] == "g1_c1" else members[0]
            assert member.claim(*place.split("/"))
    offsets = {
        tuple(place.split("/")): parse_offset(node["path"], node["data"].encode())
        for node in GOLDEN
        if "/" in (place := node["path"].partition("/offsets/")[2])
    }
    assert len(offsets) > 5
    ZooKeeperOffsetStore(sessions[2]).commit("g1", offsets, members[0].session_id)  # type: ignore[arg-type]
    ClusterView(sessions[4]).watch_topic("never-configured", lambda _topic: None)
    return tree(sessions[4].zk)


def test_each_node_of_a_live_cluster_is_documented_with_its_kind(live: Tree):
    rows = documented()
    leading = {"/meta", "/meta/brokers", "/meta/consumers/g1", "/meta/consumers/meta-slave-group"}
    unexpected = {
        path: ephemeral
        for path, (_, ephemeral) in live.items()
        if path not in leading
        and ((ephemeral and "ephemeral") or "persistent") not in [kind for row, kind in rows if row.fullmatch(path)]
    }
    assert len(live) > 50
    assert unexpected == {}


def make_a_set(first: ZkSession, _second: ZkSession) -> None:
    part = BrokerSet(first, 0, SetNode("a", "meta://127.0.0.1:8123", "", "5e1c9a70"), lambda _view: None)
    part.start()
    assert part.create(SetState(1, "a", {"a": "x"}))


def make_a_move(first: ZkSession, _second: ZkSession) -> None:
    assert Moves(first).begin(Move("orders", 0, 1, 2, target=1, rate=1000))


def make_filters(first: ZkSession, _second: ZkSession) -> None:
    GroupMembership(first, "g1", "c1", ["orders"], lambda: None, takes=ConsumerFilter(("buy",))).join()


def make_begun_messages(first: ZkSession, _second: ZkSession) -> None:
    BegunMarks(first, "g1").make([("orders", "0-0")], first.session_id)


def make_zones(first: ZkSession, second: ZkSession) -> None:
    BrokerRegistration(first, BrokerAddress(0, None, "127.0.0.1", 28223), zone="east").register()
    GroupMembership(second, "g1", "c1", ["orders"], lambda: None, zone="east").join()


def make_a_user(first: ZkSession, _second: ZkSession) -> None:
    SecurityAdmin(first).add_user("app", None, [])
    first.zk.create(first.paths.acl_policy(), format_acl_policy(AclPolicy.of(["ip:127.0.0.1"], [])))


@pytest.mark.parametrize(
    ("make", "word", "count"),
    [
        (make_a_set, "/sets", 4),
        (make_a_move, "/moves", 3),
        (make_filters, "/filters", 2),
        (make_begun_messages, "/begun", 3),
        (make_zones, "/zones", 4),
        (make_a_user, "/security", 4),
    ],
)
def test_each_node_that_no_java_program_writes_is_documented_with_its_kind(
    sessions: list[ZkSession], make: Callable[[ZkSession, ZkSession], None], word: str, count: int
):
    """And each row with this word has such a node."""
    make(sessions[0], sessions[1])
    found = {path: ephemeral for path, (_, ephemeral) in tree(sessions[0].zk).items() if OURS_ALONE.match(path)}
    rows = [(row, kind == "ephemeral") for row, kind in documented() if word in row.pattern]
    assert len(rows) == len(found) == count
    assert all(any(row.fullmatch(path) and found[path] == kind for path in found) for row, kind in rows)


def test_begun_messages_are_kept_until_the_partition_is_given_up(sessions: list[ZkSession]):
    marks, here, there = BegunMarks(sessions[0], "g1"), ("orders", "0-0"), ("orders", "0-1")
    fence = sessions[0].session_id
    assert marks.load([here, there]) == [None, None]
    marks.make([here, there], fence)
    marks.write(here, Begun(4096, 1), fence)
    marks.make([here], fence)  # what is there stays
    assert BegunMarks(sessions[1], "g1").load([here, there]) == [Begun(4096, 1), Begun()]
    with pytest.raises(SessionLost):
        marks.write(here, Begun(5, 1), sessions[1].session_id)
    marks.remove({here: fence, there: fence})
    assert marks.load([here, there]) == [None, None]
    marks.write(here, Begun(7), fence)  # as if somebody had deleted it
    assert marks.load([here]) == [Begun(7)]


def test_each_documented_path_exists_in_a_live_cluster(live: Tree):
    rows = [row for row, _ in documented() if not OURS_ALONE.match(row.pattern)]
    assert [row.pattern for row in rows if not any(row.fullmatch(path) for path in live)] == []


def test_the_tree_equals_that_recorded_from_java(live: Tree):
    """Paths, kinds and payloads; generated ids and the orders that Java leaves open apart."""
    java = {comparable(node["path"], node["data"], node["kind"] == "ephemeral") for node in GOLDEN}
    ours = {comparable(path, data.decode() if data else None, ephemeral) for path, (data, ephemeral) in live.items()}
    assert ours == java
    assert len(live) == len(GOLDEN)


def comparable(path: str, data: str | None, ephemeral: bool) -> tuple[str, object, bool]:
    meaning: object = data and GENERATED.sub("_*", data)
    if data and "/topics-" in path:
        fields = json.loads(data)
        meaning = (fields.pop("numParts"), fields.pop("broker"), str(fields))
    elif data and "/consumers/" in path and "/ids/" in path:
        meaning = tuple(sorted(parse_topics(path, data.encode())))
    return GENERATED.sub("_*", path), meaning, ephemeral
