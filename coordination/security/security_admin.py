"""Write the mode, the users and the grants of a cluster, as an operator's tool does. permissions_view.py has the code
with which brokers read and watch them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from metaq.protocol.access import (
    MAX_GRANTS,
    Access,
    AccessGrant,
    AccessMode,
    AccessOperation,
    Need,
    Quota,
    User,
    check_user,
)
from metaq.protocol.errors import ClientError, CoordinationError

from ..records.paths import child_of
from ..records.security_payloads import (
    MAX_USER_BYTES,
    StoredMode,
    StoredUser,
    format_mode,
    format_user,
    parse_mode,
    parse_user,
)
from ..session.zk_session import ZkSession
from ..session.znodes import FencedWrite, check_version, create_persistent, delete, set_data
from .passwords import make_verifiers

__all__ = ["MAX_USERS", "SecurityAdmin", "SecurityState", "is_lasting_admin"]

MAX_USERS = 10_000
"""Largest number of users of a cluster. ZooKeeper sends all their names in one answer of at most 1 MB."""

_TRIES = 5
"""A change is tried so often if others change the same user at the same time."""

_CHANGED = (BadVersionError, NoNodeError, NodeExistsError)
"""The failures of a transaction that mean that somebody else has changed a znode since it was read."""

_ADMIN = Need(AccessOperation.ADMIN)


class _Read(NamedTuple):
    """A user's znode as it was read. stored: None if the znode is damaged."""

    stored: StoredUser | None
    version: int


class SecurityState(NamedTuple):
    """Mode, users and grants at one moment. mode: None if the znode `security` does not exist. damaged: by the name of
    each user whose znode is damaged, the reason; by the name "" the reason why the znode of the mode is damaged, in
    which case `mode` is ENFORCE.
    """

    mode: AccessMode | None
    users: Mapping[str, User]
    damaged: Mapping[str, str]
    quotas: Mapping[Quota, int] = MappingProxyType({})
    """Each of these quotas counts for the users without such a quota of their own."""


class _Found(NamedTuple):
    """What the znodes hold. mode: None if its znode is missing or damaged. mode_version: -1 if the znode is missing."""

    mode: StoredMode | None
    mode_version: int
    users: Mapping[str, _Read]
    damaged: Mapping[str, str]

    @property
    def is_open(self) -> bool:
        return self.mode_version < 0 or (self.mode is not None and self.mode.mode is AccessMode.OPEN)

    def lasting_admin(self, but: str = "") -> str | None:
        """Return the name of a user who is an admin and does not expire; None if there is none. but: a user who does
        not count.
        """
        return next(
            (
                name
                for name, read in sorted(self.users.items())
                if name != but and read.stored is not None and is_lasting_admin(read.stored.user)
            ),
            None,
        )


def is_lasting_admin(user: User) -> bool:
    """Return whether a user may do everything, and does not expire."""
    return user.expires_ms is None and user.access.permits(_ADMIN)


class SecurityAdmin:
    """Changes the users of a cluster. Each change is one ZooKeeper transaction, which compares the versions of all
    znodes on which the change depends: two operators at the same time cannot undo each other's changes, nor together
    remove the last admin.

    The methods block on ZooKeeper; any thread except kazoo's may call them. They raise ClientError for a change that is
    refused, and CoordinationUnavailable, SessionLost or CoordinationError if ZooKeeper does not make it. dry_run: check
    the change, and do not make it. force: make the change even if no admin is left who does not expire.
    """

    def __init__(self, session: ZkSession, *, dry_run: bool = False) -> None:
        self._session = session
        self._paths = session.paths
        self._dry_run = dry_run

    def read(self) -> SecurityState:
        """Return mode, users and grants."""
        found = self._read()
        users = {name: read.stored.user for name, read in sorted(found.users.items()) if read.stored is not None}
        mode = None if found.mode_version < 0 else AccessMode.ENFORCE if found.mode is None else found.mode.mode
        quotas = {} if found.mode is None else found.mode.quotas
        return SecurityState(mode, MappingProxyType(users), found.damaged, quotas)

    def users(self) -> Mapping[str, User]:
        """Return the users by name, in order; those with damaged znodes are left out."""
        return self.read().users

    def set_mode(self, mode: AccessMode, *, force: bool = False) -> None:
        """Set what the cluster does with the grants, and create the znode `security` if it is missing. Setting ENFORCE
        is refused if there is no admin who does not expire.
        """

        def change(found: _Found) -> list[FencedWrite]:
            writes: list[FencedWrite] = []
            if mode is AccessMode.ENFORCE and not force:
                admin = found.lasting_admin()
                if admin is None:
                    raise ClientError(
                        "no user has the grant admin without an expiry, so nobody could change anything any more: "
                        "metaq users add NAME --admin makes one, or add --force"
                    )
                writes.append(self._check_user(found, admin))
            path = self._paths.security()
            if found.mode_version < 0:
                return [*writes, *self._made([], mode)]
            stored = StoredMode(mode) if found.mode is None else found.mode._replace(mode=mode)
            return [*writes, set_data(path, format_mode(stored), found.mode_version)]

        self._write(f"set the mode {mode}", change)

    def add_user(
        self,
        name: str,
        password: str | None,
        grants: Iterable[AccessGrant],
        expires_ms: int | None = None,
        *,
        first_mode: AccessMode = AccessMode.OPEN,
    ) -> None:
        """Create a user. password: None for a user whom his certificate names. expires_ms: when he stops to exist, in
        milliseconds of the Unix epoch. first_mode: the mode of the cluster if the znode `security` does not exist yet.

        Raises InvalidName for a name that no user can have, and ConfigError for a password that cannot be used.
        """
        verifiers = {} if password is None else make_verifiers(password)
        user = User(check_user(name), Access(_checked(dict.fromkeys(grants))), expires_ms, verifiers)
        data = _payload(StoredUser(user))

        def change(found: _Found) -> list[FencedWrite]:
            if name in found.users:
                raise ClientError(f"there is a user {name} already: metaq acl grant {name} … gives him more grants")
            if len(found.users) >= MAX_USERS:
                raise ClientError(f"there are {MAX_USERS:,} users already: delete some first")
            made = [create_persistent(self._paths.user(name), data)]
            return self._made(made, first_mode) if found.mode_version < 0 else [*self._parents(), *made]

        self._write(f"create the user {name}", change)

    def set_password(self, name: str, password: str) -> None:
        """Replace a user's password, or give him the first one. Raises ConfigError for one that cannot be used."""
        verifiers = make_verifiers(password)
        self._edit(
            name,
            "change the password of",
            lambda stored: stored._replace(user=stored.user._replace(verifiers=verifiers), unknown_verifiers={}),
        )

    def set_expiry(self, name: str, expires_ms: int | None, *, force: bool = False) -> None:
        """Set the time at which a user expires, in milliseconds since the Unix epoch. With None, the user never
        expires.
        """
        self._edit(
            name,
            "change the expiry of",
            lambda stored: stored._replace(user=stored.user._replace(expires_ms=expires_ms)),
            force,
        )

    def set_quotas(self, name: str | None, changes: Mapping[Quota, int | None]) -> None:
        """Change quotas of a user; or, if `name` is None, the quotas that count for the users without such a quota of
        their own. changes: the new value of each quota, or None to remove it.
        """
        if name is not None:
            self._edit(
                name,
                "change the quotas of",
                lambda stored: stored._replace(
                    user=stored.user._replace(quotas=_with_changes(stored.user.quotas, changes))
                ),
            )
            return

        def change(found: _Found) -> list[FencedWrite]:
            if found.mode is None:
                why = found.damaged.get("", "the cluster has no users yet: metaq users add NAME creates one")
                raise ClientError(why)
            stored = found.mode._replace(quotas=_with_changes(found.mode.quotas, changes))
            return [set_data(self._paths.security(), format_mode(stored), found.mode_version)]

        self._write("change the quotas of all users", change)

    def grant(self, name: str, grants: Iterable[AccessGrant], *, force: bool = False) -> None:
        """Add grants to those of a user. Also a prohibition is a grant."""
        added = list(grants)

        def edit(stored: StoredUser) -> StoredUser:
            all_grants = dict.fromkeys((*stored.user.access.grants, *added))
            return stored._replace(user=stored.user._replace(access=Access(_checked(all_grants))))

        self._edit(name, "change the grants of", edit, force)

    def revoke(self, name: str, grants: Iterable[AccessGrant], *, force: bool = False) -> None:
        """Remove grants of a user. Refused if he does not have one of them."""
        removed = list(grants)

        def edit(stored: StoredUser) -> StoredUser:
            having = stored.user.access.grants
            for each in removed:
                if each not in having:
                    told = ", ".join(map(str, having)) or "none"
                    raise ClientError(f"user {name} has no grant {each}: choose of those that he has: {told}")
            left = (each for each in having if each not in removed)
            return stored._replace(user=stored.user._replace(access=Access(left)))

        self._edit(name, "change the grants of", edit, force)

    def delete_user(self, name: str, *, force: bool = False) -> None:
        """Delete a user; also one whose znode is damaged."""

        def change(found: _Found) -> list[FencedWrite]:
            read = self._of(found, name)
            kept = self._keeping_an_admin(found, name, read.stored, None, force)
            return [*kept, delete(self._paths.user(name), read.version)]

        self._write(f"delete the user {name}", change)

    # --- one change -------------------------------------------------------------------------------------------------

    def _edit(self, name: str, what: str, edit: Callable[[StoredUser], StoredUser], force: bool = False) -> None:
        def change(found: _Found) -> list[FencedWrite]:
            read = self._of(found, name)
            if read.stored is None:
                raise ClientError(f"{found.damaged[name]}; metaq users delete {name} deletes it")
            after = edit(read.stored)
            kept = self._keeping_an_admin(found, name, read.stored, after, force)
            return [*kept, set_data(self._paths.user(name), _payload(after), read.version)]

        self._write(f"{what} the user {name}", change)

    def _of(self, found: _Found, name: str) -> _Read:
        read = found.users.get(name)
        if read is None:
            raise ClientError(f"there is no user {name}: metaq users list shows all")
        return read

    def _keeping_an_admin(
        self, found: _Found, name: str, before: StoredUser | None, after: StoredUser | None, force: bool
    ) -> list[FencedWrite]:
        """Return the checks that go into the transaction of a change of one user, so that an admin is left when it is
        made. Raises ClientError if none would be left, and the mode is not OPEN.
        """
        loses = before is not None and is_lasting_admin(before.user) and not (after and is_lasting_admin(after.user))
        if not loses or force:
            return []
        if (other := found.lasting_admin(but=name)) is not None:
            return [self._check_user(found, other)]
        if found.is_open:
            # The mode must not change before this is done. Without a znode of the mode there is none to compare.
            return [] if found.mode_version < 0 else [check_version(self._paths.security(), found.mode_version)]
        raise ClientError(
            f"{name} is the last user with the grant admin who does not expire, so nobody could change anything any "
            "more: metaq users add NAME --admin makes another one, or add --force"
        )

    def _check_user(self, found: _Found, name: str) -> FencedWrite:
        return check_version(self._paths.user(name), found.users[name].version)

    def _made(self, writes: Sequence[FencedWrite], mode: AccessMode) -> list[FencedWrite]:
        """Return `writes` after those that create the znodes above the users, which all are missing."""
        above = [
            create_persistent(self._paths.security(), format_mode(StoredMode(mode))),
            create_persistent(self._paths.users(), b""),
        ]
        return [*above, *writes]

    def _parents(self) -> list[FencedWrite]:
        path = self._paths.users()
        return [] if self._session.nodes.get(path) is not None else [create_persistent(path, b"")]

    def _write(self, what: str, change: Callable[[_Found], list[FencedWrite]]) -> None:
        """Read all, and make the writes that `change` returns, in one transaction. If somebody else was faster, begin
        again.
        """
        for _ in range(_TRIES):
            found = self._read()
            writes = change(found)
            if self._dry_run:
                return
            if found.mode_version < 0:
                self._session.ensure_chroot()
                self._session.nodes.ensure([self._paths.root] if self._paths.root else [])
            failure = self._session.nodes.write_atomically(self._session.session_id, writes)
            if failure is None:
                return
            if not isinstance(failure, _CHANGED):
                raise CoordinationError(f"cannot {what}: {type(failure).__name__} {failure}") from failure
        raise CoordinationError(f"cannot {what}: others change users at the same time: try again")

    def _read(self) -> _Found:
        nodes, path, users = self._session.nodes, self._paths.security(), self._paths.users()
        nodes.sync(path)
        names = sorted(nodes.children(users))
        mode, *read = nodes.get_with_stats([path, *(child_of(users, name) for name in names)])
        damaged: dict[str, str] = {}
        found: dict[str, _Read] = {}
        stored_mode = None
        if mode is not None:
            try:
                stored_mode = parse_mode(path, mode[0])
            except CoordinationError as error:
                damaged[""] = str(error)
        for name, node in zip(names, read, strict=True):
            if node is not None:
                stored = None
                try:
                    stored = parse_user(child_of(users, name), name, node[0])
                except CoordinationError as error:
                    damaged[name] = str(error)
                found[name] = _Read(stored, node[1].version)
        return _Found(stored_mode, -1 if mode is None else mode[1].version, found, damaged)


def _checked(grants: Iterable[AccessGrant]) -> list[AccessGrant]:
    found = list(grants)
    if len(found) > MAX_GRANTS:
        raise ClientError(f"a user has at most {MAX_GRANTS} grants: use names that end with *, or several users")
    return found


def _with_changes(quotas: Mapping[Quota, int], changes: Mapping[Quota, int | None]) -> Mapping[Quota, int]:
    return {name: value for name, value in {**quotas, **changes}.items() if value is not None}


def _payload(stored: StoredUser) -> bytes:
    data = format_user(stored)
    if len(data) > MAX_USER_BYTES:
        raise ClientError(f"the grants of {stored.user.name} have more than {MAX_USER_BYTES:,} bytes: use fewer ones")
    return data
