"""The command `metaq zookeeper`: run a ZooKeeper server in the foreground, for development and tests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import get_args

import click

from metaq.coordination.runtime.certificates import CertificateFiles, ClientCertificates
from metaq.coordination.servers.free_ports import ready_port
from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.servers.server_tls import ServerTls
from metaq.protocol.errors import CoordinationUnavailable

from .options import PORT
from .output import echo
from .servers import locked_directory, stop_signal
from .zookeepers import local_zookeeper, zookeeper_server_option

__all__ = ["zookeeper"]

HOST = "127.0.0.1"

_PEM = click.Path(exists=True, dir_okay=False, readable=True)


@click.command()
@click.option("--port", type=PORT, default=2181, show_default=True, help="TCP port; 0 chooses a free one.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("metaq-zookeeper"),
    show_default=True,
    help="Where it keeps its data.",
)
@zookeeper_server_option
@click.option(
    "--certificate",
    type=_PEM,
    help="The server's certificate, with --key: --port then serves only TLS, unless --secure-port is given.",
)
@click.option("--key", type=_PEM, help="The private key of --certificate.")
@click.option("--ca", type=_PEM, help="The CA of the clients' certificates.")
@click.option(
    "--client-certificates",
    type=click.Choice(get_args(ClientCertificates)),
    default="required",
    show_default=True,
    help="Whether clients must show a certificate on the port with TLS.",
)
@click.option("--secure-port", type=PORT, help="TCP port with TLS; --port then serves clients without TLS.")
def zookeeper(
    port: int,
    data_dir: Path,
    apache_jars: Path | None,
    certificate: str | None,
    key: str | None,
    ca: str | None,
    client_certificates: ClientCertificates,
    secure_port: int | None,
) -> None:
    """Run one ZooKeeper server until SIGTERM or Ctrl-C. The command prints one line when the server is ready to serve
    clients.

    In production run an ensemble of Apache's ZooKeeper.

    With --certificate the server has a port with TLS. A client certificate gives the client an identity for ACLs: the
    scheme x509, with the name of the certificate's subject.

    \b
    Example
      metaq zookeeper --port 2181 --data-dir /var/tmp/zk
      metaq zookeeper --certificate zk/broker.pem --key zk/broker.key --ca ca.pem
    """
    tls = _tls(apache_jars, certificate, key, ca, client_certificates, secure_port)
    with stop_signal() as stop, locked_directory("--data-dir", data_dir) as directory:
        if secure_port is not None:
            secure_port = ready_port("--secure-port", secure_port)
        server = local_zookeeper(directory, ready_port("--port", port), HOST, apache_jars, tls, secure_port)
        server.start()
        try:
            if tls is None:
                echo(f"zookeeper serves at {server.connect_string}")
            elif secure_port is None:
                echo(f"zookeeper serves at {server.connect_string} with TLS")
            else:
                echo(f"zookeeper serves at {server.connect_string}, with TLS at {server.secure_string}")
            _watch(server, stop)
        finally:
            server.stop()


def _tls(
    apache_jars: Path | None,
    certificate: str | None,
    key: str | None,
    ca: str | None,
    client_certificates: ClientCertificates,
    secure_port: int | None,
) -> ServerTls | None:
    """Return the TLS settings that the options name. Raises UsageError if they do not fit together."""
    if certificate is None or key is None:
        given = {"--certificate": certificate, "--key": key, "--ca": ca, "--secure-port": secure_port}
        if named := [option for option, value in given.items() if value is not None]:
            raise click.UsageError(f"{named[0]}: give both --certificate and --key")
        return None
    if apache_jars is not None:
        remedy = "leave out --zookeeper, or set up Apache's secureClientPort yourself"
        raise click.UsageError(f"--certificate is an option of the standalone server: {remedy}")
    return ServerTls(CertificateFiles(ca or "", certificate, key, "zookeeper"), client_certificates)


def _watch(server: ZooKeeperProcess, stop: threading.Event) -> None:
    while not stop.wait(0.5):
        if not server.running:
            raise CoordinationUnavailable("the ZooKeeper server has ended: see its log")
