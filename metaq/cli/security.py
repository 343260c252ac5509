"""The command `metaq security`: create a certificate authority in a directory, and certificates for brokers and
clients.
"""

from __future__ import annotations

from pathlib import Path

import click

from .output import echo

__all__ = ["security"]

_DIRECTORY = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))


@click.group()
def security() -> None:
    """Make a certificate authority for TLS, and certificates for brokers and clients.

    \b
    Example
      metaq security init pki
      metaq security broker pki kafka1 --host mq1.example --host 10.0.0.5
      metaq security client pki app
    """


@security.command()
@_DIRECTORY
def init(directory: Path) -> None:
    """Make a certificate authority in DIRECTORY: ca.pem for everybody, and ca.key, which signs certificates.

    Do not copy ca.key to the brokers' machines.

    \b
    Example
      metaq security init pki
    """
    from .authority import make_authority

    make_authority(directory)
    echo(f"made {directory / 'ca.pem'} and {directory / 'ca.key'}; next: metaq security broker {directory} NAME")


@security.command()
@_DIRECTORY
@click.argument("name")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name or address by which clients reach the broker: hostName of its server.ini. May be given more than "
    "once; this machine's loopback is always included.",
)
def broker(directory: Path, name: str, hosts: tuple[str, ...]) -> None:
    """Make a certificate for a broker, and its security.ini, in DIRECTORY/NAME.

    \b
    Example
      metaq security broker pki mq1 --host mq1.example
    """
    from .authority import make_broker

    ini = make_broker(directory.resolve(), name, hosts)
    echo(f"made {ini}; copy its folder to the broker's machine, then: metaq broker --security {ini} -f SERVER.INI")


@security.command()
@_DIRECTORY
@click.argument("name")
def client(directory: Path, name: str) -> None:
    """Make a certificate for a client, and its profile, in DIRECTORY/NAME.

    \b
    Example
      metaq security client pki app
    """
    from .authority import make_client

    profile = make_client(directory.resolve(), name)
    echo(f"made {profile}; copy its folder to the client's machine, then: export METAQ_PROFILE={profile}")
