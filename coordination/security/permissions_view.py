"""Read and watch the mode, the users and the grants of a cluster. security_admin.py has the code that writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from metaq.protocol.access import AccessMode, Permissions, Quota, User
from metaq.protocol.errors import CoordinationError

from ..records.paths import child_of
from ..records.security_payloads import parse_mode, parse_user
from ..runtime.logs import get_log
from ..session.watches import ChildrenWatcher, DataWatcher
from ..session.zk_session import ZkSession

__all__ = ["PermissionsView"]

log = get_log(__name__)

_RETRY_SECONDS = 0.5


class PermissionsView:
    """Calls `on_change(permissions)` on the session's event thread: once after start(), when everything has been read,
    then after each change. `permissions` is None while the znode `security` does not exist: the cluster has never had
    users, or ZooKeeper came back without them.

    A user whose znode has not changed keeps its User object, whose Access remembers decisions. A change of one user is
    read with one request. After a lost connection or session everything is read again, and `on_change` is called only
    if something has changed. A user whose znode is damaged is left out, so he may do nothing. If the znode of the mode
    is damaged, the mode that was read last stays in force; if none was read, it is ENFORCE. Each damaged content is
    logged once.

    Any thread may call start() and close(). Only the event thread uses the private attributes. `on_change` must not
    block, and must not raise.
    """

    def __init__(self, session: ZkSession, on_change: Callable[[Permissions | None], None]) -> None:
        self._session = session
        self._on_change = on_change
        self._closed = False
        self._exists: bool | None = None  # None: not read yet
        self._mode: AccessMode | None = None  # the last one that was understood
        self._quotas: Mapping[Quota, int] = MappingProxyType({})  # of users without such a quota of their own
        self._damaged_mode: bytes | None = None  # logged already
        self._names: ChildrenWatcher | None = None
        self._users: dict[str, _UserWatcher] = {}
        self._unread: set[str] | None = None  # users whose first read is missing; None: their names are missing, too
        self._told: Permissions | None = None
        self._has_told = False
        self._mode_watcher = DataWatcher(session, session.paths.security(), self._mode_changed)

    def start(self) -> None:
        self._mode_watcher.start()

    def close(self) -> None:
        """Stop calling `on_change`. A call that is running now may still finish."""
        self._closed = True
        self._mode_watcher.close()
        self._session.events.post(self._forget_users)

    # --- event thread -----------------------------------------------------------------------------------------------

    def _mode_changed(self, path: str, data: bytes | None) -> None:
        existed, self._exists = self._exists, self._mode_watcher.stat is not None
        if not self._exists:
            self._forget_users()
        else:
            self._read_mode(path, data)
            if not existed and not self._closed:
                self._names = ChildrenWatcher(self._session, self._session.paths.users(), self._names_changed)
                self._names.start()
        self._changed()

    def _read_mode(self, path: str, data: bytes | None) -> None:
        try:
            stored = parse_mode(path, data)
            self._mode, self._quotas, self._damaged_mode = stored.mode, stored.quotas, None
        except CoordinationError as error:
            if self._mode is None:
                self._mode = AccessMode.ENFORCE
            if self._damaged_mode != (data or b""):
                self._damaged_mode = data or b""
                log.error("the mode %s stays in force: %s", self._mode, error)

    def _forget_users(self) -> None:
        for watcher in (self._names, *self._users.values()):
            if watcher is not None:
                watcher.close()
        self._names, self._unread = None, None
        self._users.clear()

    def _names_changed(self, _path: str, names: list[str]) -> None:
        present = set(names)
        for name in self._users.keys() - present:
            self._users.pop(name).close()
        new = present - self._users.keys()
        if self._unread is None:
            self._unread = set(new)
        self._unread &= present
        for name in sorted(new):
            watcher = self._users[name] = _UserWatcher(self._session, name, self._user_read)
            watcher.start()
        self._changed()

    def _user_read(self, name: str) -> None:
        if self._unread is not None:
            self._unread.discard(name)
        self._changed()

    def _changed(self) -> None:
        """Tell the present permissions soon. Several changes that have arrived together are told once."""
        self._session.events.post_once(self._tell)

    def _tell(self) -> None:
        if self._closed or self._exists is None or (self._exists and self._unread != set()):
            return
        now = self._permissions() if self._exists else None
        if now is not None and self._told is not None and now.users.keys() < self._told.users.keys():
            try:
                is_there = self._session.nodes.get(self._session.paths.security()) is not None
            except CoordinationError:
                self._session.events.post_later(_RETRY_SECONDS, self._tell)
                return
            if not is_there:
                now = None  # nobody has deleted users: all is gone, which the watches report one by one
                self._exists = False
                self._forget_users()
        if not self._has_told or now != self._told:
            self._has_told, self._told = True, now
            self._on_change(now)

    def _permissions(self) -> Permissions:
        users = {name: watcher.user for name, watcher in self._users.items() if watcher.user is not None}
        return Permissions(self._mode or AccessMode.ENFORCE, MappingProxyType(users), self._quotas)


class _UserWatcher:
    """Watches the znode of one user, and calls `on_read(name)` after each read. user: None while the znode is missing
    or damaged.
    """

    def __init__(self, session: ZkSession, name: str, on_read: Callable[[str], None]) -> None:
        self.user: User | None = None
        self._name = name
        self._on_read = on_read
        self._content: tuple[bytes | None] | None = None  # what `user` was parsed from
        self._watcher = DataWatcher(session, child_of(session.paths.users(), name), self._data_changed)

    def start(self) -> None:
        self._watcher.start()

    def close(self) -> None:
        self._watcher.close()

    def _data_changed(self, path: str, data: bytes | None) -> None:
        if self._watcher.stat is None:
            self.user = self._content = None
        elif self._content != (data,):
            self._content = (data,)
            try:
                self.user = parse_user(path, self._name, data).user
            except CoordinationError as error:
                self.user = None
                log.error("the user %s may do nothing: %s", self._name, error)
        self._on_read(self._name)
