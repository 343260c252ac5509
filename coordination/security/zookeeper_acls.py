"""Write the policy of the access rights to znodes, set the rights of all znodes of a cluster, and compare them with the
policy. Sessions themselves give new znodes the policy's rights (session/node_acls.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kazoo.exceptions import BadVersionError, InvalidACLError, NodeExistsError, NoNodeError
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from metaq.protocol.access import AccessMode
from metaq.protocol.errors import ClientError, CoordinationError, CoordinationRefused

from ..records.acl_policy import AclPolicy, Area, Areas
from ..records.paths import child_of
from ..records.security_payloads import StoredMode, format_acl_policy, format_mode, parse_acl_policy
from ..session.node_acls import as_acls
from ..session.zk_session import ZkSession
from ..session.znodes import FencedWrite, check_version, delete, set_data

__all__ = ["AclReport", "AreaReport", "apply_policy", "check_rights", "open_rights", "read_policy"]

_ROUNDS = 5
"""apply_policy() goes through all znodes until it finds nothing to change, but at most this number of times: Java
clients may create znodes with rights for everybody all the time.
"""

_BATCH = 1_000
"""The rights of this number of znodes are read, and then set, at the same time."""

_NO_VERSION = 1 << 30
"""A version that a znode that was just created does not have."""

_TRIES = 5
"""The policy is written so often if others change its znode at the same time."""


@dataclass(slots=True)
class AreaReport:
    """The znodes of one area. differing: number of znodes whose rights differ (or, after apply_policy(), could not be
    set). first: the path of the first one. changed: number of znodes whose rights were set.
    """

    znodes: int = 0
    differing: int = 0
    first: str = ""
    changed: int = 0

    def sets(self, path: str) -> None:
        self.first = self.first or path
        self.changed += 1

    def differs(self, path: str) -> None:
        self.first = self.first or path
        self.differing += 1


@dataclass(slots=True)
class AclReport:
    """policy: None if there is none, so that everybody has all rights."""

    policy: AclPolicy | None
    areas: Mapping[Area, AreaReport] = field(default_factory=lambda: {area: AreaReport() for area in Area})

    @property
    def differing(self) -> int:
        return sum(each.differing for each in self.areas.values())

    @property
    def changed(self) -> int:
        return sum(each.changed for each in self.areas.values())


class _Stored(NamedTuple):
    data: bytes | None
    version: int  # -1 if there is no znode


def read_policy(session: ZkSession) -> AclPolicy | None:
    """Return the policy of the cluster, None if there is none. Raises CoordinationError, also if it is damaged."""
    stored = _read(session)
    return None if stored.data is None else parse_acl_policy(session.paths.acl_policy(), stored.data)


def check_rights(session: ZkSession, policy: AclPolicy | None) -> AclReport:
    """Compare the rights of all znodes with a policy. None: everybody should have all rights. The call blocks on
    ZooKeeper, and changes nothing. Raises CoordinationError.
    """
    return _Sweep(session, policy, changes=False).run()


def apply_policy(
    session: ZkSession,
    cluster: Iterable[str],
    clients: Iterable[str] = (),
    *,
    dry_run: bool = False,
    first_mode: AccessMode = AccessMode.OPEN,
) -> AclReport:
    """Write the policy, and set the rights of all znodes, from the root downward, until nothing differs. Call it again
    at any time. The call blocks on ZooKeeper; any thread except kazoo's may call it.

    cluster: identities of brokers and operators, such as "x509:CN=mq1" or "digest:metaq:HASH=". clients: identities
    of clients, such as "ip:10.0.0.0/8". dry_run: only count what would be changed. first_mode: the mode of the grants
    if the cluster has none yet.

    Raises ConfigError for identities that no ZooKeeper accepts. Raises ClientError, and changes nothing, if the session
    itself has no identity of `cluster`, because it could change nothing afterwards. Raises CoordinationError.
    """
    policy = AclPolicy.of(cluster, clients)
    paths, nodes = session.paths, session.nodes
    if not dry_run:
        session.ensure_chroot()
        nodes.ensure([paths.root] if paths.root else [])
    _require_membership(session, policy)
    if dry_run:
        return check_rights(session, policy)
    data = format_acl_policy(policy)
    _write_policy(session, policy, data, first_mode)
    nodes.policy_changed()
    nodes.ensure(_entries(session))
    report = AclReport(policy)
    changed = 0
    for _ in range(_ROUNDS):
        report = _Sweep(session, policy, changes=True).run()
        changed += report.changed
        if not report.changed:
            break
    if _read(session).data != data:
        raise CoordinationError(f"somebody else has changed {paths.acl_policy()} meanwhile: apply the policy again")
    for area in report.areas.values():
        area.differing += area.changed  # of the last round: other processes create such znodes all the time
        area.changed, area.first = 0, area.first if area.differing else ""
    report.areas[Area.CLUSTER].changed = changed
    return report


def open_rights(session: ZkSession, *, dry_run: bool = False) -> AclReport:
    """Delete the policy, and give everybody all rights on all znodes, as before apply_policy(). Raises
    CoordinationError.
    """
    if dry_run:
        return check_rights(session, None)
    failure = session.nodes.write_atomically(session.session_id, [delete(session.paths.acl_policy())])
    if failure is not None and not isinstance(failure, NoNodeError):
        raise CoordinationError(f"cannot delete {session.paths.acl_policy()}: {failure!r}") from failure
    session.nodes.policy_changed()
    return _Sweep(session, None, changes=True).run()


# --- the policy -------------------------------------------------------------------------------------------------------


def _read(session: ZkSession) -> _Stored:
    path = session.paths.acl_policy()
    session.nodes.sync(path)
    found = session.nodes.get_versioned(path)
    return _Stored(None, -1) if found is None else _Stored(found[0] or b"", found[1])


def _create(path: str, data: bytes, acls: list[ACL]) -> FencedWrite:
    return FencedWrite(path, lambda operations, _acl: operations.create(path, data, acls))


def _require_membership(session: ZkSession, policy: AclPolicy) -> None:
    """Raise ClientError if this session could not change anything any more after the policy has been applied.

    ZooKeeper itself judges this: it gets a transaction that creates a znode only for `cluster`, and changes this znode.
    The transaction always fails at its last operation, so the znode never exists.
    """
    probe, other = (child_of(session.paths.root, name) for name in ("acl-check", "acl-check-clients"))
    always_fails = check_version(probe, _NO_VERSION)
    write = partial(session.nodes.write_atomically, session.session_id)
    _expect_end(write([_create(probe, b"", OPEN_ACL_UNSAFE), always_fails]))
    secret, entry = (as_acls(policy.rights(area)) for area in (Area.SECRET, Area.ENTRY))
    try:
        _expect_end(
            write([_create(probe, b"", secret), _create(other, b"", entry), set_data(probe, b""), always_fails])
        )
    except CoordinationRefused as error:
        me = "" if session.login is None else f", which is {session.login.identity}"
        raise ClientError(
            "this command itself has no identity of `cluster`, so it could change nothing afterwards: add its own "
            f"identity{me}, or give it another one in [zookeeper] of the profile"
        ) from error


def _expect_end(failure: Exception | None) -> None:
    if isinstance(failure, InvalidACLError):
        raise ClientError(
            "ZooKeeper does not accept the identities: x509 needs a server with TLS and the X509 authentication "
            "provider; see its log"
        ) from failure
    if not isinstance(failure, BadVersionError):
        raise CoordinationError(f"cannot check the identity of this process: {failure!r}") from failure


def _write_policy(session: ZkSession, policy: AclPolicy, data: bytes, first_mode: AccessMode) -> None:
    nodes, paths = session.nodes, session.paths
    public, secret = (as_acls(policy.rights(area)) for area in (Area.CLUSTER, Area.SECRET))
    for _ in range(_TRIES):
        stored = _read(session)
        writes: list[FencedWrite] = []
        if nodes.get(paths.security()) is None:
            writes.append(_create(paths.security(), format_mode(StoredMode(first_mode)), public))
            writes.append(_create(paths.users(), b"", secret))
        path = paths.acl_policy()
        writes.append(_create(path, data, public) if stored.version < 0 else set_data(path, data, stored.version))
        failure = nodes.write_atomically(session.session_id, writes)
        if failure is None:
            return
        if not isinstance(failure, (BadVersionError, NodeExistsError, NoNodeError)):
            raise CoordinationError(f"cannot write {path}: {failure!r}") from failure
    raise CoordinationError(f"cannot write {paths.acl_policy()}: others change it at the same time: try again")


def _entries(session: ZkSession) -> list[str]:
    """Return the znodes below which others create znodes, so that no client has to create one of these itself."""
    paths = session.paths
    brokers = (
        *(paths.broker_ids(), paths.broker_zones(), paths.broker_listeners_parent(), paths.broker_sets()),
        *(paths.moves(), paths.topics()),
    )
    return [*brokers, paths.topics_pub(), paths.topics_sub(), paths.groups(), paths.spark_writes()]


# --- all znodes -------------------------------------------------------------------------------------------------------


class _Sweep:
    """Goes through all znodes of a cluster that metaq knows, parents before their children."""

    def __init__(self, session: ZkSession, policy: AclPolicy | None, *, changes: bool) -> None:
        self._nodes = session.nodes
        self._areas = Areas(session.paths)
        self._changes = changes
        self._wanted = {area: OPEN_ACL_UNSAFE if policy is None else as_acls(policy.rights(area)) for area in Area}
        self._report = AclReport(policy)

    def run(self) -> AclReport:
        for batch in _batches(self._areas.tops):
            self._descend(batch)
        return self._report

    def _descend(self, level: Sequence[str]) -> None:
        while level:
            below: list[str] = []
            for batch in _batches(level):
                readable = self._handle(batch)
                # After the parents' rights are set: nobody else can create another child that would be missed.
                for path, names in zip(readable, self._nodes.children_many(readable), strict=True):
                    below += (child_of(path, name) for name in sorted(names))
            level = [path for path in below if self._areas.of(path) is not None]

    def _handle(self, batch: Sequence[str]) -> list[str]:
        """Compare, or set, the rights of these znodes. Return the znodes that exist and that this process may read."""
        found = self._nodes.acls_many(batch)
        existing = [(path, acls) for path, acls in zip(batch, found, strict=True) if acls is not None]
        wrong = []
        for path, acls in existing:
            area = self._area(path)
            self._report.areas[area].znodes += 1
            if _comparable(acls) != _comparable(self._wanted[area]):
                wrong.append(path)
        unreadable = {path for path, acls in existing if not acls}
        if self._changes:
            refused = set(self._nodes.set_acls_many([(path, self._wanted[self._area(path)]) for path in wrong]))
            unreadable &= refused
            for path in wrong:
                if path not in refused:
                    self._report.areas[self._area(path)].sets(path)
            wrong = [path for path in wrong if path in refused]
        for path in wrong:
            self._report.areas[self._area(path)].differs(path)
        return [path for path, _ in existing if path not in unreadable]

    def _area(self, path: str) -> Area:
        area = self._areas.of(path)
        assert area is not None  # the walk leaves other znodes out
        return area


def _comparable(acls: Iterable[ACL]) -> set[tuple[int, str, str]]:
    return {(each.perms, each.id.scheme, each.id.id) for each in acls}


def _batches(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    return (paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH))
