"""Decide who may do what on this broker, by the users and grants that the broker has last read in ZooKeeper.

The broker never becomes open to everybody because ZooKeeper is away or has lost its data: it continues with what it has
read last, also after a restart, because it saves this in a file. If ZooKeeper answers that there are no users any more,
the broker continues for HOLD_SECONDS, and then refuses everything until ZooKeeper has users or the mode `open` again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from metaq.coordination.records.security_payloads import (
    StoredMode,
    StoredUser,
    format_mode,
    format_user,
    parse_mode,
    parse_user,
)
from metaq.protocol.access import OPEN, AccessMode, AccessOperation, Need, Permissions, Principal
from metaq.protocol.errors import AccessRefused, BrokerStarting, MetaqError, StoreError

from ..runtime.few_lines import FewLines
from ..store.files import Files, replace_file
from .audit import Audit, is_of_operators

__all__ = ["HOLD_SECONDS", "AccessControl", "Granted", "Stream"]

_log = logging.getLogger(__name__)

HOLD_SECONDS = 24 * 3600
"""For so long the users and grants that the broker has read last are valid after ZooKeeper has lost them."""
_MAX_NOTED = 1_000
"""Largest number of different refusals that the broker counts."""
_MAX_NOTED_OF_ADDRESS = 200
"""Largest number of them for one address, so that one client cannot hide the refusals of all others."""
_MAX_GRANTED = 256
"""For each connection the broker remembers at most this number of needs that were permitted."""
_SAVED = "metaqaccess.json"


class Granted(NamedTuple):
    """What one peer was permitted to do lately. It spares most requests the whole decision; the benchmark is
    `bench.access`.
    """

    permissions: Permissions
    """The permissions by which it was permitted. By other permissions it may be forbidden."""
    needs: set[Need]


class _Peer(Protocol):
    granted: Granted | None

    @property
    def host(self) -> str: ...
    @property
    def principal(self) -> Principal: ...


class Stream(Protocol):
    """A connection that one permitted request has turned into a stream, so that it carries no further requests."""

    on_gone: Callable[[], None] | None
    """A function that is called when the connection is closed."""

    def close(self, why: MetaqError) -> None:
        """Close the connection at once."""


@dataclass(slots=True)
class _Opener:
    """The sender of the request that has opened a stream."""

    host: str
    principal: Principal
    granted: Granted | None = None


class _Refused(NamedTuple):
    principal: Principal
    host: str
    need: Need


class AccessControl:
    """The permissions that this broker knows, and its decisions. Used only on the reactor thread."""

    def __init__(
        self,
        broker_id: int,
        folder: str,
        files: Files,
        now_ms: Callable[[], float],
        in_thread: Callable[[Callable[[], object]], Deferred[object]],
        refused_lines: FewLines,
        login_lines: FewLines,
    ) -> None:
        """folder: the directory in which the permissions are saved. now_ms: returns the time in milliseconds of the
        Unix epoch. in_thread: calls a function on a worker thread. Raises StoreError if the saved permissions are
        damaged.
        """
        self._broker_id = broker_id
        self._path = os.path.join(folder, _SAVED)
        self._files = files
        self._in_thread = in_thread
        self._saving = self._unsaved = False
        self.changed: Callable[[], None] = lambda: None
        """A function that is called after each change of `permissions`."""
        self.audit: Audit | None = None
        """Decides what the audit log gets; None without an audit log. To be set before the first request."""
        self._now_ms = now_ms
        self._lines = refused_lines
        self._login_lines = login_lines  # lines of their own, so that refusals cannot hide that somebody guesses
        self._noted: dict[str, dict[_Refused, list[float]]] = {}  # by address: how often, and when last
        self._noted_count = 0
        self._forgotten = 0
        self._forgotten_ms = 0.0
        self._admins: dict[str, float] = {}
        self._streams: dict[Stream, tuple[Need, _Opener, str]] = {}
        self._gone_since: float | None = None  # when ZooKeeper was first seen without users, milliseconds
        self.permissions = self._saved()
        """What the broker has read last; None if it has never read anything."""

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> AccessMode:
        """How requests are checked now. While nothing is known, they are refused."""
        return AccessMode.ENFORCE if self.permissions is None else self.permissions.mode

    @property
    def is_open(self) -> bool:
        """Whether no request needs to be checked."""
        return self.mode is AccessMode.OPEN

    @property
    def by_grants(self) -> bool:
        """Whether grants decide who is an operator. If not, the address decides (`--admin-from`)."""
        return self.mode is AccessMode.ENFORCE

    def check_started(self) -> None:
        """Raise BrokerStarting if the broker has not read any permissions yet: nobody's password is wrong then."""
        if self.permissions is None:
            raise BrokerStarting(self._broker_id)

    def see(self, read: Permissions | None) -> None:
        """Process what was read in ZooKeeper. read: None if ZooKeeper has no znode with permissions."""
        known = self.permissions
        if read is None and known is not None and known.mode is not AccessMode.OPEN:
            if self._gone_since is None:
                self._gone_since = self._now_ms()
                self.permissions = Permissions(*known)  # a new object, so that each `Granted` is void
                self._save()
                _log.error(
                    "ZooKeeper has no users and grants any more; those that were read last are valid for %d hours: "
                    "restore them, or run `metaq security open` if everybody may do everything from now on",
                    HOLD_SECONDS // 3600,
                )
                if self.audit is not None:
                    self.audit.changed(known, None)
            return
        read = OPEN if read is None else read
        if read == known and self._gone_since is None:
            return
        self._gone_since = None
        if read.mode is not (AccessMode.OPEN if known is None else known.mode):
            _log.warning("access: mode %s, %d users", read.mode, len(read.users))
        self.permissions = read
        if self.audit is not None:
            self.audit.changed(known, read)
        self._save()
        self.changed()
        self._check_streams()

    def _save(self) -> None:
        """Write what is known to the file, on a worker thread. A failure is logged: after a restart the broker then
        knows less until it reads ZooKeeper.
        """
        self._unsaved = True
        if self._saving:
            return
        self._saving, self._unsaved = True, False
        self._in_thread(partial(self._write, self.permissions, self._gone_since)).addBoth(self._has_saved)

    def _has_saved(self, failure: object) -> None:
        if isinstance(failure, Failure):
            _log.error("the users and grants cannot be saved in %s: %s", self._path, failure.getErrorMessage())
        self._saving = False
        if self._unsaved:
            self._save()

    def _write(self, permissions: Permissions | None, gone_since: float | None) -> None:
        """Write the file. Runs on a worker thread. Raises OSError."""
        if permissions is None or permissions == OPEN:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            return
        users = {name: format_user(StoredUser(user)).decode() for name, user in permissions.users.items()}
        mode = format_mode(StoredMode(permissions.mode, quotas=permissions.quotas)).decode()
        replace_file(self._files, self._path, json.dumps({"mode": mode, "users": users, "gone": gone_since}).encode())

    def _saved(self) -> Permissions | None:
        try:
            with open(self._path, encoding="utf-8") as file:
                found = json.load(file)
            mode = parse_mode(self._path, found["mode"].encode())
            users = {name: parse_user(self._path, name, text.encode()).user for name, text in found["users"].items()}
            gone = found["gone"]
            self._gone_since = None if gone is None else float(gone)
            return Permissions(mode.mode, users, mode.quotas)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, AttributeError, TypeError, MetaqError) as error:
            raise StoreError(
                f"the file {self._path} with the users and grants of the last start is damaged ({error}): delete it if "
                "ZooKeeper can be reached, then the broker reads them there"
            ) from error

    # --- decisions ----------------------------------------------------------------------------------------------------

    def check(self, need: Need, peer: _Peer, request: object) -> None:
        """Raise AccessRefused if the sender of a request may not do what needs `need`. In mode OBSERVE only count it.
        Raises BrokerStarting if the broker has not read any permissions yet. request: the request, or its name, for the
        audit log.
        """
        permissions = self.permissions
        granted = peer.granted
        if granted is not None and granted.permissions is permissions and need in granted.needs:
            return
        if need.operation is AccessOperation.NOTHING:
            return
        if permissions is None:
            raise BrokerStarting(self._broker_id)
        now = self._now_ms()
        if self._gone_since is not None and now >= self._gone_since + HOLD_SECONDS * 1000:
            gone = "the users and grants are gone from ZooKeeper for too long: an operator has to restore them"
            self.refuses(need, peer, request, gone)
            raise AccessRefused(gone)
        why = permissions.refusal(peer.principal, need, now)
        if why is None:
            if self._gone_since is None and not permissions.expires(peer.principal):
                self._remember(need, peer, permissions)
            return
        self._note(_Refused(peer.principal, peer.host, need), now)
        if permissions.mode is AccessMode.ENFORCE:
            self._lines.info(f"{peer.principal} at {peer.host} is refused {need}: {why}")
            self.refuses(need, peer, request, why)
            raise AccessRefused(why)
        if self.audit is not None and not is_of_operators(need, peer.principal):  # `serves` writes the others
            self.audit.refused(peer.principal, peer.host, need, request, why, would_be=True)

    def permits(self, need: Need, peer: _Peer) -> bool:
        """Return whether the sender of a request may do what needs `need`, whatever the mode is. Nothing is counted or
        logged: this is for lists that leave out what their asker may not see.
        """
        now, permissions = self._now_ms(), self.permissions
        is_gone = self._gone_since is not None and now >= self._gone_since + HOLD_SECONDS * 1000
        return permissions is not None and not is_gone and permissions.refusal(peer.principal, need, now) is None

    def watch(self, stream: Stream, need: Need, peer: _Peer, request: str) -> None:
        """Close this stream as soon as the permissions forbid what has opened it. need, peer: of the request that has
        opened the stream. request: its name.
        """
        opener = _Opener(peer.host, peer.principal)
        self._streams[stream] = need, opener, request
        stream.on_gone = partial(self._stream_gone, stream, stream.on_gone)
        if self.permissions is not None and self.by_grants:  # they may have changed since the request was checked
            self._check_stream(stream, need, opener, request)

    def _stream_gone(self, stream: Stream, on_gone: Callable[[], None] | None) -> None:
        self._streams.pop(stream, None)
        if on_gone is not None:
            on_gone()

    def _check_streams(self) -> None:
        """Close each stream whose opener may not have it any more. In mode OBSERVE only count these streams."""
        if self.is_open:
            return
        for stream, watched in list(self._streams.items()):
            self._check_stream(stream, *watched)

    def _check_stream(self, stream: Stream, need: Need, opener: _Opener, request: str) -> None:
        try:
            self.check(need, opener, request)
        except MetaqError as error:
            stream.close(error)

    def refuses(self, need: Need, peer: _Peer, request: object, why: str) -> None:
        """Note in the audit log that the broker refuses a request."""
        if self.audit is not None:
            self.audit.refused(peer.principal, peer.host, need, request, why, would_be=False)

    def serves(self, need: Need, peer: _Peer, request: object) -> None:
        """Note in the audit log that the broker serves a request, if it is one of operators."""
        if self.audit is None or not is_of_operators(need, peer.principal):
            return
        why_not = None
        if self.permissions is not None and self.permissions.mode is AccessMode.OBSERVE:
            why_not = self.permissions.refusal(peer.principal, need, self._now_ms())
        self.audit.served(peer.principal, peer.host, need, request, why_not)

    def _remember(self, need: Need, peer: _Peer, permissions: Permissions) -> None:
        granted = peer.granted
        if granted is None or granted.permissions is not permissions or len(granted.needs) >= _MAX_GRANTED:
            granted = peer.granted = Granted(permissions, set())
        granted.needs.add(need)

    def _note(self, refused: _Refused, now: float) -> None:
        """Count a refusal. If there is no room, forget the one of the same address, or of the address with most, that
        was seen longest ago.
        """
        of_host = self._noted.setdefault(refused.host, {})
        noted = of_host.pop(refused, None)
        if noted is None:
            noted = [0, now]
            self._noted_count += 1
        of_host[refused] = [noted[0] + 1, now]  # at the end
        if len(of_host) > _MAX_NOTED_OF_ADDRESS:
            self._forget_one(refused.host)
        elif self._noted_count > _MAX_NOTED:
            self._forget_one(max(self._noted, key=lambda host: len(self._noted[host])))

    def _forget_one(self, host: str) -> None:
        of_host = self._noted[host]
        _, seen = of_host.pop(next(iter(of_host)))
        if not of_host:
            del self._noted[host]
        self._noted_count -= 1
        self._forgotten += 1
        self._forgotten_ms = max(self._forgotten_ms, seen)

    def admin_logged_in(self, name: str) -> None:
        """Record that a user with the grant `admin` has logged in."""
        self._admins[name] = self._now_ms()

    def login_failed(self, host: str) -> None:
        """Log that somebody at this address has given a wrong user or password."""
        self._login_lines.info(f"a login from {host} has failed: wrong user or password")
        self.login_refused(host, "wrong user or password")

    def login_refused(self, host: str, why: str) -> None:
        """Note in the audit log that somebody at this address could not log in."""
        if self.audit is not None:
            self.audit.login_failed(host, why)

    def report(self, networks: Mapping[str, Sequence[str]] = MappingProxyType({})) -> dict[str, Any]:
        """Return the item `access` of `stats`: the mode, how many users there are, what was refused or (in mode
        OBSERVE) would have been, which admins have logged in, and which users are known by their address. networks: for
        each of the latter its networks. `expires_ms` is None for a user who does not expire or does not exist.
        `forgotten` counts the refusals that are not named because there are too many; the last of them was seen at
        `forgotten_ms`. A stream that mode ENFORCE would cut is seen at each call.
        """
        if self.mode is AccessMode.OBSERVE:
            self._check_streams()
        refused = [
            {"principal": str(who), "address": host, "need": str(need), "count": count, "last_ms": at}
            for of_host in self._noted.values()
            for (who, host, need), (count, at) in of_host.items()
        ]
        users = {} if self.permissions is None else self.permissions.users
        return {
            "mode": str(self.mode),
            "users": len(users),
            "addresses": [
                {
                    "name": name,
                    "networks": list(of_user),
                    "exists": name in users,
                    "expires_ms": users[name].expires_ms if name in users else None,
                }
                for name, of_user in networks.items()
            ],
            "refused": refused,
            "forgotten": self._forgotten,
            "forgotten_ms": self._forgotten_ms,
            "admins": [{"name": name, "last_ms": at} for name, at in self._admins.items()],
        }
