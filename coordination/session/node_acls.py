"""Give each znode that a session creates the access rights of the cluster's policy (records/acl_policy.py).

The policy is read before the first znode is created, so a process that creates none pays nothing. A watch tells when
the policy has changed. Without a policy, everybody has all rights on all znodes, as in 1.x.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from metaq.protocol.errors import CoordinationError

from ..records.acl_policy import Area, Areas, Right
from ..records.paths import Paths
from ..records.security_payloads import parse_acl_policy
from ..runtime.logs import get_log

__all__ = ["NodeAcls", "as_acls"]

log = get_log(__name__)


class NodeAcls:
    """The access rights for new znodes of one session. Any thread may call the methods; none of them waits."""

    def __init__(self, paths: Paths) -> None:
        self.path = paths.acl_policy()
        self._areas = Areas(paths)
        self._acls: dict[Area, list[ACL]] = {}  # by the policy; empty without one
        self.bytes = 0
        """Largest number of bytes that the access rights of one znode take in a request."""
        self._ever_read = False
        self._lock = threading.Lock()
        self._changes = 0  # grows when what was read before may be out of date
        self._read_at = -1

    @property
    def known(self) -> bool:
        """Whether the policy was read, and has not changed since then, as far as this process knows."""
        return self._read_at == self._changes

    def begin_read(self) -> int:
        """Return a number for learn(). Call this method before the policy is read."""
        return self._changes

    def changed(self, _event: object = None) -> None:
        """Read the policy again before the next znode is created. This method is also the watch of the policy."""
        with self._lock:
            self._changes += 1

    def learn(self, began: int, data: bytes | None) -> None:
        """Use this content of the policy's znode; None if it does not exist. If the content is damaged, the policy that
        was read before stays in use; if there is none, raise CoordinationError.
        """
        try:
            policy = None if data is None else parse_acl_policy(self.path, data)
        except CoordinationError as error:
            if not self._ever_read:
                raise
            log.error("%s; the former policy stays in use", error)
        else:
            self._acls = {} if policy is None else {area: as_acls(policy.rights(area)) for area in Area}
            self.bytes = max(map(_bytes, self._acls.values()), default=0)
        with self._lock:
            self._read_at, self._ever_read = began, True

    def of(self, path: str) -> list[ACL]:
        """Return the access rights for a new znode."""
        acls = self._acls
        area = self._areas.of(path) if acls else None
        return OPEN_ACL_UNSAFE if area is None else acls[area]


def as_acls(rights: Sequence[Right]) -> list[ACL]:
    """Return access rights as kazoo's requests need them."""
    return [ACL(permissions, Id(*identity)) for permissions, identity in rights]


def _bytes(acls: Sequence[ACL]) -> int:
    """Return the number of bytes that access rights take in a request: three numbers and two texts for each."""
    return sum(12 + len(each.id.scheme) + len(each.id.id.encode()) for each in acls)
