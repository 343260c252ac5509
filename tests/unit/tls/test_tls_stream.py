"""TlsStream: two of them speak to each other, byte by byte if need be, and no damage goes unnoticed."""

import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.client.settings.tls_config import TlsConfig
from metaq.coordination.runtime.certificates import CertificateFiles, ClientCertificates
from metaq.protocol.errors import TlsFailed
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.tls import TlsStream
from metaq.protocol.tls_bytes import FIRST_BYTE
from tests.unit.broker.harness import Harness


def server_context(pki: Path, client_certificates: ClientCertificates = "none") -> ssl.SSLContext:
    folder = pki / "mq1"
    files = CertificateFiles(str(pki / "ca.pem"), str(folder / "broker.pem"), str(folder / "broker.key"))
    return files.server_context(client_certificates)


def pair(pki: Path, asked: ClientCertificates = "none", client: TlsConfig | None = None, host: str = "mq1.example"):
    config = TlsConfig(ca=str(pki / "ca.pem")) if client is None else client
    return (
        TlsStream(config.context(), "broker", server_hostname=host),
        TlsStream(server_context(pki, asked), "client", server_side=True),
    )


def exchange(one: TlsStream, other: TlsStream, step: int = 1 << 20) -> None:
    """Bring all bytes over, `step` at a time, until neither has more to say."""
    while (to_other := one.take()) or (to_one := other.take()):
        for data, side in ((to_other, other), (b"" if to_other else to_one, one)):
            for start in range(0, len(data), step):
                side.receive(data[start : start + step])


def connected(pki: Path, **options) -> tuple[TlsStream, TlsStream]:
    client, server = pair(pki, **options)
    client.receive(b"")
    exchange(client, server)
    assert client.established
    assert server.established
    return client, server


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_what_one_side_writes_the_other_reads_however_it_is_cut(pki, step):
    client, server = pair(pki)
    client.receive(b"")
    exchange(client, server, step)
    assert client.established
    assert server.established
    data = [b"a" * 10, b"", bytearray(b"b" * 200_000), memoryview(b"c" * 70_000), b"d"]
    client.write(data)
    server.write([b"answer"])
    exchange(client, server, step)
    assert server.read() == b"".join(map(bytes, data))
    assert client.read() == b"answer"
    assert (client.read(), server.read()) == (b"", b"")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=40_000), max_size=6), st.integers(1, 50_000))
def test_sizes_of_buffers_and_reads_make_no_difference(pki, buffers, size):
    client, server = connected(pki)
    client.write(buffers)
    server.receive(client.take())
    found = b""
    while part := server.read(size):
        assert len(part) <= size
        found += part
    assert found == b"".join(buffers)


def test_the_first_byte_tells_tls_from_both_protocols(pki):
    client, _ = pair(pki)
    client.receive(b"")
    assert client.take()[0] == FIRST_BYTE
    assert not chr(FIRST_BYTE).isalpha(), "a command of the text protocol begins with a letter"
    assert MAX_FRAME_BYTES < FIRST_BYTE << 24, "a frame begins with the high byte of its length"


def test_the_end_is_told(pki):
    client, server = connected(pki)
    client.write([b"last"])
    client.end()
    server.receive(client.take())
    assert server.read() == b"last"
    assert not server.ended or server.read() == b""
    assert server.read() == b""
    assert server.ended


@pytest.mark.parametrize("place", range(0, 90, 3))
def test_a_changed_byte_of_a_record_is_noticed(pki, place):
    client, server = connected(pki)
    client.write([b"x" * 60])
    data = bytearray(client.take())
    data[place % len(data)] ^= 1
    server.receive(bytes(data))

    def read_on() -> None:
        if server.read() == b"":  # a longer length: more is to come
            server.receive(b"\0" * 70_000)
            server.read()

    with pytest.raises(TlsFailed, match="TLS with client failed"):
        read_on()


@pytest.mark.parametrize(
    ("host", "reason"), [("other.example", "Hostname mismatch"), ("10.0.0.9", "IP address mismatch")]
)
def test_a_certificate_for_another_host_is_refused(pki, host, reason):
    client, server = pair(pki, host=host)
    client.receive(b"")
    server.receive(client.take())
    with pytest.raises(TlsFailed, match=reason):
        client.receive(server.take())


def test_a_certificate_of_another_authority_is_refused(pki):
    client, server = pair(pki, client=TlsConfig())  # the system's authorities
    client.receive(b"")
    server.receive(client.take())
    with pytest.raises(TlsFailed, match="its certificate is refused: unable to get local issuer certificate"):
        client.receive(server.take())
    with pytest.raises(TlsFailed, match="unknown ca"):
        server.receive(client.take())


def test_a_client_may_have_to_show_a_certificate(pki):
    folder = pki / "app"
    app = TlsConfig(str(pki / "ca.pem"), str(folder / "client.pem"), str(folder / "client.key"))
    _, server = connected(pki, asked="required", client=app)
    assert server.certificate["subject"] == ((("commonName", "app"),),)
    _, server = connected(pki, asked="optional")
    assert server.certificate == {}
    client, server = pair(pki, asked="required")
    client.receive(b"")
    with pytest.raises(TlsFailed, match="peer did not return a certificate"):
        exchange(client, server)


def test_tls_1_1_is_refused(pki):
    context = TlsConfig(ca=str(pki / "ca.pem")).context()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert server_context(pki).minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_short_read_that_completes_a_long_record_gives_all_of_it(pki):
    client, server = connected(pki)
    client.write([b"x" * 16_000])
    data = client.take()
    server.receive(data[:-10])
    assert server.read() == b""
    server.receive(data[-10:])
    assert server.read() == b"x" * 16_000


@pytest.mark.parametrize("size", [1, 10_000], ids=["in pieces", "at once"])
def test_a_broker_without_tls_says_so_to_a_client_with_it(pki, tmp_path, size):
    """Otherwise the client could not tell this from a broker that restarts, and would try again for long."""
    client, _ = pair(pki)
    client.receive(b"")
    harness, hello = Harness(tmp_path), client.take()
    peer = harness.connect()
    for start in range(0, len(hello), size):
        if not peer.transport.disconnecting:
            peer.send(hello[start : start + size])
    assert peer.transport.disconnecting
    with pytest.raises(TlsFailed, match="alert protocol version"):
        client.receive(peer.received())
    harness.close()
