"""Sessions and watches over lost connections, real expiries and restarts of ZooKeeper."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from metaq.cli import app
from metaq.coordination.brokers.registration import BrokerAddress, BrokerRegistration, TopicRegistration
from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.offsets.offset_store import Offset, ZooKeeperOffsetStore
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.session import kazoo_client
from metaq.coordination.session.watches import ChildrenWatcher
from metaq.coordination.session.zk_session import SessionEvent, ZkSession
from metaq.coordination.session.znodes import create_ephemeral, create_persistent, delete, set_data
from metaq.protocol.errors import ConfigError, CoordinationError, CoordinationUnavailable, SessionLost
from tests.integration.client_cluster import running_brokers
from tests.integration.coordination_helpers import expire, hear_all, make_chroot, session_at, wait_for
from tests.integration.gate import Gate
from tests.waiting import DEADLINE, assert_within
from tests.zookeepers import zookeeper_process


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """A server that the test may stop."""
    with zookeeper_process(tmp_path / "zk", tick_time_ms=100) as server:
        yield server


class Recorder:
    """The events of a session, and the threads that brought them."""

    def __init__(self, session: ZkSession) -> None:
        self.events: list[SessionEvent] = []
        self.threads: set[str] = set()
        session.on_session(self)

    def __call__(self, event: SessionEvent) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)


# --- starting and ending ----------------------------------------------------------------------------------------------


def test_a_missing_chroot_is_created_with_its_parents_for_brokers_only(zookeeper: ZooKeeperProcess, chroot: str):
    connect = chroot + "/a/b"
    node = connect.removeprefix(zookeeper.connect_string)
    with session_at(zookeeper.connect_string) as other:
        with pytest.raises(ConfigError, match=f"zookeeper={connect}: there is no node {node}"):
            ZkSession(connect).start(DEADLINE)
        assert other.nodes.get(chroot.removeprefix(zookeeper.connect_string) + "/a") is None
        assert make_chroot(connect) == connect
        assert other.nodes.get(node) is not None
        with session_at(connect) as session:
            assert session.nodes.exists_root()


def test_an_unreachable_zookeeper_is_named_within_the_timeout_and_leaves_no_thread():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connect = f"127.0.0.1:{unused.getsockname()[1]}"
        before = set(threading.enumerate())

        def attempt() -> float:
            started = time.monotonic()
            with pytest.raises(
                CoordinationUnavailable, match=rf"no ZooKeeper at {connect}: nothing listens at {connect}: start"
            ):
                ZkSession(connect).start(timeout=0.5)
            return time.monotonic() - started

        assert_within(5, attempt)
        wait_for(lambda: set(threading.enumerate()) <= before, "the end of its threads")


def test_after_its_start_the_session_is_there_and_whoever_listens_then_hears_of_later_changes_only(chroot: str):
    session = ZkSession(chroot)
    connected = session._connected

    def slowly() -> SessionEvent:
        time.sleep(0.3)  # kazoo says that it is connected before it tells us
        return connected()

    session._connected = slowly  # type: ignore[method-assign]
    with session:
        assert session.session_id
        seen = Recorder(session)
        hear_all(session)
        assert seen.events == []


@pytest.fixture
def mute_server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def answering(server: socket.socket, answer: bytes | None) -> str:
    """Have `server` answer each connection so and close it, or say nothing; return its address."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(4)
                    connection.sendall(answer or b"")
                    connection.recv(4096)

    if answer is not None:
        threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def refusal(connect: str, timeout: float = 30.0) -> tuple[str, float]:
    """Why no session can be had, and after how many seconds that is said."""
    started = time.monotonic()
    with pytest.raises(CoordinationUnavailable) as raised:
        ZkSession(connect).start(timeout)
    return str(raised.value), time.monotonic() - started


def test_each_mistake_in_a_connect_string_is_told_by_its_own_sentence_in_less_than_two_seconds(
    mute_server: socket.socket,
):
    other = answering(mute_server, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{unused.getsockname()[1]}"
        for connect, sentence in (
            (
                closed,
                f"no ZooKeeper at {closed}: nothing listens at {closed}: start ZooKeeper there, or correct the port",
            ),
            ("no-such-host.invalid:2181", "the host name 'no-such-host.invalid' is unknown"),
            (other, f"what listens at {other} is not a ZooKeeper: correct the port"),
            (f"{closed},{other}", f"nothing listens at {closed}: start ZooKeeper there, or correct the port; what"),
        ):
            text, _ = refusal(connect)
            assert sentence in text
            assert_within(2.0, lambda connect=connect: refusal(connect)[1])  # type: ignore[misc]


def test_a_metaq_broker_is_not_a_zookeeper(chroot: str, tmp_path: Path):
    with running_brokers(chroot, tmp_path, {"t": 1}) as brokers:
        text, _ = refusal(f"127.0.0.1:{brokers.running[0].port}")
    assert "is a metaq broker, not a ZooKeeper: correct the port" in text


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"This ZooKeeper instance is not currently serving requests\n", "does not serve now: its ensemble"),
        (b"", "closes each connection"),
        (None, "does not answer: check that it can be reached"),
    ],
    ids=["elects a leader", "closes", "is silent"],
)
def test_a_zookeeper_that_does_not_serve_yet_is_waited_for(
    mute_server: socket.socket, answer: bytes | None, sentence: str
):
    connect = answering(mute_server, answer)
    text, seconds = refusal(connect, 3.0)
    assert f"ZooKeeper at {connect} does not answer within 3 s: " in text
    assert sentence in text
    assert seconds >= 3.0


def test_the_command_line_waits_as_long_as_it_is_told(
    mute_server: socket.socket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    mute = f"127.0.0.1:{mute_server.getsockname()[1]}"
    assert app.run(["--zk", mute, "--zk-timeout", "0.5", "topics", "list"]) == 1
    assert f"ZooKeeper at {mute} does not answer within 0.5 s" in capsys.readouterr().err
    monkeypatch.setenv("METAQ_ZK_TIMEOUT", "0.25")
    assert app.run(["produce", "--topic", "t", "--zk", mute, __file__]) == 1
    assert f"ZooKeeper at {mute} does not answer within 0.25 s" in capsys.readouterr().err
    assert app.run(["--zk-timeout", "0", "topics", "list"]) == 2
    assert "--zk-timeout" in capsys.readouterr().err


def test_a_broker_waits_for_a_zookeeper_that_is_started_with_it_and_says_so(own_server: ZooKeeperProcess, caplog):
    own_server.stop()
    session = ZkSession(own_server.connect_string)

    def start_later() -> None:
        wait_for(lambda: "nothing listens" in caplog.text, "the warning")
        own_server.start()

    starter = threading.Thread(target=start_later)
    starter.start()
    session.start(DEADLINE, wait_for_servers=True)
    starter.join()
    assert session.session_id
    session.close()


def test_many_reads_are_one_request_and_a_server_that_does_not_know_it_is_asked_one_by_one(
    session: ZkSession, monkeypatch: pytest.MonkeyPatch
):
    session.nodes.ensure(["/a/b", "/a/c"])
    session.nodes.write(session.session_id, [set_data("/a/b", b"data"), create_ephemeral("/a/e", b"")])
    paths = ["/a/b", "/missing", "/a/c", "/a/e"]
    together = session.nodes.get_many(paths)
    assert together == [(b"data", 0), None, (None, 0), (b"", session.session_id)]
    children = session.nodes.children_many(["/a", "/missing", "/a/b"])
    assert [sorted(names) for names in children] == [["b", "c", "e"], [], []]
    monkeypatch.setattr(kazoo_client._MultiRead, "type", 98)  # as multiRead is to ZooKeeper 3.5
    assert session.nodes.get_many(paths) == together
    assert not session.nodes._server_reads_many
    assert session.nodes.children_many(["/a/b", "/missing"]) == [[], []]


def test_closing_ends_the_session_on_the_server_at_once(session: ZkSession, chroot: str):
    with session_at(chroot) as other:
        other.nodes.write(other.session_id, [create_ephemeral("/mine", b"")])
        other.close()
        other.close()
        assert session.nodes.get("/mine") is None
        assert not other.alive


def test_closing_is_bounded_when_no_server_answers(own_server: ZooKeeperProcess):
    def attempt() -> float:
        session = ZkSession(own_server.connect_string, session_timeout=60.0)
        session.start()
        own_server.stop()
        wait_for(lambda: not session.connected, "the loss of the connection")
        started = time.monotonic()
        session.close(timeout=3.0)
        took = time.monotonic() - started
        own_server.start()
        return took

    assert_within(8, attempt)


def test_leaving_does_not_wait_for_a_zookeeper_that_is_away(own_server: ZooKeeperProcess, caplog):
    def attempt() -> float:
        with session_at(own_server.connect_string, timeout=60.0) as session:
            broker = BrokerRegistration(session, BrokerAddress(0, None, "127.0.0.1", 8123))
            broker.register([TopicRegistration("t", 1)])
            member = GroupMembership(session, "g", None, ["t"], lambda: None)
            member.join()
            own_server.stop()
            wait_for(lambda: not session.connected, "the loss of the connection")
            started = time.monotonic()
            member.leave()
            broker.unregister()
            took = time.monotonic() - started
            assert f"{member.consumer_id} could not leave" in caplog.text
            assert "broker 0-m could not leave" in caplog.text
            session.close(timeout=2.0)
        own_server.start()
        return took

    assert_within(2, attempt)


# --- events -----------------------------------------------------------------------------------------------------------


def test_an_expiry_is_told_in_order_on_our_own_thread(session: ZkSession):
    seen, before = Recorder(session), session.session_id
    expire(session)
    wait_for(lambda: SessionEvent.CONNECTED in seen.events, "the new session")
    assert seen.events == [SessionEvent.SUSPENDED, SessionEvent.EXPIRED, SessionEvent.CONNECTED]
    assert seen.threads == {"metaq coordination"}
    assert session.session_id != before


def test_a_restart_of_zookeeper_keeps_the_session_and_its_nodes(own_server: ZooKeeperProcess):
    with session_at(own_server.connect_string, timeout=60.0) as session:
        seen, before = Recorder(session), session.session_id
        session.nodes.write(before, [create_ephemeral("/mine", b"")])
        own_server.stop()
        wait_for(lambda: session.suspended_seconds > 0, "the loss of the connection")
        assert session.alive
        own_server.start()
        wait_for(lambda: SessionEvent.RECONNECTED in seen.events, "the connection")
        assert seen.events == [SessionEvent.SUSPENDED, SessionEvent.RECONNECTED]
        assert session.suspended_seconds == 0
        assert session.nodes.get("/mine") == (b"", before)


def test_a_server_that_loses_the_request_of_a_returning_client_does_not_cost_the_session(chroot: str):
    """A ZooKeeper that starts may take a connection and never answer it."""
    address, _, path = chroot.partition("/")
    with Gate(address) as gate, session_at(f"{gate.address}/{path}", timeout=6.0) as session:
        seen, before = Recorder(session), session.session_id
        gate.swallow(1)
        wait_for(lambda: SessionEvent.RECONNECTED in seen.events, "the connection")
        assert seen.events == [SessionEvent.SUSPENDED, SessionEvent.RECONNECTED]
        assert session.is_current(before)
        assert gate.swallowed == 1


def test_servers_that_are_switched_off_do_not_cost_the_session(chroot: str):
    """Nothing comes back from their addresses: kazoo waits for the connection itself."""
    address, _, path = chroot.partition("/")
    with Gate(address) as first, Gate(address) as second, Gate(address) as last:
        hosts = ",".join(each.address for each in (first, second, last))
        with session_at(f"{hosts}/{path}", timeout=6.0) as session:
            seen, before = Recorder(session), session.session_id
            session.zk.randomize_hosts = False
            first.switch_off()
            second.switch_off()
            last.cut()
            wait_for(lambda: SessionEvent.SUSPENDED in seen.events, "the loss of the connection")
            wait_for(lambda: session.connected and last.passing, "the connection to the last")
            assert session.is_current(before)
            assert SessionEvent.EXPIRED not in seen.events


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_that_ends_by_itself_is_started_again(session: ZkSession):
    """kazoo's connection thread ends for good on an error it does not know."""
    seen = Recorder(session)

    def damaged(*_: object) -> None:
        del session.zk._connection._read_socket
        raise RuntimeError("xids do not match")

    session.zk._connection._read_socket = damaged
    session.zk.get_children_async("/")
    wait_for(lambda: SessionEvent.CONNECTED in seen.events, "a new session")
    assert SessionEvent.EXPIRED in seen.events
    assert session.nodes.children("/") == []


# --- watches ----------------------------------------------------------------------------------------------------------


class Children:
    """What a ChildrenWatcher delivers."""

    def __init__(self, session: ZkSession, path: str) -> None:
        self.seen: list[list[str]] = []
        self.watcher = ChildrenWatcher(session, path, lambda _path, children: self.seen.append(sorted(children)))
        self.watcher.start()

    def wait_for(self, *names: str) -> None:
        wait_for(lambda: self.seen and self.seen[-1] == sorted(names), f"the children {names}, seen {self.seen}")


def test_a_watch_sees_its_node_come_change_and_go(session: ZkSession):
    children = Children(session, "/w")
    children.wait_for()
    session.nodes.ensure(["/w"])
    session.nodes.write(session.session_id, [create_ephemeral("/w/a", b"")])
    children.wait_for("a")
    session.nodes.write(session.session_id, [delete("/w/a"), delete("/w")])
    children.wait_for()
    session.nodes.ensure(["/w/b"])
    children.wait_for("b")


def test_a_watch_survives_the_expiry_of_its_session(session: ZkSession, chroot: str):
    session.nodes.ensure(["/w/a"])
    children = Children(session, "/w")
    children.wait_for("a")
    expire(session)
    with session_at(chroot) as other:
        other.nodes.ensure(["/w/b"])
    children.wait_for("a", "b")


def test_a_watch_survives_a_restart_of_zookeeper_and_sees_what_happened_meanwhile(own_server: ZooKeeperProcess):
    with session_at(own_server.connect_string, timeout=60.0) as session:
        session.nodes.ensure(["/w/a"])
        children = Children(session, "/w")
        children.wait_for("a")
        own_server.stop()
        own_server.start()
        other = KazooClient(own_server.connect_string)
        other.start()
        other.create("/w/b")
        other.stop()
        children.wait_for("a", "b")
        session.nodes.ensure(["/w/c"])
        children.wait_for("a", "b", "c")


# --- fenced writes ----------------------------------------------------------------------------------------------------


def test_a_write_of_an_expired_session_is_refused_and_changes_nothing(session: ZkSession):
    store, fence = ZooKeeperOffsetStore(session), session.session_id
    store.commit("g", {("t", "0-0"): Offset(1, 10)}, fence)
    expire(session)
    with pytest.raises(SessionLost):
        store.commit("g", {("t", "0-0"): Offset(2, 20), ("t", "0-1"): Offset(3, 30)}, fence)
    with pytest.raises(SessionLost):
        session.nodes.write(fence, [create_ephemeral("/late", b"")])
    assert store.load_many("g", [("t", "0-0"), ("t", "0-1")]) == [Offset(1, 10), None]
    assert session.nodes.get("/late") is None


def test_a_write_queued_without_a_connection_is_not_sent_on_the_next_session(own_server: ZooKeeperProcess):
    """kazoo keeps it in its queue over the expiry of the session and would send it."""
    with session_at(own_server.connect_string, timeout=2.0) as session:
        fence = session.session_id
        session.nodes.ensure(["/target"])
        own_server.stop()
        wait_for(lambda: not session.connected, "the loss of the connection")
        with ThreadPoolExecutor(1) as writer:
            written = writer.submit(session.nodes.write, fence, [set_data("/target", b"late")])
            session.zk._session_id, session.zk._session_passwd = 1, b"\0" * 16  # the server will say: expired
            own_server.start()
            assert isinstance(written.exception(DEADLINE), SessionLost | CoordinationUnavailable)
        wait_for(lambda: session.alive and not session.is_current(fence), "a new session")
        node = session.nodes.get("/target")
        assert node is not None
        assert not node.data


def test_a_write_that_waited_too_long_is_not_sent_later(own_server: ZooKeeperProcess):
    with session_at(own_server.connect_string, timeout=60.0) as session:
        session.nodes.ensure(["/target"])
        session.nodes._timeout = 0.5
        own_server.stop()
        wait_for(lambda: not session.connected, "the loss of the connection")
        late = rf"{own_server.connect_string}.* does not answer within 0\.5 s"
        with pytest.raises(CoordinationUnavailable, match=late):
            session.nodes.write(session.session_id, [set_data("/target", b"late")])
        with pytest.raises(CoordinationUnavailable, match=late):
            session.nodes.get("/")
        own_server.start()
        wait_for(lambda: session.connected, "the connection")
        session.nodes._timeout = 20.0
        node = session.nodes.get("/target")
        assert node is not None
        assert not node.data


def test_each_write_of_a_batch_succeeds_or_fails_by_itself(session: ZkSession):
    session.nodes.ensure(["/there"])
    failures = session.nodes.write(
        session.session_id,
        [set_data("/there", b"1"), set_data("/missing", b"1"), create_persistent("/there", b"2"), delete("/missing")],
        NodeExistsError,
        NoNodeError,
    )
    assert [type(failure).__name__ for failure in failures] == [
        "NoneType",
        "NoNodeError",
        "NodeExistsError",
        "NoNodeError",
    ]
    assert session.nodes.get("/there") == (b"1", 0)
    with pytest.raises(CoordinationError, match="cannot write ZooKeeper node /missing: NoNodeError"):
        session.nodes.write(session.session_id, [set_data("/there", b"3"), delete("/missing")], NodeExistsError)
    assert session.nodes.get("/there") == (b"3", 0)


def test_an_atomic_write_happens_as_a_whole_or_not_at_all(session: ZkSession):
    session.nodes.ensure(["/there"])
    failure = session.nodes.write_atomically(
        session.session_id, [set_data("/there", b"1"), delete("/missing"), create_persistent("/new", b"")]
    )
    assert type(failure).__name__ == "NoNodeError"
    assert session.nodes.children("/") == ["there"]
    assert session.nodes.get("/there") == (None, 0)


def test_thousands_of_nodes_are_written_and_read_in_pipelines(session: ZkSession):
    paths = [f"/many/{number}" for number in range(2_500)]
    session.nodes.ensure(paths)
    assert len(session.nodes.children("/many")) == 2_500
    every_second = [each for path in paths for each in (path, f"{path}-missing")]
    assert session.nodes.get_many(every_second) == [(None, 0), None] * 2_500
