"""The command `metaq broker`: run one broker process in the foreground."""

from __future__ import annotations

import gc
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import click

from metaq.protocol.errors import InvalidName
from metaq.protocol.limits import check_node

from .options import BYTES, POSITIVE_SECONDS

__all__ = ["broker"]


def _address(context: click.Context, option: click.Parameter, value: str | None) -> str:
    if value is None:
        return ""
    with suppress(ValueError):
        address = ip_address(value.removeprefix("[").removesuffix("]"))
        if not address.is_multicast:
            return str(address)
    raise click.BadParameter(
        f"{value!r} is not an address to listen on: write one of this machine's, as 10.0.0.5 or ::1"
    )


def _name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return check_node(value)
    except InvalidName as error:
        raise click.BadParameter(str(error)) from None


def _plugin_files(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Return a mapping from the name of each plugin to its file. values: texts of the form name=FILE, which click makes
    of -Fname=FILE and of -F name=FILE.
    """
    files: dict[str, str] = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise click.BadParameter(f"{value!r} is not PLUGIN=FILE, as in -Fmetaslave=conf/async_slave.properties")
        if name in files:
            raise click.BadParameter(f"{name} is given twice")
        files[name] = path
    return files


@click.command()
@click.option(
    "-f",
    "--file",
    "ini",
    required=True,
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="SERVER.INI",
    help="Configuration, the Java broker's format.",
)
@click.option(
    "--filters",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILTERS.INI",
    help="Python callables for the Java filter classes in SERVER.INI.  [default: filters.ini beside it]",
)
@click.option(
    "--listen",
    callback=_address,
    metavar="ADDRESS",
    help="Listen on this address of the machine only, for example 10.0.0.5 or ::; registered as well unless SERVER.INI "
    "has a hostName.  [default: all IPv4 addresses]",
)
@click.option(
    "--admin-from",
    type=click.Choice(["loopback", "any"]),
    default="loopback",
    show_default=True,
    help="Accept admin requests (reload, closing partitions …) from this machine only, or from any address.",
)
@click.option(
    "--security",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="SECURITY.INI",
    help="Accept TLS on the port as well, with the certificate that SECURITY.INI names (docs/security.md).",
)
@click.option(
    "--http-name",
    "http_names",
    multiple=True,
    metavar="NAME",
    help="Accept HTTP requests for this domain name; addresses, names without a dot and hostName are always accepted. "
    "May be given more than once.",
)
@click.option(
    "--disk-reserve",
    type=BYTES,
    help="Refuse puts when a data directory's disk has less room than this; 0: never.  [default: 5 % of the disk, at "
    "most 1g]",
)
@click.option(
    "--max-pending-puts",
    type=BYTES,
    help="Stop reading puts while more bytes than this, from all connections together, wait for the disk.  "
    "[default: 128m]",
)
@click.option(
    "--half-check",
    type=POSITIVE_SECONDS,
    default=6.0,
    show_default=True,
    help="Ask a producer for the outcome of a half message after this many seconds; repeat after pauses that double up "
    "to an hour.",
)
@click.option(
    "--half-checks",
    type=click.IntRange(1, 1000),
    default=15,
    show_default=True,
    help="Ask this many times, then park the half message for an operator (metaq halves).",
)
@click.option(
    "-F",
    "plugins",
    multiple=True,
    callback=_plugin_files,
    metavar="PLUGIN=FILE",
    help="A role as in 1.x, with its properties file: metaslave (asynchronous slave), samsa (synchronous master), "
    "gregor (its slave). May be given more than once.",
)
@click.option(
    "--node",
    callback=_name,
    metavar="NAME",
    help="Take part in a broker set as the node NAME: the nodes of one brokerId hold the same messages, and one leads. "
    "Each has a name, a directory and a port of its own.  [default: node in [replication] of SERVER.INI]",
)
@click.option(
    "--zone",
    callback=_name,
    metavar="ZONE",
    help="Where the broker stands, for example a data centre; consumers of the same zone prefer it.  "
    "[default: zone in [replication] of SERVER.INI]",
)
def broker(
    ini: Path,
    filters: Path | None,
    listen: str,
    admin_from: str,
    security: Path | None,
    http_names: tuple[str, ...],
    disk_reserve: int | None,
    max_pending_puts: int | None,
    half_check: float,
    half_checks: int,
    plugins: dict[str, str],
    node: str | None,
    zone: str | None,
) -> int:
    """Run one broker until SIGTERM or Ctrl-C. The broker prints one line when it is ready to serve clients. At SIGHUP
    the broker reads SERVER.INI again.

    \b
    Example
      metaq broker -f conf/server.ini
      metaq broker -f conf/server.ini -Fmetaslave=conf/async_slave.properties
      metaq broker -f conf/server.ini --node a
    """
    # these modules, and Twisted, are only needed by this command
    gc.disable()  # run() enables garbage collection when the broker has started
    from metaq.broker.configuration.settings import DEFAULT_MAX_PENDING_PUT_BYTES, BrokerOptions
    from metaq.broker.main import run

    max_pending = DEFAULT_MAX_PENDING_PUT_BYTES if max_pending_puts is None else max_pending_puts
    return run(
        str(ini),
        filters_path=None if filters is None else str(filters),
        plugins=plugins,
        listen_on=listen,
        options=BrokerOptions(
            admin_from="any" if admin_from == "any" else "loopback",
            disk_reserve=disk_reserve,
            max_pending_put_bytes=max_pending,
            node=node,
            zone=zone,
            half_check_seconds=half_check,
            half_checks=half_checks,
            http_names=http_names,
            security=None if security is None else str(security),
        ),
    )
