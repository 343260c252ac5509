"""Which rights the policy gives to each znode, and which identities it refuses."""

import inspect

import pytest

from metaq.coordination.records.acl_policy import (
    ALL,
    ANYBODY,
    CREATE,
    MAX_IDENTITIES,
    READ,
    AclPolicy,
    Area,
    Areas,
    ZooKeeperIdentity,
)
from metaq.coordination.records.paths import Paths, ancestors
from metaq.coordination.records.security_payloads import format_acl_policy, parse_acl_policy
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError, CoordinationError

LOGIN = ZooKeeperLogin("metaq", "sixteen characters")
BROKER, LEGACY = ZooKeeperIdentity.parse("x509:CN=mq1"), ZooKeeperIdentity.parse("ip:10.0.0.0/8")
POLICY = AclPolicy.of(["x509:CN=mq1"], ["ip:10.0.0.0/8"])

AREAS = {
    **dict.fromkeys(("users", "user"), Area.SECRET),
    "groups": Area.ENTRY,
    **dict.fromkeys(("topics_pub", "topics_sub"), Area.TOPICS),
    **dict.fromkeys(("spark_writes", "spark_write"), Area.CLIENT),
    **dict.fromkeys(("group_ids", "consumer", "group_zones", "consumer_zone"), Area.CLIENT),
    **dict.fromkeys(("group_filters", "consumer_filter"), Area.CLIENT),
    **dict.fromkeys(("group_begun", "begun_of_topic", "begun"), Area.CLIENT),
    **dict.fromkeys(("group_owners", "owners", "owner"), Area.CLIENT),
    **dict.fromkeys(("group_offsets", "offsets", "offset"), Area.CLIENT),
    **dict.fromkeys(("broker_ids", "broker", "master", "slave", "master_config_checksum"), Area.CLUSTER),
    **dict.fromkeys(("broker_zones", "broker_zone", "broker_listeners_parent", "broker_listeners"), Area.CLUSTER),
    **dict.fromkeys(("broker_sets", "broker_set", "set_nodes", "set_node"), Area.CLUSTER),
    **dict.fromkeys(("moves", "topic_moves", "move"), Area.CLUSTER),
    **dict.fromkeys(("topics", "topic", "topic_broker"), Area.CLUSTER),
    **dict.fromkeys(("topic_pub", "topic_pub_broker", "topic_sub", "topic_sub_broker"), Area.CLUSTER),
    **dict.fromkeys(("security", "acl_policy"), Area.CLUSTER),
}


def paths_of(root: str) -> dict[str, str]:
    paths = Paths(root)
    methods = inspect.getmembers(paths, inspect.ismethod)
    return {
        name: method(*("0" for _ in inspect.signature(method).parameters))
        for name, method in methods
        if not name.startswith("_")
    }


@pytest.mark.parametrize("root", ["/meta", "/a/b", ""])
def test_every_path_of_zk_paths_md_has_the_area_that_is_written_here(root: str):
    built, areas = paths_of(root), Areas(Paths(root))
    assert built.keys() == AREAS.keys()
    assert {name: areas.of(path) for name, path in built.items()} == AREAS
    above = {each for path in built.values() for each in ancestors(path)}
    inside = {each for each in above if each.startswith(root + "/") or (root and each == root)}
    assert len(inside) > 8
    assert not [each for each in inside if areas.of(each) is None]


@pytest.mark.parametrize("path", ["/zookeeper", "/metab/brokers", "/meta/other", "/"])
def test_a_znode_that_is_not_ours_has_no_area(path: str):
    assert Areas(Paths("/meta")).of(path) is None


def test_each_area_gives_brokers_clients_and_strangers_their_rights():
    def rights(area: Area) -> dict[ZooKeeperIdentity, int]:
        return {each.identity: each.permissions for each in POLICY.rights(area)}

    assert rights(Area.CLUSTER) == {BROKER: ALL, ANYBODY: READ}
    assert rights(Area.SECRET) == {BROKER: ALL}
    assert rights(Area.ENTRY) == {BROKER: ALL, ANYBODY: READ, LEGACY: READ | CREATE}
    assert rights(Area.TOPICS) == {BROKER: ALL, ANYBODY: READ, LEGACY: READ | CREATE}
    assert rights(Area.CLIENT) == {BROKER: ALL, ANYBODY: READ, LEGACY: ALL}
    everybody = AclPolicy.of([str(BROKER), str(LEGACY)], ["world:anyone", str(LEGACY)])
    assert {each.identity: each.permissions for each in everybody.rights(Area.ENTRY)} == {
        BROKER: ALL,
        LEGACY: ALL,
        ANYBODY: READ | CREATE,
    }
    assert {each.identity: each.permissions for each in everybody.rights(Area.TOPICS)}[ANYBODY] == READ


@pytest.mark.parametrize(
    "identity",
    [
        *("", "mq1", "sasl:mq1", "x509:", "world:all", "digest:metaq:password", "digest:metaq"),
        *("ip:mq1", "ip:10.0.0.0/40", "x509:CN=\n", "x509:" + "x" * 600),
    ],
)
def test_an_identity_that_no_zookeeper_accepts_is_refused(identity: str):
    with pytest.raises(ConfigError, match="cluster="):
        AclPolicy.of([identity])


@pytest.mark.parametrize("cluster", [[], ["world:anyone"], [f"x509:CN={n}" for n in range(MAX_IDENTITIES + 1)]])
def test_a_cluster_of_nobody_everybody_or_too_many_is_refused(cluster: list[str]):
    with pytest.raises(ConfigError, match="cluster="):
        AclPolicy.of(cluster)


def test_identities_that_look_wrong_are_named():
    policy = AclPolicy.of(["x509:CN=a, O=b", "x509:mq1", "x509:CN=mq1"], ["ip:0.0.0.0/0", "ip:10.0.0.0/8"])
    assert [each.split(" ")[0] for each in policy.warnings] == ["x509:CN=a,", "x509:mq1", "ip:0.0.0.0/0"]


def test_the_policys_payload_comes_back_and_a_damaged_one_is_named():
    policy = AclPolicy.of([LOGIN.identity], ["world:anyone"])
    assert parse_acl_policy("p", format_acl_policy(policy)) == policy
    for data in (None, b"", b"[]", b"{}", b'{"cluster":"x509:CN=a"}', b'{"cluster":["root"]}', b'{"cluster":[1]}'):
        with pytest.raises(CoordinationError, match="p is damaged"):
            parse_acl_policy("p", data)


def test_a_password_goes_without_tls_only_to_this_machine():
    for connect in ("127.0.0.1:2181", "localhost:2181,[::1]:2182/chroot"):
        ZkSession(connect, login=LOGIN)
    with pytest.raises(ConfigError, match=r"only by TLS: name its CA"):
        ZkSession("127.0.0.1:2181,zk1.example:2181", login=LOGIN)


@pytest.mark.parametrize(("user", "password"), [("", "x" * 16), ("a:b", "x" * 16), ("metaq", "x" * 15)])
def test_a_login_that_cannot_be_used_or_can_be_guessed_is_refused(user: str, password: str):
    with pytest.raises(ConfigError) as refused:
        ZooKeeperLogin(user, password)
    assert password not in str(refused.value)
    assert LOGIN.password not in repr(LOGIN)
