"""The commands `metaq security zookeeper-acl`: who may write the cluster's znodes in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from .options import dry_run_option, json_option, zk_option
from .output import counted, echo, show

if TYPE_CHECKING:
    from metaq.coordination.records.acl_policy import AclPolicy, Area
    from metaq.coordination.security.zookeeper_acls import AclReport, AreaReport

__all__ = ["zookeeper_acl"]


@click.group("zookeeper-acl")
def zookeeper_acl() -> None:
    """Let only brokers, operators and clients write the cluster's znodes in ZooKeeper, by access control lists.

    \b
    Example
      metaq security zookeeper-acl apply --cluster x509:CN=mq1 --cluster x509:CN=admin --clients ip:10.0.0.0/8
      metaq security zookeeper-acl check
      metaq security zookeeper-acl open
    """


@zookeeper_acl.command()
@zk_option
@json_option
def check(zk: str, as_json: bool) -> None:
    """Compare the access rights of all znodes with the policy, and show for each area how many znodes differ and the
    first of them. Without a policy, everybody should have all rights. Exit code 1 if a znode differs.

    The command also shows your own identity, if [zookeeper] of your profile has a user.

    \b
    Example
      metaq security zookeeper-acl check
    """
    from metaq.coordination.security.zookeeper_acls import check_rights, read_policy

    from .cluster_access import open_session

    with open_session(zk) as session:
        policy = read_policy(session)
        report = check_rights(session, policy)
        login = session.login
    _warn(policy)
    if login is not None and not as_json:
        echo(f"your identity: {login.identity}")
    if policy is None and not as_json:
        echo("there is no policy: everybody may write all znodes")
    _show(as_json, report)
    _refuse_differing(report, "metaq security zookeeper-acl apply sets their rights" if policy else _OPEN_SETS)


_OPEN_SETS = "metaq security zookeeper-acl open sets the rights of all znodes again"


@zookeeper_acl.command()
@zk_option
@json_option
@dry_run_option
@click.option(
    "--cluster",
    multiple=True,
    metavar="ID",
    help="An identity of a broker or operator: x509:SUBJECT, digest:USER:HASH or ip:NETWORK. May be given more than "
    "once; default: those of the policy.",
)
@click.option(
    "--clients",
    multiple=True,
    metavar="ID",
    help="An identity of clients, also world:anyone. May be given more than once; default: those of the policy.",
)
@click.option("--force", is_flag=True, help="Do it even if brokers know users that ZooKeeper has lost.")
def apply(
    zk: str, as_json: bool, dry_run: bool, cluster: tuple[str, ...], clients: tuple[str, ...], force: bool
) -> None:
    """Write the policy, and set the access rights of all znodes. Without --cluster and --clients, apply the policy that
    there is: do this after programs that know no policy, such as 1.x clients, have created znodes.

    The command refuses a policy whose cluster does not contain the identity of the command itself, that is, the one in
    [zookeeper] of your profile. With --dry-run it only counts the znodes that would be changed. Exit code 1 if znodes
    still differ.

    \b
    Example
      metaq security zookeeper-acl apply --cluster x509:CN=mq1 --cluster x509:CN=admin --clients ip:10.0.0.0/8
      metaq security zookeeper-acl apply
    """
    from metaq.coordination.security.security_admin import SecurityAdmin
    from metaq.coordination.security.zookeeper_acls import apply_policy, read_policy
    from metaq.protocol.access import AccessMode

    from .access_reports import ask_all, mode_of_brokers
    from .cluster_access import open_session

    if clients and not cluster:
        raise click.UsageError("--clients needs --cluster: name all identities of the new policy")
    with open_session(zk) as session:
        if not cluster:
            policy = read_policy(session)
            if policy is None:
                raise click.UsageError("--cluster is missing, and there is no policy yet")
            cluster, clients = (tuple(map(str, each)) for each in (policy.cluster, policy.clients))
        mode = SecurityAdmin(session).read().mode
        first_mode = AccessMode.OPEN if mode is not None else mode_of_brokers(ask_all(session), force=force)
        report = apply_policy(session, cluster, clients, dry_run=dry_run, first_mode=first_mode)
    _warn(report.policy)
    if not as_json:
        told = f"{counted(report.differing, 'znode')} would be changed" if dry_run else "the policy is in force"
        echo(told if dry_run else f"{told}: {counted(report.changed, 'znode')} changed")
    _show(as_json, report)
    if not dry_run:
        _refuse_differing(report, "other programs create znodes with rights for everybody: try again later")


@zookeeper_acl.command("open")
@zk_option
@json_option
@dry_run_option
def open_znodes(zk: str, as_json: bool, dry_run: bool) -> None:
    """Delete the policy, and let everybody write all znodes, as before there was a policy.

    \b
    Example
      metaq security zookeeper-acl open
    """
    from metaq.coordination.security.zookeeper_acls import open_rights

    from .cluster_access import open_session

    with open_session(zk) as session:
        report = open_rights(session, dry_run=dry_run)
    if not as_json:
        changed = f"{counted(report.differing, 'znode')} would be changed" if dry_run else ""
        echo(changed or f"everybody may write all znodes: {counted(report.changed, 'znode')} changed")
    _show(as_json, report)
    if not dry_run:
        _refuse_differing(report, "your identity may not change their rights")


def _warn(policy: AclPolicy | None) -> None:
    for warning in () if policy is None else policy.warnings:
        echo(f"metaq: {warning}", err=True)


def _show(as_json: bool, report: AclReport) -> None:
    policy, areas = report.policy, report.areas
    value = {
        "cluster": [] if policy is None else list(map(str, policy.cluster)),
        "clients": [] if policy is None else list(map(str, policy.clients)),
        "changed": report.changed,
        "areas": {area.value: _as_json(each) for area, each in areas.items()},
    }
    show(as_json, value, ("AREA", "ZNODES", "DIFFERENT", "FIRST"), _cells(areas))


def _as_json(report: AreaReport) -> dict[str, object]:
    return {"znodes": report.znodes, "differing": report.differing, "first": report.first}


def _cells(areas: Mapping[Area, AreaReport]) -> list[list[object]]:
    return [[area.value, each.znodes, each.differing, each.first or "-"] for area, each in areas.items()]


def _refuse_differing(report: AclReport, remedy: str) -> None:
    from metaq.protocol.errors import ClientError

    if report.differing:
        first = next(each.first for each in report.areas.values() if each.differing and each.first)
        raise ClientError(f"the rights of {counted(report.differing, 'znode')} differ, such as {first}: {remedy}")
