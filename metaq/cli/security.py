"""The command `metaq security`: create a certificate authority in a directory, and certificates for brokers and
clients; say whether the brokers of a cluster enforce the grants of users.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import Parsed, dry_run_option, json_option, zk_option
from .output import echo
from .zookeeper_acl import zookeeper_acl

if TYPE_CHECKING:
    from metaq.client.transport.wire import Endpoint
    from metaq.protocol.access import AccessMode

__all__ = ["security"]

_DIRECTORY = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))


@click.group()
def security() -> None:
    """Make a certificate authority for TLS, and certificates for brokers and clients; say whether brokers enforce the
    grants of users.

    \b
    Example
      metaq security init pki
      metaq security broker pki kafka1 --host mq1.example --host 10.0.0.5
      metaq security client pki app
      metaq security observe
      metaq security enforce
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
@click.option(
    "--from-plain",
    is_flag=True,
    help="For a cluster that runs without TLS: the broker continues to serve clients and brokers without TLS, until "
    "you change two lines of security.ini.",
)
def broker(directory: Path, name: str, hosts: tuple[str, ...], from_plain: bool) -> None:
    """Make a certificate for a broker, and its security.ini, in DIRECTORY/NAME.

    \b
    Example
      metaq security broker pki mq1 --host mq1.example
      metaq security broker pki mq2 --host mq2.example --from-plain
    """
    from .authority import make_broker

    ini = make_broker(directory.resolve(), name, hosts, from_plain=from_plain)
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


security.add_command(zookeeper_acl)


# --- the mode of a cluster --------------------------------------------------------------------------------------------


@security.command("open")
@zk_option
@json_option
@dry_run_option
def open_cluster_to_all(zk: str, as_json: bool, dry_run: bool) -> None:
    """Let everybody do everything, as before there were users. Users and grants stay in ZooKeeper.

    \b
    Example
      metaq security open
    """
    from metaq.protocol.access import AccessMode

    _set_mode(zk, as_json, dry_run, AccessMode.OPEN, force=True)


@security.command()
@zk_option
@json_option
@dry_run_option
def observe(zk: str, as_json: bool, dry_run: bool) -> None:
    """Let everybody do everything, but let the brokers count what they would refuse. `metaq acl suggest` shows it.

    \b
    Example
      metaq security observe
    """
    from metaq.protocol.access import AccessMode

    _set_mode(zk, as_json, dry_run, AccessMode.OBSERVE, force=True)


@security.command()
@zk_option
@json_option
@dry_run_option
@click.option("--force", is_flag=True, help="Enforce grants whoever is cut off.")
def enforce(zk: str, as_json: bool, dry_run: bool, force: bool) -> None:
    """Let the brokers refuse what no grant permits.

    The command refuses this as long as no admin has logged in over TLS since the brokers' start, as long as a broker
    does not answer, and as long as clients of the last 10 minutes would be refused; it names them. --force skips these
    checks, and the check that there is an admin who does not expire.

    \b
    Example
      metaq security observe
      metaq acl suggest
      metaq security enforce
    """
    import time

    from metaq.coordination.security.security_admin import SecurityAdmin
    from metaq.protocol.access import AccessMode
    from metaq.protocol.errors import ClientError

    from .access_reports import ask_all, obstacles
    from .cluster_access import open_session

    if not force:
        with open_session(zk) as session:
            state = SecurityAdmin(session).read()
            answers = ask_all(session)
        found = obstacles(answers, state.users, time.time() * 1000)
        if found:
            raise ClientError(
                f"the mode stays {state.mode or AccessMode.OPEN}: {'; '.join(found)}; --force enforces all the same"
            )
        if state.mode in (None, AccessMode.OPEN):
            echo(
                "metaq: the brokers have not observed clients before, so they could name none that is cut off", err=True
            )
    _set_mode(zk, as_json, dry_run, AccessMode.ENFORCE, force=force)


def _set_mode(zk: str, as_json: bool, dry_run: bool, mode: AccessMode, *, force: bool) -> None:
    from metaq.coordination.security.security_admin import SecurityAdmin

    from .cluster_access import open_session
    from .output import say

    with open_session(zk) as session:
        SecurityAdmin(session, dry_run=dry_run).set_mode(mode, force=force)
    told = f"the mode would be {mode}" if dry_run else f"the mode is {mode}: the brokers obey it within a second"
    say(as_json, {"mode": mode, "dry_run": dry_run}, told)


def _server(text: str) -> Endpoint:
    from .cluster_access import server_address  # kazoo: the commands that make certificates do not need it

    return server_address(text)


@security.command()
@zk_option
@click.option("--server", type=Parsed("HOST:PORT", _server), help="Ask only this broker, and not ZooKeeper.")
@json_option
def status(zk: str, server: Endpoint | None, as_json: bool) -> None:
    """Show the mode, and for each broker which mode it obeys, how many users it knows, how many requests it has refused
    (or, in the mode observe, would have refused), and which admins have logged in over TLS. Exit code 1 if a broker
    does not answer, or if entries in ZooKeeper are damaged.

    \b
    Example
      metaq security status
      metaq security status --server unix:/run/metaq/admin.sock
    """
    from metaq.coordination.security.security_admin import SecurityAdmin, is_lasting_admin
    from metaq.protocol.access import AccessMode
    from metaq.protocol.errors import BrokerUnavailable

    from .access_reports import ask_all, ask_one
    from .cluster_access import open_session
    from .output import counted, show

    value: dict[str, object] = {}
    damaged: list[str] = []
    if server is not None:
        answers = ask_one(server)
    else:
        with open_session(zk) as session:
            state = SecurityAdmin(session).read()
            answers = ask_all(session)
        mode = state.mode or AccessMode.OPEN
        admins = [user.name for user in state.users.values() if is_lasting_admin(user)]
        damaged += state.damaged.values()
        value |= {"mode": mode, "users": len(state.users), "admins": admins}
        if not as_json:
            users, lasting = counted(len(state.users), "user"), ", ".join(admins) or "none"
            echo(f"mode {mode}, {users}, admins who do not expire: {lasting}")
    rows = [
        {
            "broker": name,
            "mode": str(each.mode),
            "users": each.users,
            "refused": sum(refused.times for refused in each.refused),
            "forgotten": each.forgotten,
            "admins": list(each.admins),
        }
        for name, each in answers.reports.items()
    ]
    value["brokers"] = rows
    columns = ("BROKER", "MODE", "USERS", "REFUSED", "FORGOTTEN", "ADMINS LOGGED IN")
    cells = [[", ".join(each) if isinstance(each, list) else each for each in row.values()] for row in rows]
    show(as_json, value, columns, cells)
    missing = [f"{name}: {why}" for name, why in answers.silent.items()]
    missing += [f"{name} knows no users: update it" for name in answers.before_users]
    missing += damaged
    if missing:
        raise BrokerUnavailable("; ".join(missing))
