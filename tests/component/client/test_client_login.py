"""Logging in over TLS, and what a client does that is refused: it says so at once, and does not try for 30 seconds."""

import asyncio
import socket
import ssl
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from metaq import (
    ConnectionConfig,
    ConsumerConfig,
    Message,
    Producer,
    ProducerConfig,
    SharedConfig,
    SharedConsumer,
    TlsConfig,
    TopicPartition,
    UserConfig,
    XaCode,
    Xid,
    aio,
)
from metaq.cli.authority import make_authority, make_broker
from metaq.client.browsing.browser import PartitionReader
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.client.transport.metadata import TopicView
from metaq.client.transport.pool import ConnectionPool
from metaq.client.transport.wire import UNIX
from metaq.errors import AccessRefused, BrokerUnavailable, CannotConnect, XaError
from metaq.protocol.frames import Frame
from metaq.protocol.limits import FRAMES_MARK
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import Get, Put, TransactionCommand, Version, encode_result
from metaq.testing import FakeCluster
from tests.component.client.harness import address, is_send
from tests.component.client.on_loop import try_to_connect
from tests.doubles.logins import ScramPeer, answer
from tests.waiting import DEADLINE, eventually

SECRET = "correct horse"
T = TopicPartition("t", 0, 0)
PATIENT = ProducerConfig(delivery_timeout_seconds=DEADLINE)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pki") / "pki"
    make_authority(directory)
    make_broker(directory, "mq1", ["127.0.0.1"])
    return directory


class Peer:
    """Answers `version` and then each AUTHENTICATE request by `serve`, on every connection. It is never hurried."""

    def __init__(self, pki, version, serve):
        self.logins = 0
        self._version, self._serve = version, serve
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pki / "mq1" / "broker.pem", pki / "mq1" / "broker.key")
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(*self._listening.getsockname())
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._talk, args=(sock,)))
            self._threads[-1].start()

    def _talk(self, sock):
        try:
            with self._context.wrap_socket(sock, server_side=True) as secure:
                assert secure.recv(4096).startswith(b"version ")
                secure.sendall(encode_result(200, self._version, 0))
                serve = self._serve()
                while data := secure.recv(4096):
                    self.logins += 1
                    secure.sendall(serve(data))
        except OSError:  # the client is gone
            return

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._threads:
            each.join(DEADLINE)


@pytest.fixture
def config(pki):
    tls = TlsConfig(ca=str(pki / "ca.pem"))
    return ConnectionConfig(tls=tls, user=UserConfig("app", SECRET), connect_timeout_seconds=DEADLINE)


@contextmanager
def peer(pki, serve=lambda: ScramPeer(SECRET), version=f"2.0 {FRAMES_MARK}"):
    with closing(Peer(pki, version, serve)) as here:
        yield here


def refusing():
    return lambda data: answer(1, ResponseCode.ACCESS_REFUSED, remark="no such user")


def test_a_user_logs_in_before_anything_else_is_sent(pki, config):
    with peer(pki) as here, closing(open_connection(here.endpoint, config)) as connection:
        assert (here.logins, connection.speaks_frames, connection.in_flight) == (2, True, 0)


BOTH = pytest.mark.parametrize("connect", [open_connection, try_to_connect], ids=["threads", "loop"])


@BOTH
@pytest.mark.parametrize(
    ("serve", "version", "said"),
    [
        (refusing, FRAMES_MARK, "no such user"),
        (lambda: ScramPeer("another"), FRAMES_MARK, "no: "),
        (lambda: lambda _: answer(1, ResponseCode.REQUEST_CODE_NOT_SUPPORTED), FRAMES_MARK, "older version"),
        (lambda: lambda _: answer(1, message="r=x"), FRAMES_MARK, "does not prove"),
        (refusing, "1.4.6.2", "Java broker"),
    ],
    ids=["refused", "password", "older", "strange", "java"],
)
def test_a_connection_without_a_login_is_refused_and_closed(pki, config, serve, version, said, connect):
    with peer(pki, serve, version) as here, pytest.raises(AccessRefused, match=said) as refused:
        connect(here.endpoint, config)
    assert SECRET not in str(refused.value)


@BOTH
def test_a_unix_socket_needs_neither_tls_nor_a_login(config, connect, tmp_path):
    path = str(tmp_path / "broker")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve():
            sock, _ = listening.accept()
            with sock:
                assert sock.recv(4096).startswith(b"version ")
                sock.sendall(encode_result(200, FRAMES_MARK, 0))
                while sock.recv(4096):
                    pass

        serving = threading.Thread(target=serve)
        serving.start()
        if (connection := connect(Endpoint(f"{UNIX}{path}", 0), config)) is not None:
            connection.close()
        serving.join(DEADLINE)
        assert not serving.is_alive()


@BOTH
def test_a_login_is_over_at_the_deadline_of_connecting(pki, config, connect):
    stop = threading.Event()
    with peer(pki, lambda: lambda _: stop.wait(DEADLINE) and b"") as here:
        with pytest.raises(BrokerUnavailable, match="did not answer"):
            connect(here.endpoint, replace(config, connect_timeout_seconds=1.0))
        stop.set()


def test_whoever_is_refused_is_told_at_once_each_time(pki, config):
    with peer(pki, refusing) as here, closing(ConnectionPool(config)) as pool:
        for _ in range(3):
            with pytest.raises(AccessRefused, match="no such user"):
                pool.connection(here.endpoint, DEADLINE)
        with pytest.raises(AccessRefused, match="no such user"):
            pool.open_connection(here.endpoint)
        assert pool.down == {here.endpoint}


def test_a_user_who_is_made_later_logs_in_then(pki, config):
    serving, soon = [refusing], replace(config, reconnect_min_seconds=0.01, reconnect_max_seconds=0.01)
    with peer(pki, lambda: serving[0]()) as here, closing(ConnectionPool(soon)) as pool:
        with pytest.raises(AccessRefused):
            pool.connection(here.endpoint, DEADLINE)
        serving[0] = lambda: ScramPeer(SECRET)
        eventually(lambda: not pool.down)
        assert not pool.connection(here.endpoint, DEADLINE).closed


def test_a_user_who_is_removed_while_he_is_connected_is_refused_at_the_next_connection(pki, config):
    serving, soon = [lambda: ScramPeer(SECRET)], replace(config, reconnect_min_seconds=0.01, reconnect_max_seconds=0.01)

    def is_refused():
        try:
            pool.connection(here.endpoint, DEADLINE)
        except AccessRefused as error:
            return "no such user" in str(error)
        except BrokerUnavailable:
            return False
        raise AssertionError("still connected")

    with peer(pki, lambda: serving[0]()) as here, closing(ConnectionPool(soon)) as pool:
        connection = pool.connection(here.endpoint, DEADLINE)
        serving[0] = refusing
        connection.fail(BrokerUnavailable("the broker has ended it"))
        eventually(is_refused)


class Cluster(FakeCluster):
    """Of one broker, which is a Peer."""

    def __init__(self, endpoint):
        super().__init__()
        self._view = TopicView((T,), {0: endpoint})

    def view(self, topic):
        return self._view


def check_every_client(endpoint, config, why):
    """Every kind of client raises AccessRefused with this reason at once, and not at its deadline."""
    cluster, where = Cluster(endpoint), f"127.0.0.1:{endpoint.port}"
    with Producer(metadata=cluster, config=ProducerConfig(connection=config)) as producer:
        with pytest.raises(AccessRefused, match=why):
            producer.send("t", b"x", timeout=DEADLINE)
        with pytest.raises(AccessRefused, match=why):
            producer.send_async("t", b"x").result(DEADLINE)
        with pytest.raises(AccessRefused, match=why):
            producer.transaction().send("t", b"x", timeout=DEADLINE)

    async def send_on_loop() -> None:
        async with aio.Producer(metadata=cluster, config=ProducerConfig(connection=config)) as producer:
            await producer.send("t", b"x", timeout=DEADLINE)

    with pytest.raises(AccessRefused, match=why):
        asyncio.run(send_on_loop())
    reader = PartitionReader(where, T, "earliest", config=ConsumerConfig(connection=config))
    with closing(reader), pytest.raises(AccessRefused, match=why):
        reader.poll(timeout=DEADLINE)
    shared = SharedConsumer(group="g", topics=["t"], metadata=cluster, config=SharedConfig(connection=config))
    with shared as consumer, pytest.raises(AccessRefused, match=why):
        consumer.poll(timeout=DEADLINE)


def test_every_client_says_that_its_login_is_refused(pki, config):
    with peer(pki, refusing) as here:
        check_every_client(here.endpoint, config, "no such user")


@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_every_client_says_that_the_broker_wants_tls(broker, protocol):
    """Such a broker refuses `version`, as each request."""
    broker.refuse = lambda request: Status.FORBIDDEN if isinstance(request, Version) else None
    config = ConnectionConfig(protocol=protocol, connect_timeout_seconds=DEADLINE)
    host, _, port = address(broker).partition(":")
    check_every_client(Endpoint(host, int(port)), config, f"{port}: refused by the test")


def test_a_request_that_is_refused_by_status_403_is_no_closed_partition(broker, cluster, monkeypatch):
    """A client of the text protocol may be known by its address, and lack a grant."""
    monkeypatch.setattr("metaq.testing.fake_answers.PartitionClosed", lambda *_: "user legacy lacks the grant")
    broker.append("t", 0, b"1")
    broker.refuse = lambda request: Status.FORBIDDEN if type(request) in (Put, Get) else None
    connection = ConnectionConfig(protocol="text")
    with (
        Producer(metadata=cluster, config=replace(PATIENT, connection=connection)) as producer,
        pytest.raises(AccessRefused, match="lacks the grant"),
    ):
        producer.send("t", b"x")
    with PartitionReader(address(broker), T, "earliest", config=ConsumerConfig(connection=connection)) as reader:
        with pytest.raises(AccessRefused, match="lacks the grant"):
            reader.poll(timeout=DEADLINE)
        broker.refuse = lambda request: None
        eventually(lambda: granted(reader))


def granted(reader):
    try:
        return reader.poll(timeout=0.1)
    except AccessRefused:  # of the last request before the grant
        return []


# --- requests that a broker refuses although the user is logged in ---------------------------------------------------


def refuses(code):
    return lambda request: ResponseCode.ACCESS_REFUSED if isinstance(request, Frame) and request.code == code else None


def test_a_send_that_is_not_granted_fails_after_one_try(broker, cluster):
    broker.refuse = lambda request: ResponseCode.ACCESS_REFUSED if is_send(request) else None
    with Producer(metadata=cluster, config=PATIENT) as producer:
        with pytest.raises(AccessRefused, match="refused by the test"):
            producer.send("t", b"x")
        told = []
        producer.produce("t", b"y", on_delivery=lambda error, result: told.append(error))
        producer.flush(DEADLINE)
        assert [type(each) for each in told] == [AccessRefused]
        with pytest.raises(AccessRefused):
            producer.send_batch("t", [b"1", b"2"])
    assert broker.sends == 0


def test_a_transaction_that_is_not_granted_fails_at_once(broker, cluster):
    broker.refuse = refuses(RequestCode.TRANSACTION)
    with (
        Producer(metadata=cluster, config=PATIENT) as producer,
        pytest.raises(AccessRefused, match="refused by the test"),
    ):
        producer.transaction().send("t", b"x")


def test_poll_raises_a_refusal_each_time_until_it_is_granted(broker):
    broker.append("t", 0, b"1")
    broker.refuse = refuses(RequestCode.PULL)
    fast = ConsumerConfig(error_min_seconds=0.001, error_max_seconds=0.01)
    with PartitionReader(address(broker), T, "earliest", config=fast) as reader:
        for _ in range(3):
            with pytest.raises(AccessRefused, match="refused by the test"):
                reader.poll(timeout=DEADLINE)
        with pytest.raises(AccessRefused, match="refused by the test"):
            reader.poll_arrow(timeout=DEADLINE)
        broker.refuse = lambda request: None
        messages: list[Message] = []

        def came():
            try:
                messages.extend(reader.poll(timeout=0.1))
            except AccessRefused:  # of the last request before the grant
                return False
            return messages

        eventually(came)
        assert [each.payload for each in messages] == [b"1"]
        assert reader.poll(timeout=0.01) == []


@pytest.mark.parametrize("protocol", ["auto", "text"])
def test_an_xa_coordinator_does_not_take_a_refusal_for_an_outcome(broker, cluster, protocol):
    """XAER_RMERR as the answer to a commit or rollback would say that a prepared transaction is over."""
    config = replace(PATIENT, connection=ConnectionConfig(protocol=protocol))
    xid = Xid(1, b"g", b"b")
    with Producer(metadata=cluster, config=config) as producer:
        resource = producer.xa("t")
        resource.start(xid).end()
        refusing = refuses(RequestCode.TRANSACTION)
        broker.refuse = lambda each: Status.FORBIDDEN if isinstance(each, TransactionCommand) else refusing(each)
        codes = {}
        for name, call in (
            ("start", lambda: resource.start(Xid(1, b"g", b"c"))),
            ("prepare", lambda: resource.prepare(xid)),
            ("recover", lambda: resource.recover_from(0)),
            ("commit", lambda: resource.commit(xid)),
            ("one phase", lambda: resource.commit(xid, one_phase=True)),
            ("rollback", lambda: resource.rollback(xid)),
            ("forget", lambda: resource.forget(xid)),
        ):
            with pytest.raises(XaError, match=r"refused by the test|has been closed") as told:
                call()
            codes[name] = told.value.code
        broker.refuse = lambda request: None
    kept = {"commit", "one phase", "rollback"}
    assert {name for name, code in codes.items() if code == XaCode.XAER_RMFAIL} == kept
    assert {code for name, code in codes.items() if name not in kept} == {XaCode.XAER_RMERR}


def test_a_request_whose_reply_may_not_be_read_ends_at_once(broker, cluster):
    broker.refuse = refuses(RequestCode.PULL)
    with (
        Producer(metadata=cluster, config=replace(PATIENT, reply_topic="t")) as producer,
        pytest.raises(AccessRefused, match="refused by the test"),
    ):
        producer.request("t", b"x", timeout=DEADLINE).result(DEADLINE)


# --- settings that permit no connection -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wrong_ca(tmp_path_factory):
    directory = tmp_path_factory.mktemp("other") / "pki"
    make_authority(directory)
    return TlsConfig(ca=str(directory / "ca.pem"))


def test_every_client_with_the_wrong_ca_says_at_once_which_setting_is_wrong(pki, config, wrong_ca):
    with peer(pki) as here:
        check_every_client(here.endpoint, replace(config, tls=wrong_ca), r"tls\.ca=.*name the file with the CA")
        assert here.logins == 0


@pytest.mark.parametrize(
    ("days", "early", "said"),
    [
        (0, 1, "has expired: renew the broker's certificate .*, or set the clock of this machine"),
        (2, -1, "not yet valid: renew the broker's certificate .*, or set the clock of this machine"),
    ],
    ids=["expired", "not yet valid"],
)
def test_a_certificate_that_is_not_valid_now_is_told_with_the_clock_as_a_cause(
    tmp_path, monkeypatch, config, days, early, said
):
    make_authority(tmp_path / "pki")
    monkeypatch.setattr("metaq.cli.authority._DAYS", days)
    monkeypatch.setattr("metaq.cli.authority._EARLY", timedelta(days=early))
    make_broker(tmp_path / "pki", "mq1", ["127.0.0.1"])
    faulty = replace(config, tls=TlsConfig(ca=str(tmp_path / "pki" / "ca.pem")))
    with peer(tmp_path / "pki") as here, pytest.raises(CannotConnect, match=said):
        open_connection(here.endpoint, faulty)
