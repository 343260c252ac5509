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

from ..runtime.account import account_address
from .control import AccessControl

if TYPE_CHECKING:
    from scramp import ScramServer

__all__ = ["MAX_FAILURES", "Logins", "load_scramp"]

MAX_FAILURES = 20
"""After so many failed logins of one user from one address within FAILURE_SECONDS, further ones are refused unchecked.
The same holds for so many failed Basic authentications from one address, whichever the users, because each takes the
broker ten milliseconds.
"""
FAILURE_SECONDS = 60.0
_MAX_PASSWORD_CHARACTERS = 256
_MAX_ADDRESSES = 10_000
_MAX_VERIFIED = 1_000
_SALT_BYTES = 32
_ADMIN = Need(AccessOperation.ADMIN)
_MAX_NAME = 64
_ANY_USER = ""  # in place of a user's name: the Basic authentications of an address
_NO_TLS = "users can log in only on a connection with TLS: connect with TLS (section [tls] of the profile)"
_WRONG = (
    "the user or the password is wrong, or the user has expired: correct `name` and `password` in the section [user] "
    "of the profile; `metaq users list` shows operators who has expired, and `metaq users password NAME` sets another "
    "password"
)


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
    name: str
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
        self._failures: dict[tuple[str, str], _Failures] = {}  # by address and user
        self._secret = secrets.token_bytes(32)
        self._verified: dict[bytes, User] = {}  # by a digest of name and password: spares HTTP requests the iterations

    # --- SCRAM --------------------------------------------------------------------------------------------------------

    def step(self, request: AuthenticateRequest, peer: LoginPeer) -> AuthenticateReply:
        """Do one step of a login, and return the answer. After the second step the connection belongs to the user.
        Raises AccessRefused, and BrokerStarting if the broker knows no users yet; the login then begins anew.
        """
        from scramp import ScramException

        under_way = self._under_way.pop(peer, None)
        self._check_encrypted(peer.host, peer.is_encrypted)
        self._control.check_started()
        try:
            if under_way is None:
                return AuthenticateReply(self._begin(request, peer))
            under_way.server.set_client_final(request.message)
            user = self._user(under_way.name)
            begun = under_way.user
            if user is None or begun is None or user.stamp != begun.stamp or request.mechanism != under_way.mechanism:
                raise ScramException("no user, or one whose password has just changed")
            message = under_way.server.get_server_final()
        except (ScramException, ValueError) as error:  # ValueError: what is no base64, and the like
            if under_way is not None:
                self._has_failed(peer.host, under_way.name)
            raise AccessRefused(_WRONG) from error
        self._has_logged_in(user, peer.host, under_way.mechanism, each=True)
        peer.logged_in(Principal("user", user.name, user.stamp))
        return AuthenticateReply(message)

    def _begin(self, request: AuthenticateRequest, peer: LoginPeer) -> str:
        from scramp import ScramMechanism

        found: list[tuple[str, User | None]] = []

        def verifier(name: str) -> tuple[bytes, bytes, bytes, int]:
            user = self._user(name)
            text = None if user is None else user.verifiers.get(request.mechanism)
            found.append((name[:_MAX_NAME], None if text is None else user))
            if text is None:
                kept = self._false_verifier(request.mechanism, name)
            else:
                kept = parse_verifier(request.mechanism, text)
            return kept.salt, kept.stored_key, kept.server_key, kept.iterations

        server = ScramMechanism(request.mechanism).make_server(verifier)
        server.set_client_first(request.message)
        self._check_failures(peer.host, found[0][0])
        message = server.get_server_first()
        self._under_way[peer] = _UnderWay(server, request.mechanism, *found[0])
        return str(message)

    def _false_verifier(self, mechanism: str, name: str) -> Verifier:
        """Return a verifier that no password fits. A name gets the same salt from all brokers of the cluster, as the
        name of a user does: the salt is made from a verifier that all brokers know, and nobody else.
        """
        permissions = self._control.permissions
        users = {} if permissions is None else permissions.users
        first = min((name for name, user in users.items() if user.verifiers), default=None)
        secret = b"" if first is None else "".join(users[first].verifiers.values()).encode()
        digest = hmac.digest(secret or self._secret, f"{mechanism}:{name}".encode(), "sha512")
        size = hashlib.new(mechanism.removeprefix("SCRAM-").replace("-", "").lower()).digest_size
        return Verifier(ITERATIONS, digest[:_SALT_BYTES], secrets.token_bytes(size), secrets.token_bytes(size))

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def by_basic(self, header: str | None, host: str, certified: Principal, is_encrypted: bool) -> Principal:
        """Return who has sent an HTTP request. header: the value of its header Authorization; None if it has none.
        certified: who the sender is by its certificate. Raises AccessRefused for a wrong password. Raises
        BrokerStarting if the broker knows no users yet.
        """
        if header is None:
            return certified
        self._check_encrypted(host, is_encrypted)
        self._control.check_started()
        scheme, _, encoded = header.partition(" ")
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:  # what is no base64 or no UTF-8
            name = colon = password = ""
        if not colon or scheme.lower() != "basic" or len(password) > _MAX_PASSWORD_CHARACTERS:
            raise AccessRefused(_WRONG)
        user = self._user(name)
        digest = hmac.digest(self._secret, f"{name}:{password}".encode("utf-8", "surrogatepass"), "sha256")
        if user is None or self._verified.get(digest) is not user:
            self._check_failures(host, _ANY_USER)
            if not self._fits(name, user, password):
                self._has_failed(host, _ANY_USER)
                raise AccessRefused(_WRONG)
            assert user is not None
            if len(self._verified) >= _MAX_VERIFIED:
                self._verified.clear()
            self._verified[digest] = user
        self._has_logged_in(user, host, "Basic authentication", each=False)
        return Principal("user", name)

    def _fits(self, name: str, user: User | None, password: str) -> bool:
        """Return whether this is the user's password. This takes some ten milliseconds, also for an unknown user."""
        from scramp import ScramException, ScramMechanism

        mechanism = MECHANISMS[-1]
        text = None if user is None else user.verifiers.get(mechanism)
        kept = self._false_verifier(mechanism, name) if text is None else parse_verifier(mechanism, text)
        try:
            _, stored_key, _, _ = ScramMechanism(mechanism).make_auth_info(password, kept.iterations, kept.salt)
        except ScramException:  # characters that no password has
            return False
        return hmac.compare_digest(stored_key, kept.stored_key)

    # --- both ---------------------------------------------------------------------------------------------------------

    def _user(self, name: str) -> User | None:
        permissions = self._control.permissions
        user = permissions.users.get(name) if permissions is not None and is_user(name) else None
        return None if user is None or user.has_expired(self._now_ms()) else user

    def _check_encrypted(self, host: str, is_encrypted: bool) -> None:
        if not is_encrypted:
            self._control.login_refused(host, _NO_TLS)
            raise AccessRefused(_NO_TLS)

    def _check_failures(self, host: str, name: str) -> None:
        key = account_address(host), name[:_MAX_NAME]
        failures = self._failures.get(key)
        if failures is None:
            return
        if self._seconds() - failures.since >= FAILURE_SECONDS:
            del self._failures[key]
        elif failures.number >= MAX_FAILURES:
            why = f"too many failed logins from {host}: try again in a minute"
            self._control.login_refused(host, why)
            raise AccessRefused(why)

    def _has_failed(self, host: str, name: str) -> None:
        key = account_address(host), name[:_MAX_NAME]
        failures = self._failures.pop(key, None) or _Failures(0, self._seconds())
        if len(self._failures) >= _MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]  # the one that failed longest ago
        self._failures[key] = failures._replace(number=failures.number + 1)
        self._control.login_failed(host)

    def _has_logged_in(self, user: User, host: str, how: str, *, each: bool) -> None:
        if self._control.audit is not None:
            self._control.audit.logged_in(user.name, host, how, each)
        if user.access.permits(_ADMIN):
            self._control.admin_logged_in(user.name)


def load_scramp() -> None:
    """Import the library now, because the import takes the broker a tenth of a second."""
    import scramp  # noqa: F401
