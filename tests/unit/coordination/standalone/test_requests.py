"""What requests are answered: what ZooKeeper 3.9.5 answers, by its sources and its server."""

import struct

import pytest
from kazoo.security import make_digest_acl_credential

from metaq.coordination.standalone.codes import PACKET_LIMIT, OpCode, RefusalCode
from metaq.coordination.standalone.jute import MOST_ACLS, Acl, encode_buffer, encode_text
from metaq.coordination.standalone.tree import INT_MAX
from tests.unit.coordination.standalone.harness import (
    CONTAINER,
    EPHEMERAL,
    SEQUENTIAL,
    TTL,
    Client,
    Server,
    Stat,
    create_body,
    multi_body,
    results_of,
)

UNKNOWN_OPERATION = 99
DELETE_CONTAINER, CREATE_SESSION = 20, -10


def test_a_node_is_created_read_changed_and_deleted(client: Client):
    assert client.create("/a", b"one").reader.text() == "/a"
    assert client.data("/a") == b"one"
    assert Stat.read(client.set_data("/a", b"three").reader).version == 1
    assert client.data("/a") == b"three"
    assert client.delete("/a", 1).code == 0
    assert client.data("/a") == RefusalCode.NO_NODE


def test_a_new_server_has_the_nodes_of_zookeeper_itself(client: Client):
    assert client.children("/") == ["zookeeper"]
    assert client.children("/zookeeper") == ["quota", "config"]
    assert client.stat("/zookeeper/config") == Stat(0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0)


def test_a_write_stamps_its_node_and_the_parent(server: Server, client: Client):
    client.create("/a")
    created = server.core.database.zxid
    server.ms += 5
    client.create("/a/b", b"xy")
    client.create("/a/c")
    client.delete("/a/c")
    parent, child = client.stat("/a"), client.stat("/a/b")
    assert parent == Stat(
        created, created, parent.ctime, parent.ctime, version=0, cversion=3, aversion=0, owner=0, data_length=0,
        children=1, pzxid=created + 3,
    )  # fmt: skip
    assert (child.czxid, child.ctime - parent.ctime, child.data_length) == (created + 1, 5, 2)


def test_null_data_stay_null(client: Client):
    client.create("/a", None)
    assert client.ask(OpCode.GET_DATA, encode_text("/a") + b"\0").reader.buffer() is None
    assert client.stat("/a").data_length == 0


BAD, NO_NODE, EXISTS = RefusalCode.BAD_ARGUMENTS, RefusalCode.NO_NODE, RefusalCode.NODE_EXISTS
PATHS: dict[int, list[str]] = {
    0: ["/...", "/a.", "/a ", "/ä", "/\uffef"],
    BAD: [
        *("", "a", "/there/", "//a", "/.", "/.."),
        *("/a\0b", "/a\x1f", "/a\x7f", "/\ue000", "/\ufff0", "/\U0001f600"),
    ],
    NO_NODE: ["/a/", "/there/../a", "/missing/a"],
    EXISTS: ["/", "/there"],
}


@pytest.mark.parametrize(("path", "code"), [(path, code) for code, paths in PATHS.items() for path in paths])
def test_a_path_is_checked_as_apache_checks_it(client: Client, path: str, code: int):
    client.create("/there")
    assert client.create(path).code == code


def test_sequential_names_have_ten_digits_and_count_creations(client: Client):
    client.create("/q")
    names = [client.create("/q/n-", mode=SEQUENTIAL).reader.text() for _ in range(2)]
    client.delete("/q/n-0000000000")
    names.append(client.create("/q/n-", mode=SEQUENTIAL).reader.text())
    assert names == ["/q/n-0000000000", "/q/n-0000000001", "/q/n-0000000002"]
    assert client.create("/q/", mode=SEQUENTIAL).reader.text() == "/q/0000000003"


def test_a_count_of_creations_at_its_end_stays_there(server: Server, client: Client):
    client.create("/q")
    node = server.core.database.tree.nodes["/q"]
    node.cversion, before = INT_MAX, node.pzxid
    assert client.create("/q/n", mode=SEQUENTIAL).reader.text() == "/q/n2147483647"
    assert (node.cversion, node.pzxid) == (INT_MAX, before)
    assert client.create("/q/n", mode=SEQUENTIAL).code == RefusalCode.NODE_EXISTS


def test_in_a_multi_the_count_of_creations_overflows(server: Server, client: Client):
    client.create("/q")
    server.core.database.tree.nodes["/q"].cversion = INT_MAX
    create = (OpCode.CREATE, create_body("/q/n", mode=SEQUENTIAL))
    assert results_of(client.multi(create, create)) == [(OpCode.CREATE, 0), (OpCode.CREATE, 0)]
    assert set(client.children("/q")) == {"n2147483647", "n-2147483648"}


def test_versions_overflow_and_minus_one_is_any(server: Server, client: Client):
    client.create("/a")
    node = server.core.database.tree.nodes["/a"]
    node.version = INT_MAX
    assert Stat.read(client.set_data("/a", b"", INT_MAX).reader).version == -(2**31)
    node.version = -2
    assert client.set_data("/a", b"", -3).code == RefusalCode.BAD_VERSION
    assert Stat.read(client.set_data("/a", b"", -2).reader).version == -1
    assert Stat.read(client.set_data("/a", b"", -1).reader).version == 0


def test_refused_writes_take_a_zxid_too(server: Server, client: Client):
    before = server.core.database.zxid
    refused = client.create("/missing/a")
    assert (refused.code, refused.zxid) == (RefusalCode.NO_NODE, before + 1)
    assert client.delete("/missing").zxid == before + 2
    assert client.ask(OpCode.PING, xid=-2).zxid == before + 2
    other = server.client()
    assert other.ask(OpCode.PING, xid=-2).zxid == before + 3
    assert other.ask(OpCode.CLOSE_SESSION).zxid == before + 4


def test_an_ephemeral_node_has_no_children_and_ends_with_its_session(server: Server, client: Client):
    other = server.client()
    client.create("/e", mode=EPHEMERAL)
    assert other.stat("/e").owner == client.session
    assert other.create("/e/a").code == RefusalCode.NO_CHILDREN_FOR_EPHEMERALS
    assert client.ask(OpCode.CLOSE_SESSION).code == 0
    assert client.closed
    assert not other.has("/e")


def test_a_node_with_children_is_not_deleted(client: Client):
    client.create("/a")
    client.create("/a/b")
    assert client.delete("/a").code == RefusalCode.NOT_EMPTY


@pytest.mark.parametrize("path", ["/", "", "/zookeeper", "/zookeeper/quota", "/zookeeper/config"])
def test_zookeepers_own_nodes_are_not_deleted(client: Client, path: str):
    assert client.delete(path).code == RefusalCode.BAD_ARGUMENTS


def test_containers_go_once_they_are_empty_again(server: Server, client: Client):
    client.create2("/new", CONTAINER, OpCode.CREATE_CONTAINER)
    client.create2("/used", CONTAINER, OpCode.CREATE_CONTAINER)
    assert client.stat("/used").owner == 0
    client.create2("/in use", CONTAINER, OpCode.CREATE_CONTAINER)
    client.create("/in use/a")
    client.create("/used/a")
    client.delete("/used/a")
    keep_alive(server, client, 61_000)
    assert (client.has("/new"), client.has("/in use"), client.has("/used")) == (True, True, False)


def test_a_container_mode_without_the_operation_makes_a_plain_node(server: Server, client: Client):
    client.create("/plain", mode=CONTAINER)
    assert not server.core.database.tree.containers
    client.multi((OpCode.CREATE, create_body("/container", mode=CONTAINER)))
    assert list(server.core.database.tree.containers) == ["/container"]


def test_nodes_with_a_time_to_live_go_when_nothing_wrote_to_them(server: Server, client: Client):
    client.create2("/t", TTL, OpCode.CREATE_TTL, ttl=1000)
    client.create2("/long", TTL, OpCode.CREATE_TTL, ttl=10**9)
    keep_alive(server, client, 61_000)
    assert (client.has("/t"), client.has("/long")) == (False, True)


@pytest.mark.parametrize("ttl", [0, -1, 2**40])
def test_a_time_to_live_has_bounds(client: Client, ttl: int):
    assert client.create2("/t", TTL, OpCode.CREATE_TTL, ttl=ttl) == RefusalCode.BAD_ARGUMENTS


def keep_alive(server: Server, client: Client, ms: int) -> None:
    for _ in range(ms // 1000):
        server.wait(1000)
        client.ask(OpCode.PING, xid=-2)


# --- multi ------------------------------------------------------------------------------------------------------------


def test_a_multi_sees_its_own_writes_and_has_one_zxid(server: Server, client: Client):
    version = struct.pack("!i", 0)
    reply = client.multi(
        (OpCode.CREATE, create_body("/a")),
        (OpCode.CHECK, encode_text("/a") + version),
        (OpCode.CREATE2, create_body("/a/b")),
        (OpCode.SET_DATA, encode_text("/a") + encode_buffer(b"x") + version),
        (OpCode.DELETE, encode_text("/a/b") + version),
    )
    kinds = [OpCode.CREATE, OpCode.CHECK, OpCode.CREATE2, OpCode.SET_DATA, OpCode.DELETE]
    assert results_of(reply) == [(kind, 0) for kind in kinds]
    stat = client.stat("/a")
    assert (stat.czxid, stat.mzxid, stat.pzxid, stat.version) == (reply.zxid, reply.zxid, reply.zxid, 1)


def test_a_multi_that_is_refused_changes_nothing(server: Server, client: Client):
    reply = client.multi(
        (OpCode.CREATE, create_body("/a")),
        (OpCode.DELETE, encode_text("/missing") + struct.pack("!i", -1)),
        (OpCode.CREATE, create_body("/b")),
    )
    assert reply.code == 0
    codes = [0, RefusalCode.NO_NODE, RefusalCode.RUNTIME_INCONSISTENCY]
    assert results_of(reply) == [(OpCode.ERROR, code) for code in codes]
    assert client.children("/") == ["zookeeper"]
    assert client.ask(OpCode.PING, xid=-2).zxid == reply.zxid


def test_an_empty_multi_takes_a_zxid(client: Client):
    first, second = client.multi(), client.multi()
    assert (results_of(first), second.zxid - first.zxid) == ([], 1)


def test_reads_in_one_multi_fail_each_on_its_own(client: Client):
    client.create("/a", b"x")
    reads = [(OpCode.GET_DATA, "/a"), (OpCode.GET_DATA, "/missing"), (OpCode.GET_CHILDREN, "/")]
    reply = client.multi(
        *((operation, encode_text(path) + b"\0") for operation, path in reads), operation=OpCode.MULTI_READ
    )
    assert results_of(reply) == [(OpCode.GET_DATA, 0), (OpCode.ERROR, RefusalCode.NO_NODE), (OpCode.GET_CHILDREN, 0)]


@pytest.mark.parametrize("operation", [OpCode.MULTI, OpCode.MULTI_READ])
def test_reads_and_writes_are_not_mixed(client: Client, operation: int):
    mixed = (OpCode.CREATE, create_body("/a")), (OpCode.GET_DATA, encode_text("/") + b"\0")
    assert client.multi(*mixed, operation=operation).code == RefusalCode.MARSHALLING_ERROR
    assert not client.has("/a")


def test_a_null_in_a_multi_refuses_all_of_it(client: Client):
    zxid = client.ask(OpCode.PING, xid=-2).zxid
    good = OpCode.CREATE, create_body("/a")
    no_path = OpCode.DELETE, struct.pack("!ii", -1, -1)
    no_acl = OpCode.CREATE, encode_text("/b") + encode_buffer(b"") + struct.pack("!ii", -1, 0)
    reply = client.multi(no_acl, good, no_path)
    assert (reply.code, reply.zxid) == (RefusalCode.MARSHALLING_ERROR, zxid)
    reply = client.multi(good, (OpCode.CREATE, create_body("/missing/c")), no_path)
    assert (reply.code, reply.zxid) == (RefusalCode.MARSHALLING_ERROR, zxid + 1)
    no_such_mode = OpCode.CREATE, no_acl[1][:-4] + struct.pack("!i", -1)
    assert client.multi(no_such_mode).zxid == zxid + 2
    no_acl_of_a_ttl = OpCode.CREATE_TTL, no_acl[1][:-4] + struct.pack("!iq", TTL, 1000)
    assert results_of(client.multi(no_acl_of_a_ttl)) == [(OpCode.ERROR, RefusalCode.INVALID_ACL)]


# --- what is no request -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [UNKNOWN_OPERATION, DELETE_CONTAINER, CREATE_SESSION, 0, OpCode.CHECK, -1])
def test_an_operation_that_no_client_may_ask_for_ends_the_connection(server: Server, client: Client, operation: int):
    client.create("/c", mode=CONTAINER)
    reply = client.ask(operation, encode_text("/c"))
    assert (reply.code, reply.zxid, client.closed) == (RefusalCode.UNIMPLEMENTED, -1, True)
    assert server.client().stat("/c") is not None


@pytest.mark.parametrize("keeps", [False, True])
def test_requests_behind_one_that_ends_the_connection_are_not_done(keeps: bool):
    """Also while its end waits until a write is on the disk."""
    server = Server(keeps)
    client = Client(server)
    client.connect()
    client.post_later(UNKNOWN_OPERATION)
    client.post_later(OpCode.CREATE, create_body("/a"))
    server.work()
    assert client.closed is not keeps
    assert "/a" not in server.core.database.tree.nodes


def test_a_request_that_is_cut_off_is_a_marshalling_error(client: Client):
    zxid = client.ask(OpCode.PING, xid=-2).zxid
    for operation in (OpCode.CREATE, OpCode.GET_DATA, OpCode.SET_WATCHES):
        reply = client.ask(operation, b"\0\0\0\x10/a")
        assert (reply.code, reply.zxid) == (RefusalCode.MARSHALLING_ERROR, zxid)


def test_a_write_without_a_path_takes_a_zxid(client: Client):
    zxid = client.ask(OpCode.PING, xid=-2).zxid
    reply = client.ask(OpCode.DELETE, struct.pack("!ii", -1, -1))
    assert (reply.code, reply.zxid) == (RefusalCode.MARSHALLING_ERROR, zxid + 1)


@pytest.mark.parametrize("length", [-1, PACKET_LIMIT + 1])
def test_a_packet_of_an_impossible_length_ends_the_connection(client: Client, length: int):
    client.send(struct.pack("!i", length))
    assert client.closed


def test_the_longest_packet_is_taken(client: Client):
    data = bytes(PACKET_LIMIT - 8 - len(create_body("/a", b"")))
    assert client.create("/a", data).code == 0
    assert client.data("/a") == data


def test_requests_may_come_byte_by_byte(client: Client):
    payload = struct.pack("!ii", 7, OpCode.EXISTS) + encode_text("/") + b"\0"
    for byte in struct.pack("!i", len(payload)) + payload:
        client.send(bytes([byte]))
    assert [reply.xid for reply in client.replies()] == [7]


def test_reconfiguration_is_disabled(client: Client):
    reply = client.ask(OpCode.RECONFIG, struct.pack("!iii", -1, -1, -1) + struct.pack("!q", -1))
    assert reply.code == RefusalCode.RECONFIG_DISABLED


def test_sasl_is_answered_with_nothing(client: Client):
    reply = client.ask(OpCode.SASL, encode_buffer(b"token"))
    assert (reply.code, reply.reader.buffer(), client.closed) == (0, None, False)


def test_sasl_without_a_token_ends_the_connection(client: Client):
    client.post(OpCode.SASL, encode_buffer(None))
    assert client.closed


# --- access -----------------------------------------------------------------------------------------------------------


def digest_acl(permissions: int) -> list[Acl]:
    return [Acl(permissions, "digest", make_digest_acl_credential("u", "p"))]


def test_a_digest_admits_whoever_proves_it(server: Server, client: Client):
    assert client.authenticate("digest", b"u:p").code == 0
    assert client.create("/mine", b"x", acl=[Acl(31, "auth", "")]).code == 0
    other = server.client()
    assert other.data("/mine") == RefusalCode.NO_AUTH
    assert other.set_data("/mine", b"").code == RefusalCode.NO_AUTH
    assert other.create("/mine/a").code == RefusalCode.NO_AUTH
    assert not other.has("/mine")
    assert client.data("/mine") == b"x"


def test_who_proves_nothing_has_no_auth_acl(client: Client):
    assert client.create("/a", acl=[Acl(31, "auth", "")]).code == RefusalCode.INVALID_ACL


VALID = [("world", "anyone"), ("digest", "u:x"), ("digest", "u:x:"), ("ip", "10.0.0.0/8"), ("ip", "::1")]
INVALID = [
    *(("world", "me"), ("digest", "u"), ("digest", "u:"), ("digest", "u:x:y"), ("ip", "10.0.0.0/33")),
    *(("ip", "10.0.0"), ("ip", "::1/129"), ("sasl", "me"), ("super", "")),
]


@pytest.mark.parametrize(("scheme", "name"), VALID + INVALID)
def test_acls_are_checked_when_they_are_set(client: Client, scheme: str, name: str):
    assert (client.create("/a", acl=[Acl(31, scheme, name)]).code == 0) is ((scheme, name) in VALID)


@pytest.mark.parametrize(
    ("network", "admitted"),
    [("10.1.0.0/16", True), ("10.2.0.0/16", False), ("10.1.2.3", True), ("0.0.0.0/0", True), ("::/0", False)],
)
def test_an_address_is_admitted_by_its_network(server: Server, network: str, admitted: bool):
    server.client().create("/a", b"x", acl=[Acl(1, "ip", network)])
    assert (server.client("10.1.2.3").data("/a") == b"x") is admitted


def test_who_may_not_change_an_acl_sees_no_digest(server: Server, client: Client):
    client.authenticate("digest", b"u:p")
    client.create("/a", acl=[*digest_acl(31), Acl(1, "world", "anyone")])
    seen = server.client().acl("/a")
    assert seen == [Acl(31, "digest", "u:x"), Acl(1, "world", "anyone")]
    assert client.acl("/a")[0] == digest_acl(31)[0]


def test_an_acl_is_set_by_version(client: Client):
    client.create("/a")
    assert Stat.read(client.set_acl("/a", [Acl(31, "world", "anyone")], 0).reader).aversion == 1
    assert client.set_acl("/a", [Acl(31, "world", "anyone")], 0).code == RefusalCode.BAD_VERSION
    assert client.set_acl("/a", []).code == RefusalCode.INVALID_ACL


def test_an_unknown_scheme_fails_and_ends_the_connection(client: Client):
    assert client.authenticate("kerberos", b"x").code == RefusalCode.AUTH_FAILED
    assert client.closed


def test_who_am_i_names_users_without_their_digests(client: Client):
    client.authenticate("digest", b"u:p")
    reader = client.ask(OpCode.WHO_AM_I).reader
    assert [(reader.text(), reader.text()) for _ in range(reader.int32())] == [("ip", "127.0.0.1"), ("digest", "u")]


@pytest.fixture
def certified() -> Client:
    """A client with a verified certificate."""
    client = Server(knows_x509=True).client()
    client.connection.identities["x509", "CN=mq1"] = None
    return client


def test_a_certificate_admits_its_exact_name(certified: Client):
    assert certified.create("/mine", b"x", acl=[Acl(31, "auth", "")]).code == 0
    assert certified.acl("/mine") == [Acl(31, "x509", "CN=mq1")]
    assert certified.create("/other", acl=[Acl(31, "x509", "cn=mq1")]).code == 0
    assert certified.set_data("/other", b"").code == RefusalCode.NO_AUTH
    stranger = certified.server.client()
    assert stranger.data("/mine") == RefusalCode.NO_AUTH
    stranger.authenticate("digest", b"CN=mq1:")
    assert stranger.data("/mine") == RefusalCode.NO_AUTH
    assert certified.data("/mine") == b"x"


def test_a_client_cannot_claim_a_certificate(certified: Client):
    assert certified.authenticate("x509", b"CN=root").code == 0
    reader = certified.ask(OpCode.WHO_AM_I).reader
    identities = [(reader.text(), reader.text()) for _ in range(reader.int32())]
    assert identities == [("ip", "127.0.0.1"), ("x509", "CN=mq1")]
    stranger = certified.server.client()
    assert stranger.authenticate("x509", b"CN=mq1").code == RefusalCode.AUTH_FAILED
    assert stranger.closed


def test_names_of_certificates_need_a_secure_port_and_the_right_form(certified: Client, client: Client):
    assert certified.create("/a", acl=[Acl(31, "x509", "mq1")]).code == RefusalCode.INVALID_ACL
    assert certified.create("/a", acl=[Acl(31, "x509", "CN=mq1,O=metaq")]).code == 0
    assert client.create("/a", acl=[Acl(31, "x509", "CN=mq1,O=metaq")]).code == RefusalCode.INVALID_ACL


def test_words_that_show_paths_and_sessions_are_not_answered_if_strangers_may_ask(certified: Client, client: Client):
    for server, is_told in ((certified.server, False), (client.server, True)):
        stranger = Client(server)
        stranger.send(b"dump")
        said = b"".join(stranger.connection.take())
        assert (b"SessionTracker" in said, b"not in the whitelist" in said) == (is_told, not is_told), said
        assert stranger.closed


# --- questions about many nodes ---------------------------------------------------------------------------------------


def test_nodes_below_are_counted(client: Client):
    for path in ("/a", "/a/b", "/a/b/c", "/ab"):
        client.create(path)
    counts = {
        path: client.ask(OpCode.GET_ALL_CHILDREN_NUMBER, encode_text(path)).reader.int32()
        for path in ("/", "/a", "/ab")
    }
    assert counts == {"/": 7, "/a": 2, "/ab": 0}


def test_a_session_asks_for_its_own_ephemeral_nodes(server: Server, client: Client):
    client.create("/a")
    for path in ("/a/e1", "/e2"):
        client.create(path, mode=EPHEMERAL)
    server.client().create("/e3", mode=EPHEMERAL)
    both = ["/a/e1", "/e2"]
    expected = {"/": both, "/a": ["/a/e1"], "/b": [], " \0": both, "\t/\x1f": both, "\u2003": []}
    found = {prefix: client.ask(OpCode.GET_EPHEMERALS, encode_text(prefix)).reader.texts() for prefix in expected}
    assert found == expected


def test_sync_names_its_path(client: Client):
    assert client.ask(OpCode.SYNC, encode_text("/a")).reader.text() == "/a"


# --- long requests, and limits ----------------------------------------------------------------------------------------


def test_nobody_sees_half_of_a_long_request(server: Server, client: Client):
    other = server.client()
    creations = [(OpCode.CREATE, create_body(f"/{number}")) for number in range(200)]
    client.post_later(OpCode.MULTI, multi_body(*creations))
    other.post_later(OpCode.GET_CHILDREN, encode_text("/") + b"\0")
    seen = []
    while server.core.work(1, server.now):
        for reply in other.replies():
            seen.append(len(reply.reader.texts() or ()))
            if seen[-1] == 1:
                other.post_later(OpCode.GET_CHILDREN, encode_text("/") + b"\0")
    assert len(seen) > 5
    assert set(seen) == {1, 201}  # "/zookeeper" is always there
    assert seen == sorted(seen)


def test_a_session_that_ends_takes_all_of_its_nodes_at_once(server: Server, client: Client):
    other = server.client()
    for number in range(100):
        client.create(f"/{number}", mode=EPHEMERAL)
    client.post_later(OpCode.CLOSE_SESSION)
    other.post_later(OpCode.GET_CHILDREN, encode_text("/") + b"\0")
    seen = []
    while server.core.work(1, server.now):
        seen += [reply.reader.texts() for reply in other.replies()]
    assert seen == [["zookeeper"]]


def test_a_unit_of_work_is_bounded_whatever_a_connection_has_sent(server: Server, client: Client):
    for _ in range(1000):
        client.post_later(OpCode.EXISTS, encode_text("/") + b"\0")
    assert server.core.work(10, server.now)
    assert len(client.replies()) <= 20
    server.work()
    assert len(client.replies()) >= 980


def test_an_acl_has_a_bounded_number_of_entries(client: Client):
    many = [Acl(31, "digest", f"u{number}:x") for number in range(MOST_ACLS + 1)]
    assert client.create("/many", acl=many).code == RefusalCode.MARSHALLING_ERROR
    assert client.create("/many", acl=many[1:]).code == 0


def test_a_connection_has_a_bounded_number_of_identities(client: Client):
    codes = [client.authenticate("digest", b"u%d:p" % number).code for number in range(63)]
    assert set(codes) == {0}
    assert client.authenticate("digest", b"more:p").code == RefusalCode.AUTH_FAILED
    assert client.closed


def test_many_reads_in_one_request_have_a_bounded_answer(client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("metaq.coordination.standalone.operations.MOST_UNSENT_BYTES", 50_000)
    client.create("/a", bytes(1000))
    read = (OpCode.GET_DATA, encode_text("/a") + b"\0")
    assert client.multi(*[read] * 40, operation=OpCode.MULTI_READ).code == 0
    assert client.multi(*[read] * 60, operation=OpCode.MULTI_READ).code == RefusalCode.MARSHALLING_ERROR
