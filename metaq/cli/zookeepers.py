"""Choose the kind of ZooKeeper server that `metaq up` and `metaq zookeeper` start: Apache's or metaq's own."""

from __future__ import annotations

from pathlib import Path

import click

from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from metaq.coordination.servers.server_tls import ServerTls

from .options import Parsed

__all__ = ["local_zookeeper", "zookeeper_server_option"]

_STANDALONE, _APACHE = "standalone", "apache:"


def _jars(text: str) -> Path | None:
    if text == _STANDALONE:
        return None
    directory = text.removeprefix(_APACHE)
    if directory in (text, ""):
        raise ValueError(f"{text!r} is no ZooKeeper server: write standalone, or apache:DIR, where its jars are")
    return Path(directory)


zookeeper_server_option = click.option(
    "--zookeeper",
    "apache_jars",
    type=Parsed("SERVER", _jars),
    default=_STANDALONE,
    show_default=True,
    help="standalone: metaq's own, for development and tests, without Java. apache:DIR: Apache's, of the jars in DIR "
    "(its distribution's lib).",
)


def local_zookeeper(
    data_dir: Path,
    port: int,
    host: str,
    apache_jars: Path | None,
    tls: ServerTls | None = None,
    secure_port: int | None = None,
) -> ZooKeeperProcess:
    """Return a ZooKeeper server that is not started yet. apache_jars: the directory with the jars of Apache's
    ZooKeeper; None means metaq's standalone server. tls, secure_port: the standalone server's secure port, as in
    LocalZooKeeper. Apache's server is always started without one.
    """
    if apache_jars is None:
        from metaq.coordination.standalone_process import StandaloneZooKeeper

        return StandaloneZooKeeper(data_dir, port, host, tls=tls, secure_port=secure_port)
    from metaq.coordination.embedded import EmbeddedZooKeeper

    return EmbeddedZooKeeper(data_dir, port, host, jars=apache_jars)
