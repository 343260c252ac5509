"""Check the passwords of users: by SCRAM on connections of the broker's own port, and by HTTP's Basic authentication on
the HTTP ports. Passwords are checked only on connections with TLS.

An unknown user is answered like a user with a wrong password, so that nobody can find out which users exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from metaq.coordination.records.security_payloads import Verifier, parse_verifier
from metaq.coordination.security.passwords import ITERATIONS
from metaq.protocol.access import AccessOperation, Need, Principal, User, is_user
from metaq.protocol.errors import AccessRefused
from metaq.protocol.login import MECHANISMS, AuthenticateReply, AuthenticateRequest

from .control import AccessControl

if TYPE_CHECKING:
    from scramp import ScramServer

__all__ = ["MAX_FAILURES", "Logins"]

MAX_FAILURES = 20
"""After so many failed logins from one address within FAILURE_SECONDS, further ones are refused unchecked."""
FAILURE_SECONDS = 60.0
_MAX_ADDRESSES = 10_000
_MAX_VERIFIED = 1_000
_SALT_BYTES = 32
_ADMIN = Need(AccessOperation.ADMIN)
_NO_TLS = "users can log in only on a connection with TLS"
_WRONG = "the user or the password is wrong, or the user has expired"


class LoginPeer(Protocol):
    """A connection on which a user can log in."""

    @property
    def host(self) -> str: ...
    @property
    def is_encrypted(self) -> bool: ...
    def logged_in(self, principal: Principal) -> None: ...


class _UnderWay(NamedTuple):
    server: ScramServer
    mechanism: str
    user: User | None


class _Failures(NamedTuple):
    number: int
    since: float


class Logins:
    """The logins of one broker. Used only on the reactor thread."""

    def __init__(self, control: AccessControl, now_ms: Callable[[], float], seconds: Callable[[], float]) -> None:
        """now_ms: returns the time in milliseconds of the Unix epoch. seconds: returns the reactor's time."""
        self._control = control
        self._now_ms = now_ms
        self._seconds = seconds
        self._under_way: WeakKeyDictionary[LoginPeer, _UnderWay] = WeakKeyDictionary()
        self._failures: dict[str, _Failures] = {}
        self._secret = secrets.token_bytes(32)
        self._verified: dict[bytes, User] = {}  # by a digest of name and password: spares HTTP requests the iterations

    # --- SCRAM --------------------------------------------------------------------------------------------------------

    def step(self, request: AuthenticateRequest, peer: LoginPeer) -> AuthenticateReply:
        """Do one step of a login, and return the answer. After the second step the connection belongs to the user.
        Raises AccessRefused; the login then begins anew.
        """
        from scramp import ScramException

        under_way = self._under_way.pop(peer, None)
        self._check_place(peer.host, peer.is_encrypted)
        try:
            if under_way is None:
                return AuthenticateReply(self._begin(request, peer))
            server = under_way.server
            server.set_client_final(request.message)
            if under_way.user is None or request.mechanism != under_way.mechanism:
                raise ScramException("no user")
            message = server.get_server_final()
        except (ScramException, ValueError) as error:  # ValueError: what is no base64, and the like
            self._has_failed(peer.host)
            raise AccessRefused(_WRONG) from error
        self._has_logged_in(under_way.user, peer.host, under_way.mechanism, each=True)
        peer.logged_in(Principal("user", under_way.user.name))
        return AuthenticateReply(message)

    def _begin(self, request: AuthenticateRequest, peer: LoginPeer) -> str:
        from scramp import ScramMechanism

        found: list[User | None] = []

        def verifier(name: str) -> tuple[bytes, bytes, bytes, int]:
            user = self._user(name)
            text = None if user is None else user.verifiers.get(request.mechanism)
            found.append(None if text is None else user)
            if text is None:
                kept = self._false_verifier(request.mechanism, name)
            else:
                kept = parse_verifier(request.mechanism, text)
            return kept.salt, kept.stored_key, kept.server_key, kept.iterations

        server = ScramMechanism(request.mechanism).make_server(verifier)
        server.set_client_first(request.message)
        message = server.get_server_first()
        self._under_way[peer] = _UnderWay(server, request.mechanism, found[0])
        return str(message)

    def _false_verifier(self, mechanism: str, name: str) -> Verifier:
        """Return a verifier that no password fits. The same name always gets the same salt from this broker."""
        digest = hmac.digest(self._secret, f"{mechanism}:{name}".encode(), "sha512")
        size = hashlib.new(mechanism.removeprefix("SCRAM-").replace("-", "").lower()).digest_size
        return Verifier(ITERATIONS, digest[:_SALT_BYTES], secrets.token_bytes(size), secrets.token_bytes(size))

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def by_basic(self, header: str | None, host: str, certified: Principal, is_encrypted: bool) -> Principal:
        """Return who has sent an HTTP request. header: the value of its header Authorization; None if it has none.
        certified: who the sender is by its certificate. Raises AccessRefused for a wrong password.
        """
        if header is None:
            return certified
        self._check_place(host, is_encrypted)
        scheme, _, encoded = header.partition(" ")
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:  # what is no base64 or no UTF-8
            name = colon = password = ""
        user = self._user(name) if colon and scheme.lower() == "basic" else None
        if user is None or not self._fits(user, password):
            self._has_failed(host)
            raise AccessRefused(_WRONG)
        self._has_logged_in(user, host, "Basic authentication", each=False)
        return Principal("user", user.name)

    def _fits(self, user: User, password: str) -> bool:
        """Return whether this is the user's password. If it was not checked lately, this takes some ten
        milliseconds.
        """
        from scramp import ScramException, ScramMechanism

        digest = hmac.digest(self._secret, f"{user.name}:{password}".encode("utf-8", "surrogatepass"), "sha256")
        if self._verified.get(digest) is user:
            return True
        mechanism = MECHANISMS[-1]
        if (text := user.verifiers.get(mechanism)) is None:
            return False
        kept = parse_verifier(mechanism, text)
        try:
            _, stored_key, _, _ = ScramMechanism(mechanism).make_auth_info(password, kept.iterations, kept.salt)
        except ScramException:  # characters that no password has
            return False
        if not hmac.compare_digest(stored_key, kept.stored_key):
            return False
        if len(self._verified) >= _MAX_VERIFIED:
            self._verified.clear()
        self._verified[digest] = user
        return True

    # --- both ---------------------------------------------------------------------------------------------------------

    def _user(self, name: str) -> User | None:
        permissions = self._control.permissions
        user = permissions.users.get(name) if permissions is not None and is_user(name) else None
        return None if user is None or (user.expires_ms is not None and self._now_ms() >= user.expires_ms) else user

    def _check_place(self, host: str, is_encrypted: bool) -> None:
        if not is_encrypted:
            self._control.login_refused(host, _NO_TLS)
            raise AccessRefused(_NO_TLS)
        failures = self._failures.get(host)
        if failures is None:
            return
        if self._seconds() - failures.since >= FAILURE_SECONDS:
            del self._failures[host]
        elif failures.number >= MAX_FAILURES:
            why = f"too many failed logins from {host}: try again in a minute"
            self._control.login_refused(host, why)
            raise AccessRefused(why)

    def _has_failed(self, host: str) -> None:
        failures = self._failures.pop(host, None) or _Failures(0, self._seconds())
        if len(self._failures) >= _MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]  # the one that failed longest ago
        self._failures[host] = failures._replace(number=failures.number + 1)
        self._control.login_failed(host)

    def _has_logged_in(self, user: User, host: str, how: str, *, each: bool) -> None:
        if self._control.audit is not None:
            self._control.audit.logged_in(user.name, host, how, each)
        if user.access.permits(_ADMIN):
            self._control.admin_logged_in(user.name)
