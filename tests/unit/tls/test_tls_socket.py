"""TlsSocket: the client's end of a connection, which one thread reads while another one writes."""

import contextlib
import socket
import threading

import pytest

from metaq.client.settings.tls_config import TlsConfig
from metaq.client.transport.tls_socket import TlsSocket
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.protocol.tls import TlsStream


class Echo(threading.Thread):
    """Sends back all that comes."""

    def __init__(self, pki, peer: socket.socket) -> None:
        super().__init__(daemon=True)
        folder = pki / "mq1"
        files = CertificateFiles("", str(folder / "broker.pem"), str(folder / "broker.key"))
        self.stream = TlsStream(files.server_context("none"), "client", server_side=True)
        self.peer = peer

    def run(self) -> None:
        with self.peer:
            while data := self.peer.recv(1 << 16):
                self.stream.receive(data)
                if plaintext := self.stream.read():
                    self.stream.write([plaintext])
                self.peer.sendall(self.stream.take())


@pytest.fixture
def sock(pki):
    ours, theirs = socket.socketpair()
    echo = Echo(pki, theirs)
    echo.start()
    ours.settimeout(10.0)
    yield TlsSocket(ours, TlsConfig(ca=str(pki / "ca.pem")).context(), "mq1.example", "broker")
    ours.close()
    echo.join(10.0)


def test_one_thread_reads_while_another_one_writes(sock):
    data = bytes(range(256)) * 2000
    writer = threading.Thread(
        target=lambda: [sock.sendall(data[start : start + 100]) for start in range(0, len(data), 100)]
    )
    writer.start()
    found = b""
    while len(found) < len(data):
        found += sock.recv(1000)
    writer.join()
    assert found == data


def test_buffers_of_any_sizes_arrive_in_order(sock):
    buffers = [b"a" * 10, b"b" * 70_000, b"c", b"d" * 200_000]
    left = b"".join(buffers)
    sock.sendmsg(buffers[:1])
    sock.sendall(left[10:])
    found = b""
    while len(found) < len(left):
        found += sock.recv(1 << 20)
    assert found == left


def test_a_socket_that_takes_no_more_goes_on_with_the_same_data(sock, monkeypatch):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sock.settimeout(0.0)
    data = b"x" * 3_000_000
    left = memoryview(data)
    held_back = 0
    found = 0
    while left:
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            held_back += 1
            with contextlib.suppress(BlockingIOError):
                found += len(sock.recv(1 << 20))
    sock.settimeout(10.0)
    while found < len(data):
        part = sock.recv(1 << 20)
        assert part == b"x" * len(part)
        found += len(part)
    assert (found, held_back > 0) == (len(data), True)


def test_a_send_that_comes_in_the_middle_of_a_receive_waits_for_it(sock, monkeypatch):
    errors: list[Exception] = []
    came = threading.Event()
    lock = threading.Lock()

    class Watched:
        def __enter__(self) -> None:
            if threading.current_thread() is writer:
                came.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def write() -> None:
        try:
            sock.sendall(b"second")
        except OSError as error:
            errors.append(error)
        came.set()

    writer = threading.Thread(target=write)
    read = sock._stream.read

    def read_while_the_other_comes() -> bytes:
        if not writer.ident:
            writer.start()
            assert came.wait(10.0)
        data: bytes = read()
        return data

    monkeypatch.setattr(sock, "_lock", Watched())
    monkeypatch.setattr(sock._stream, "read", read_while_the_other_comes)
    sock.sendall(b"first")
    found = b""
    while len(found) < len(b"firstsecond"):  # in one piece if the first receive brings only session tickets
        found += sock.recv(100)
    writer.join()
    assert errors == []
    assert found == b"firstsecond"
