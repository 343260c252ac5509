"""The command `metaq users`: create, list and delete the users of a cluster, and change their passwords."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from metaq.coordination.security.passwords import random_password
from metaq.coordination.security.security_admin import SecurityAdmin
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.access import AccessGrant, AccessMode, Quota, User
from metaq.protocol.errors import ClientError, ConfigError, InvalidName

from .access_reports import ask_all, mode_of_brokers
from .cluster_access import open_session
from .options import confirm, dry_run_option, json_option, yes_option, zk_option
from .output import echo, moment, print_json, say, show
from .user_input import (
    ADMIN_GRANT,
    DURATION,
    GRANT,
    USER,
    check_new_file,
    expiry_of,
    known_ca,
    known_zookeeper,
    profile_text,
    prompted_password,
    quota_change,
    read_password,
    write_profile,
)

__all__ = ["force_option", "users"]

force_option = click.option("--force", is_flag=True, help="Do it even if it is refused otherwise.")


@click.group()
def users() -> None:
    """Create, list and delete the users of a cluster, and change their passwords. `metaq acl` changes their grants.

    \b
    Example
      metaq users add root --admin --profile root.ini
      metaq users add app --can send:orders --profile app.ini
      metaq users list
    """


def _password_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where a password comes from and where it goes."""
    options = (
        click.option(
            "--password-file",
            metavar="FILE",
            default="",
            help="Take the password from this file, which only you may read (-: from stdin); default: a random one.",
        ),
        click.option("--prompt", is_flag=True, help="Ask for the password on the terminal."),
        click.option(
            "--profile",
            metavar="FILE",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the user's profile to this new file, which only you may read, instead of printing it.",
        ),
        click.option(
            "--ca",
            metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
            help="The CA of the brokers' certificates, for the user's profile; default: that of your own profile, else "
            "ca.pem beside the user's.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@users.command("add")
@zk_option
@json_option
@dry_run_option
@click.option("--can", "grants", type=GRANT, multiple=True, help="What the user may do; may be given more than once.")
@click.option("--admin", is_flag=True, help="The user may do everything, also what only operators do.")
@click.option("--expires", type=DURATION, help="How long the user exists, like 12h or 30d; default: for ever.")
@click.option("--no-password", is_flag=True, help="The user has no password: his certificate names him.")
@_password_options
@force_option
@click.argument("name", type=USER)
def add_user(
    zk: str,
    as_json: bool,
    dry_run: bool,
    grants: tuple[AccessGrant, ...],
    admin: bool,
    expires: int | None,
    no_password: bool,
    password_file: str,
    prompt: bool,
    profile: Path | None,
    ca: Path | None,
    force: bool,
    name: str,
) -> None:
    """Create the user NAME.

    Without --password-file, --prompt and --no-password the command makes a random password, and prints the user's
    profile, a file for METAQ_PROFILE. The password is shown only this once. --can is a grant: send:TOPIC,
    consume:TOPIC@GROUP, consume:TOPIC, see:TOPIC, transact, or `deny` with such a grant; a * at the end of a name
    stands for any characters.

    The command refuses to create the first user if brokers still know users that ZooKeeper has lost, unless --force is
    given.

    \b
    Example
      metaq users add root --admin --profile root.ini
      metaq users add app --can send:orders --can consume:orders@billing
      metaq users add guest --can 'see:*' --expires 30d
    """
    _check_sources(password_file, prompt, no_password, profile, ca)
    password, secret = (None, None) if no_password else _password(name, password_file, prompt)
    all_grants = list(dict.fromkeys((*([ADMIN_GRANT] if admin else []), *grants)))
    expires_ms = expiry_of(expires)
    with open_session(zk) as session:
        first_mode = _first_mode(session, force)

        def create() -> None:
            changed = SecurityAdmin(session, dry_run=dry_run)
            changed.add_user(name, password, all_grants, expires_ms, first_mode=first_mode)

        text = _with_profile(profile, dry_run, name, secret, password_file, ca, create)
    value = {"user": name, "grants": list(map(str, all_grants)), "expires_ms": expires_ms, "dry_run": dry_run}
    _say(as_json, {**value, "password": secret, "profile": text}, "create", "created", name, profile, dry_run, text)
    if first_mode is not AccessMode.OPEN:
        echo(f"metaq: the brokers obey the mode {first_mode}, so ZooKeeper has it now, too", err=True)


@users.command("list")
@zk_option
@json_option
def list_users(zk: str, as_json: bool) -> None:
    """List all users with their grants. LOGIN says how a user proves who he is. Exit code 1 if the entry of a user in
    ZooKeeper is damaged; this user may do nothing.

    \b
    Example
      metaq users list --json
    """
    with open_session(zk) as session:
        state = SecurityAdmin(session).read()
    now_ms = time.time() * 1000
    rows = [_row(user, now_ms) for user in state.users.values()]
    cells = [
        (
            row["user"],
            ", ".join(row["grants"]),
            row["login"],
            _told(row["quotas"]),
            moment(row["expires_ms"]),
            "expired" if row["expired"] else None,
        )
        for row in rows
    ]
    show(as_json, rows, ("USER", "GRANTS", "LOGIN", "QUOTAS", "EXPIRES", "STATE"), cells)
    if state.damaged:
        raise ClientError("; ".join(state.damaged.values()))


def _row(user: User, now_ms: float) -> dict[str, Any]:
    return {
        "user": user.name,
        "grants": list(map(str, user.access.grants)),
        "login": "password" if user.verifiers else "certificate",
        "quotas": _plain(user.quotas),
        "expires_ms": user.expires_ms,
        "expired": user.has_expired(now_ms),
    }


def _plain(quotas: Mapping[Quota, int]) -> dict[str, int]:
    return {str(quota): quotas[quota] for quota in Quota if quota in quotas}


def _told(quotas: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in quotas.items())


@users.command("password")
@zk_option
@json_option
@dry_run_option
@_password_options
@click.argument("name", type=USER)
def change_password(
    zk: str,
    as_json: bool,
    dry_run: bool,
    password_file: str,
    prompt: bool,
    profile: Path | None,
    ca: Path | None,
    name: str,
) -> None:
    """Give the user NAME a new password. Without --password-file and --prompt it is random, and the command prints the
    user's new profile. The former password is no longer accepted; connections that are open stay open.

    \b
    Example
      metaq users password app --profile app-new.ini
      metaq users password app --prompt
    """
    _check_sources(password_file, prompt, False, profile, ca)
    password, secret = _password(name, password_file, prompt)
    with open_session(zk) as session:
        text = _with_profile(
            profile,
            dry_run,
            name,
            secret,
            password_file,
            ca,
            lambda: SecurityAdmin(session, dry_run=dry_run).set_password(name, password),
        )
    value = {"user": name, "dry_run": dry_run, "password": secret, "profile": text}
    _say(as_json, value, "change the password of", "changed the password of", name, profile, dry_run, text)


@users.command("expire")
@zk_option
@json_option
@dry_run_option
@force_option
@click.argument("name", type=USER)
@click.argument("when")
def expire_user(zk: str, as_json: bool, dry_run: bool, force: bool, name: str, when: str) -> None:
    """Set how long the user NAME exists from now on: WHEN is a duration such as 12h or 30d, or `never`. Requests of a
    user who has expired are refused.

    \b
    Example
      metaq users expire guest 30d
      metaq users expire guest never
    """
    context = click.get_current_context()
    expires_ms = None if when == "never" else expiry_of(DURATION.convert(when, None, context))
    with open_session(zk) as session:
        SecurityAdmin(session, dry_run=dry_run).set_expiry(name, expires_ms, force=force)
    would = "would expire" if dry_run else "expires"
    value = {"user": name, "expires_ms": expires_ms, "dry_run": dry_run}
    say(as_json, value, f"the user {name} {would} {f'at {moment(expires_ms)}' if expires_ms else 'never'}")


@users.command("quota")
@zk_option
@json_option
@dry_run_option
@click.option("--default", "of_all", is_flag=True, help="Concern each user who has no value of his own.")
@click.argument("words", nargs=-1, metavar="[NAME] [QUOTA=NUMBER]...")
def change_quotas(zk: str, as_json: bool, dry_run: bool, of_all: bool, words: tuple[str, ...]) -> None:
    """Change how much the user NAME may have and do on each broker, and show his quotas.

    QUOTA is connections, waiting-pulls, open-transactions, shared-groups, own-topics, delayed-bytes or half-bytes; or,
    for what is allowed in a second, send-bytes, read-bytes or requests. NUMBER may end with K, M or G, for a thousand,
    a million and a billion; 0 allows nothing (the last three quotas are 1 or more), `none` removes the value. With
    --default, leave NAME out.

    \b
    Example
      metaq users quota app connections=50 open-transactions=1K
      metaq users quota app send-bytes=10M requests=500
      metaq users quota app connections=none
      metaq users quota --default connections=200
    """
    if not of_all and not words:
        raise click.UsageError("name a user, or write --default for all users without a value of their own")
    name = None if of_all else USER.convert(words[0], None, click.get_current_context())
    changes = _changes(words if of_all else words[1:])
    with open_session(zk) as session:
        admin = SecurityAdmin(session, dry_run=dry_run)
        if changes:
            admin.set_quotas(name, changes)
        state = admin.read()
    if name is not None and name not in state.users:
        raise ClientError(state.damaged.get(name, f"there is no user {name}: metaq users list shows all"))
    before = state.quotas if name is None else state.users[name].quotas
    after = {**before, **changes} if dry_run else before
    quotas = _plain({quota: value for quota, value in after.items() if value is not None})
    who = "each user without a value of his own" if name is None else f"the user {name}"
    may = "would have" if dry_run and changes else "has"
    value = {"user": name, "quotas": quotas, "dry_run": dry_run}
    say(as_json, value, f"{who} {may} the quotas {_told(quotas)}" if quotas else f"{who} {may} no quotas")


def _changes(words: tuple[str, ...]) -> dict[Quota, int | None]:
    try:
        return dict(map(quota_change, words))
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@users.command("delete")
@zk_option
@dry_run_option
@yes_option
@force_option
@click.argument("name", type=USER)
def delete_user(zk: str, dry_run: bool, yes: bool, force: bool, name: str) -> None:
    """Delete the user NAME. Further requests on his open connections are refused within a second if the mode is
    enforce.

    The last user with the grant admin who does not expire is deleted only with --force, unless the mode is open.

    \b
    Example
      metaq users delete app --yes
    """
    with open_session(zk) as session:
        SecurityAdmin(session, dry_run=True).delete_user(name, force=force)
        if dry_run:
            echo(f"would delete the user {name}")
            return
        confirm(f"Delete the user {name}?", yes=yes)
        SecurityAdmin(session).delete_user(name, force=force)
    echo(f"deleted the user {name}")


# --- helpers ----------------------------------------------------------------------------------------------------------


def _check_sources(password_file: str, prompt: bool, no_password: bool, profile: Path | None, ca: Path | None) -> None:
    chosen = [
        name
        for name, given in (("--password-file", password_file), ("--prompt", prompt), ("--no-password", no_password))
        if given
    ]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} do not go together: leave one of them out")
    if profile is not None and (no_password or prompt or password_file == "-"):
        source = "--password-file -" if password_file else chosen[0]
        raise click.UsageError(f"--profile and {source} do not go together: leave one of them out")
    if ca is not None and chosen and profile is None:
        raise click.UsageError(f"--ca is for a profile, and {chosen[0]} makes none: leave one of them out")


def _password(name: str, password_file: str, prompt: bool) -> tuple[str, str | None]:
    """Return a password, and once more if the user cannot know it because it is random; otherwise None."""
    if password_file:
        return read_password(password_file), None
    if prompt:
        return prompted_password(name), None
    made = random_password()
    return made, made


def _first_mode(session: ZkSession, force: bool) -> AccessMode:
    """Return the mode with which the znode of the mode is created if it does not exist."""
    if SecurityAdmin(session).read().mode is not None:
        return AccessMode.OPEN  # not used
    return mode_of_brokers(ask_all(session), force=force)


def _with_profile(
    path: Path | None,
    dry_run: bool,
    name: str,
    secret: str | None,
    password_file: str,
    ca: Path | None,
    change: Callable[[], None],
) -> str | None:
    """Call `change`, and write the profile to `path` before that, so that a password that is in force is never lost.
    Return the text of the profile if it has to be printed. If ZooKeeper does not say whether it has made the change,
    the file stays.
    """
    text = None
    if secret is not None or path is not None:
        text = profile_text(name, secret, password_file, known_ca(ca), known_zookeeper())
    if path is None or dry_run:
        if path is not None:
            check_new_file(path)
        change()
        return None if dry_run else text
    write_profile(path, text or "")
    try:
        change()
    except (ClientError, ConfigError, InvalidName):
        path.unlink(missing_ok=True)
        raise
    return None


def _say(
    as_json: bool, value: Any, do: str, done: str, name: str, profile: Path | None, dry_run: bool, text: str | None
) -> None:
    """Print what was done. text: the profile to print, if any. On stdout there is nothing but the profile then."""
    if dry_run or profile is not None or text is None:
        value = {key: each for key, each in value.items() if key not in ("password", "profile")}
    if as_json:
        print_json(value)
        return
    where = f"; profile: {profile}" if profile is not None and not dry_run else ""
    sentence = f"would {do} the user {name}" if dry_run else f"{done} the user {name}{where}"
    if text is None:
        echo(sentence)
        return
    echo(f"metaq: {sentence}; this is his profile, which is not shown again:", err=True)
    echo(text, nl=False)
