"""The command `metaq acl`: show and change what users may do, and find out what clients need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import click

from metaq.client.runtime.nearest import did_you_mean
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.protocol.access import AccessGrant, AccessMode, Need, User
from metaq.protocol.errors import BrokerUnavailable, ClientError, InvalidName

from .access_reports import ask_all, covering_grant, need_of, suggest
from .cluster_access import open_session
from .options import dry_run_option, json_option, zk_option
from .output import echo, print_json, say, show
from .user_input import GRANT, USER
from .users import force_option

__all__ = ["AccessDecision", "acl", "decide", "parse_need"]

_OPERATIONS = ("send", "consume", "see", "transact", "admin")


@click.group()
def acl() -> None:
    """Show and change what users may do (their grants), and find out what clients need.

    A grant is send:TOPIC, consume:TOPIC@GROUP, consume:TOPIC, see:TOPIC, transact or admin; a * at the end of a name
    stands for any characters. `deny` in front of a grant forbids what the grant describes, whatever other grants say.

    \b
    Example
      metaq acl grant app send:orders consume:orders@billing
      metaq acl grant app 'deny send:secret-*'
      metaq acl test app consume orders@billing
      metaq acl suggest
    """


@acl.command("grant")
@zk_option
@json_option
@dry_run_option
@force_option
@click.argument("user", type=USER)
@click.argument("grants", metavar="GRANT...", type=GRANT, nargs=-1, required=True)
def grant(zk: str, as_json: bool, dry_run: bool, force: bool, user: str, grants: tuple[AccessGrant, ...]) -> None:
    """Give USER more grants. They count within a second, also on open connections.

    \b
    Example
      metaq acl grant app send:orders consume:orders@billing
      metaq acl grant app 'deny send:secret-*'
    """
    with open_session(zk) as session:
        SecurityAdmin(session, dry_run=dry_run).grant(user, grants, force=force)
    _told(as_json, dry_run, user, grants, "get", "has")


@acl.command("revoke")
@zk_option
@json_option
@dry_run_option
@force_option
@click.argument("user", type=USER)
@click.argument("grants", metavar="GRANT...", type=GRANT, nargs=-1, required=True)
def revoke(zk: str, as_json: bool, dry_run: bool, force: bool, user: str, grants: tuple[AccessGrant, ...]) -> None:
    """Take grants away from USER. Write them as `metaq acl list` shows them.

    The grant admin of the last user who has it and does not expire is taken away only with --force, unless the mode is
    open.

    \b
    Example
      metaq acl revoke app send:orders
    """
    with open_session(zk) as session:
        SecurityAdmin(session, dry_run=dry_run).revoke(user, grants, force=force)
    _told(as_json, dry_run, user, grants, "lose", "no longer has")


def _told(as_json: bool, dry_run: bool, user: str, grants: Sequence[AccessGrant], would: str, does: str) -> None:
    value = {"user": user, "grants": list(map(str, grants)), "dry_run": dry_run}
    say(as_json, value, f"{user} {f'would {would}' if dry_run else does}: {', '.join(map(str, grants))}")


@acl.command("list")
@zk_option
@json_option
@click.argument("user", type=USER, required=False)
def list_grants(zk: str, as_json: bool, user: str | None) -> None:
    """List the grants of all users, or of USER.

    \b
    Example
      metaq acl list
      metaq acl list app --json
    """
    with open_session(zk) as session:
        state = SecurityAdmin(session).read()
    chosen = state.users.values() if user is None else [_user(state.users.get(user), user, list(state.users))]
    rows = [{"user": each.name, "grants": list(map(str, each.access.grants))} for each in chosen]
    show(as_json, rows, ("USER", "GRANT"), [(each.name, text) for each in chosen for text in each.access.grants])
    damaged = [why for name, why in state.damaged.items() if user in (None, name)]
    if damaged:
        raise ClientError("; ".join(damaged))


def _user(found: User | None, name: str, known: Sequence[str]) -> User:
    if found is None:
        near = did_you_mean(name, known, "`metaq users list` shows all")
        raise ClientError(f"there is no user {name}: {near}")
    return found


class AccessDecision(NamedTuple):
    """Whether a user may do something. grant: the grant that decides; None if the reason is another one."""

    allowed: bool
    grant: AccessGrant | None
    reason: str


def parse_need(operation: str, resource: str) -> Need:
    """Return what `metaq acl test` asks for. resource: `TOPIC` or `TOPIC@GROUP`; "" for an operation without a topic.
    Raises InvalidName.
    """
    text = f"{operation}:{resource}" if resource else operation
    need = need_of(AccessGrant.parse(text))
    if need is None:
        raise InvalidName(f"{resource!r} stands for many topics: name one topic")
    return need


def decide(user: User, need: Need, now_ms: float) -> AccessDecision:
    """Return whether a user may do what needs `need`, in a cluster that enforces grants."""
    if user.has_expired(now_ms):
        return AccessDecision(False, None, f"the user {user.name} has expired")
    found = covering_grant(user, need)
    if found is None:
        return AccessDecision(False, None, f"no grant permits it: metaq acl grant {user.name} {need}")
    return AccessDecision(not found.deny, found, str(found))


@acl.command("test")
@zk_option
@json_option
@click.argument("user", type=USER)
@click.argument("operation", type=click.Choice(_OPERATIONS))
@click.argument("resource", default="")
def test_user(zk: str, as_json: bool, user: str, operation: str, resource: str) -> int:
    """Say whether USER may do something, and which grant decides. Exit code 1 if not.

    RESOURCE is TOPIC or TOPIC@GROUP; transact and admin have none. The answer holds for a cluster that enforces grants,
    whatever the mode is now.

    \b
    Example
      metaq acl test app send orders
      metaq acl test app consume orders@billing
      metaq acl test root admin
    """
    try:
        need = parse_need(operation, resource)
    except InvalidName as error:
        raise click.UsageError(str(error), click.get_current_context()) from None
    with open_session(zk) as session:
        state = SecurityAdmin(session).read()
    if user in state.damaged:
        raise ClientError(state.damaged[user])
    decision = decide(_user(state.users.get(user), user, list(state.users)), need, time.time() * 1000)
    value = {
        "user": user,
        "need": str(need),
        "allowed": decision.allowed,
        "grant": None if decision.grant is None else str(decision.grant),
        "reason": decision.reason,
        "mode": state.mode or AccessMode.OPEN,
    }
    say(as_json, value, f"{'yes' if decision.allowed else 'no'}: {decision.reason}")
    return 0 if decision.allowed else 1


@acl.command("suggest")
@zk_option
@json_option
def suggest_grants(zk: str, as_json: bool) -> None:
    """Print the `metaq acl grant` commands that users need, from what the brokers have refused or would refuse.

    Run `metaq security observe` before, and let all clients work for a while. A client that has not logged in is named
    with its address on stderr. The command runs nothing: read the commands before you run them. Exit code 1 if a broker
    does not answer.

    \b
    Example
      metaq acl suggest
    """
    with open_session(zk) as session:
        users = SecurityAdmin(session).users()
        answers = ask_all(session)
    found = suggest(answers.reports.values(), users, time.time() * 1000)
    if as_json:
        print_json({"commands": list(found.commands), "notes": list(found.notes)})
    else:
        for command in found.commands:
            echo(command)
        for note in found.notes:
            echo(f"metaq: {note}", err=True)
    for name, report in answers.reports.items():
        if report.forgotten:
            echo(f"metaq: {name} no longer knows {report.forgotten:,} further refused requests: ask again", err=True)
        if report.mode is AccessMode.OPEN:
            echo(f"metaq: {name} obeys the mode open, in which it counts nothing: metaq security observe", err=True)
    for name in answers.before_users:
        echo(f"metaq: {name} knows no users: update it", err=True)
    if answers.silent:
        told = "; ".join(f"{name}: {why}" for name, why in answers.silent.items())
        raise BrokerUnavailable(f"what these brokers refuse is missing: {told}")
