"""The policy of access rights on the standalone ZooKeeper: who may write what, and what new znodes get."""

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from metaq import Consumer
from metaq.broker.standalone.in_process import InProcessZooKeeper
from metaq.coordination.records.acl_policy import Area
from metaq.coordination.runtime.zookeeper_login import ZooKeeperLogin
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.security.zookeeper_acls import apply_policy, check_rights, open_rights, read_policy
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.session.znodes import check_version, create_ephemeral, create_persistent, delete, set_data
from metaq.protocol.access import AccessMode
from metaq.protocol.errors import ClientError, CoordinationRefused
from tests.waiting import DEADLINE, eventually

BROKER = ZooKeeperLogin("metaq", "password of brokers")
CLIENT = ZooKeeperLogin("apps", "password of clients")


@pytest.fixture
def server() -> Iterator[InProcessZooKeeper]:
    with InProcessZooKeeper() as server:
        yield server


def opened(server: InProcessZooKeeper, login: ZooKeeperLogin | None) -> ZkSession:
    return ZkSession(server.connect_string, login=login)


def applied(session: ZkSession) -> None:
    apply_policy(session, [BROKER.identity], [CLIENT.identity])


def differing(session: ZkSession) -> int:
    return check_rights(session, read_policy(session)).differing


def written(session: ZkSession, *writes) -> list:
    return session.nodes.write(session.session_id, list(writes))


def test_only_the_cluster_writes_its_znodes_and_only_clients_write_theirs(server: InProcessZooKeeper):
    with opened(server, BROKER) as broker, opened(server, CLIENT) as client, opened(server, None) as stranger:
        paths = broker.paths
        offset, topic = paths.offset("g", "t", "0-0"), paths.topic_pub("t")
        stranger.nodes.ensure([offset, paths.broker(0), topic])  # before the policy
        applied(broker)
        SecurityAdmin(broker).add_user("shop", "password", [])
        written(broker, set_data(paths.broker(0), b"url"), create_ephemeral(paths.master(0), b"url"))
        written(client, set_data(offset, b"7"))
        client.nodes.ensure([paths.offset("new", "t", "0-0")])
        assert differing(broker) == 0  # also what a client and a broker have created since
        assert stranger.nodes.get_many([offset, paths.master(0)])[0].data == b"7"  # type: ignore[union-attr]
        for session, write in (
            (stranger, delete(offset)),
            (stranger, set_data(offset, b"0")),
            (stranger, create_ephemeral(paths.topic_pub_broker("t", "0-m"), b"")),
            (client, set_data(paths.broker(0), b"mine")),
            (client, set_data(paths.acl_policy(), b"{}")),
            (client, create_ephemeral(paths.topic_pub_broker("t", "0-m"), b"")),
            (client, delete(paths.user("shop"))),
        ):
            with pytest.raises(
                CoordinationRefused, match=rf"{write.path}: it identifies itself as .*acl says for whom"
            ):
                written(session, write)
            with pytest.raises(CoordinationRefused, match=f"{write.path}:"):
                session.nodes.write_atomically(session.session_id, [check_version(paths.root, 0), write])
        for session in (client, stranger):
            with pytest.raises(CoordinationRefused, match="security/users"):
                SecurityAdmin(session).read()
            with pytest.raises(CoordinationRefused, match="security/users/shop"):
                session.nodes.get_many([offset, paths.user("shop")])
        with pytest.raises(CoordinationRefused, match="/meta/consumers/h"):
            stranger.nodes.ensure([paths.offset("h", "t", "0-0")])
        with pytest.raises(CoordinationRefused, match="topics-pub/new"):
            client.nodes.ensure([paths.topic_pub("new")])


def test_a_policy_counts_for_sessions_that_were_open_before_and_after_their_reconnection(server: InProcessZooKeeper):
    with opened(server, BROKER) as operator, opened(server, BROKER) as broker:
        paths, nodes = broker.paths, broker.nodes
        nodes.ensure([paths.offsets("g", "t")])  # reads that there is no policy, and watches
        applied(operator)
        operator.nodes.sync(paths.acl_policy())
        nodes.sync(paths.acl_policy())  # its answer comes after the watch's event
        nodes.ensure([paths.group_ids("g"), paths.offsets("g", "t2")])
        written(broker, create_ephemeral(paths.consumer("g", "c"), b"t"))
        assert differing(operator) == 0
        connections = broker.connections
        broker.zk.interrupt()
        eventually(lambda: broker.connections > connections)
        written(broker, create_persistent(paths.broker_set(7), b"{}"))  # needs the login again
        open_rights(operator)
        nodes.sync(paths.acl_policy())
        nodes.ensure([paths.offsets("g", "t3")])
        assert check_rights(operator, None).differing == 0


def test_check_finds_what_programs_without_a_policy_create_and_apply_sets_it(server: InProcessZooKeeper):
    with opened(server, BROKER) as broker:
        applied(broker)
        paths = broker.paths
        older = KazooClient(server.connect_string, auth_data=[("digest", BROKER.credentials)])
        older.start()
        try:
            older.create(paths.slave(3, 1), b"", ephemeral=True, makepath=True)
            older.ensure_path(paths.owners("old", "t"))
            report = check_rights(broker, read_policy(broker))
            assert {area: (each.differing, each.first) for area, each in report.areas.items()} == {
                Area.CLUSTER: (2, paths.broker(3)),
                Area.SECRET: (0, ""),
                Area.ENTRY: (0, ""),
                Area.TOPICS: (0, ""),
                Area.CLIENT: (3, "/meta/consumers/old"),
            }
            assert apply_policy(broker, [BROKER.identity], [CLIENT.identity], dry_run=True).differing == 5
            report = apply_policy(broker, [BROKER.identity], [CLIENT.identity])
            assert (report.changed, report.differing, differing(broker)) == (5, 0, 0)
        finally:
            older.stop()
            older.close()


def test_a_command_that_would_lock_itself_out_changes_nothing(server: InProcessZooKeeper):
    with opened(server, CLIENT) as client, opened(server, BROKER) as broker:
        client.nodes.ensure([client.paths.broker_ids()])
        for dry_run in (True, False):
            with pytest.raises(
                ClientError, match=r"no identity of `cluster`.*add its own identity, which is digest:apps"
            ):
                apply_policy(client, [BROKER.identity], dry_run=dry_run)
        assert read_policy(client) is None
        assert client.nodes.children(client.paths.root) == ["brokers"]
        applied(broker)
        with pytest.raises(CoordinationRefused):
            apply_policy(client, [CLIENT.identity])
        with pytest.raises(CoordinationRefused):
            open_rights(client)
        assert differing(broker) == 0


def test_a_znode_that_a_client_has_closed_to_the_cluster_is_named_and_stops_nothing(server: InProcessZooKeeper):
    with opened(server, BROKER) as broker, opened(server, CLIENT) as client:
        paths = broker.paths
        applied(broker)
        client.nodes.ensure([paths.group_owners("g")])
        mine = [make_acl("digest", CLIENT.identity.removeprefix("digest:"), all=True)]
        client.zk.create(paths.owners("g", "a"), b"", acl=mine)
        client.zk.create(paths.owners("g", "b"), b"")
        report = apply_policy(broker, [BROKER.identity], [CLIENT.identity])
        assert (report.changed, report.differing) == (1, 1)
        assert report.areas[Area.CLIENT].first == paths.owners("g", "a")
        written(broker, delete(paths.owners("g", "a")))
        assert differing(broker) == 0


def test_a_first_policy_neither_opens_nor_closes_the_mode_of_a_cluster(server: InProcessZooKeeper):
    with opened(server, BROKER) as broker:
        apply_policy(broker, [BROKER.identity], first_mode=AccessMode.OBSERVE)
        assert SecurityAdmin(broker).read().mode is AccessMode.OBSERVE
        SecurityAdmin(broker).add_user("shop", "password", [])
        apply_policy(broker, [BROKER.identity])
        state = SecurityAdmin(broker).read()
        assert (state.mode, list(state.users), state.damaged) == (AccessMode.OBSERVE, ["shop"], {})


def test_a_consumer_without_rights_is_told_and_goes_on_when_it_gets_them(server: InProcessZooKeeper):
    with opened(server, BROKER) as broker:
        applied(broker)
        with Consumer(server.connect_string, group="g", topics=["t"]) as consumer:
            for _ in range(2):
                with pytest.raises(CoordinationRefused, match=r"/meta/.*: it identifies itself as nobody but its"):
                    consumer.poll(timeout=DEADLINE)
            apply_policy(broker, [BROKER.identity], ["ip:127.0.0.1"])
            eventually(lambda: broker.nodes.children(broker.paths.group_ids("g")))


def test_a_transaction_has_room_for_the_longest_policy(server: InProcessZooKeeper):
    """The rights are part of each creation, and a server closes the connection of a request beyond 1 MB."""
    names = ["x509:CN=mq1"]
    with opened(server, BROKER) as broker:
        with pytest.raises(ClientError, match="x509"):  # which this server does not know
            apply_policy(broker, [BROKER.identity, *names])
        users = [f"digest:{'u' * 200}{number:02}:{BROKER.identity.rpartition(':')[2]}" for number in range(30)]
        apply_policy(broker, [BROKER.identity, *users])
        topics = [broker.paths.topic(f"t{number}") for number in range(200)]
        assert written(broker, *(create_persistent(path, b"") for path in topics)) == [None] * 200
        assert differing(broker) == 0
