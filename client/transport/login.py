"""The login of a user on a new connection: SCRAM (RFC 5802) in AUTHENTICATE requests (protocol/login.py). The code in
this module does no I/O. Only a client that logs in imports it, because importing the library scramp takes 70 ms.
"""

from __future__ import annotations

from scramp import ScramClient, ScramException

from metaq.protocol.client_stream import ReplyReader
from metaq.protocol.errors import AccessRefused, BrokerUnavailable, ConfigError, RemoteProtocolError
from metaq.protocol.frames import Frame, encode_frame
from metaq.protocol.limits import FRAMES_MARK
from metaq.protocol.login import MECHANISMS, AuthenticateReply, AuthenticateRequest
from metaq.protocol.statuses import RequestCode, ResponseCode

from ..settings.user_config import UserConfig

__all__ = ["Login"]

_MOST_ITERATIONS = 1_000_000
"""Largest iteration count that a broker may ask for. With this count the client computes for about half a second.
ScramClient itself refuses fewer than 4,096 iterations.
"""


class Login:
    """The exchange by which a user logs in on one connection. The code that does the connection's I/O is called the
    driver. It creates a Login after the broker has answered `version`. Then it sends `request`, passes received bytes
    to `receive` and sends what `receive` returns, until `done` is true. If an error is raised, the driver must close
    the connection.

    done: whether the user is logged in, and the broker has proved that it knows the user's password, too.
    """

    def __init__(self, user: UserConfig, peer: str, peer_version: str) -> None:
        """peer: the broker's name for error texts. peer_version: the broker's answer to `version`. Raises AccessRefused
        if the broker does not speak the framed protocol, and ConfigError if SCRAM forbids a character of the password.
        """
        if FRAMES_MARK not in peer_version.split():
            raise AccessRefused(
                f"{peer}: user {user.name} cannot log in: this is a Java broker (metaq 1.x), which has no users"
            )
        self.done = False
        self._user = user
        self._peer = peer
        self._mechanisms = iter(MECHANISMS)
        self._opaque = 0
        self._replies = ReplyReader()
        self.request = self._first(next(self._mechanisms))
        """The bytes that the driver sends first."""

    def receive(self, data: bytes) -> bytes:
        """Take the next bytes of the stream, or b"" at its end. Return the bytes that the driver must send now, perhaps
        none. The call that takes the broker's first answer computes for up to half a second, depending on the iteration
        count that the broker asks for.

        Raises AccessRefused if the broker refuses the login, or if it cannot prove that it knows the user's password.
        Raises RemoteProtocolError if the answer does not belong to the exchange. Raises BrokerUnavailable if the broker
        cannot answer now.
        """
        if not data:
            raise RemoteProtocolError("it closed the connection during the login")
        replies = self._replies.receive(data)
        if not replies:
            return b""
        reply = replies[0]
        if len(replies) > 1 or self.done or not isinstance(reply, Frame) or reply.opaque != self._opaque:
            raise RemoteProtocolError("it sent an answer that does not belong to the login")
        if reply.code == ResponseCode.MESSAGE_ILLEGAL and not self._is_last:
            mechanism = next(self._mechanisms, None)
            if mechanism is not None:  # this broker may know only a weaker one
                return self._first(mechanism)
        self._check(reply)
        message = AuthenticateReply.from_ext(reply.ext).message
        try:
            return self._next(message)
        except ScramException as error:
            raise AccessRefused(
                f"{self._peer}: user {self._user.name} is not logged in, because this broker does not prove that it "
                f"knows the user's password: {error}"
            ) from None

    def _first(self, mechanism: str) -> bytes:
        """Begin the exchange with this mechanism, and return the first request."""
        user = self._user
        try:
            self._scram = ScramClient([mechanism], user.name, user.password)
        except ScramException:  # its text quotes the characters
            remedy = "SCRAM forbids a character in it, such as a control character: choose another password"
            raise ConfigError("user.password", "…", remedy) from None
        self._is_last = False
        return self._request(self._scram.get_client_first())

    def _next(self, message: str) -> bytes:
        """Process the broker's message. Return the next request; b"" after the last one. Raises ScramException."""
        if self._is_last:
            self._scram.set_server_final(message)
            self.done = True
            return b""
        self._scram.set_server_first(message)
        iterations = int(self._scram.iterations)
        if iterations > _MOST_ITERATIONS:
            raise ScramException(f"it asks for {iterations:,} iterations, and {_MOST_ITERATIONS:,} are the limit")
        self._is_last = True
        return self._request(self._scram.get_client_final())

    def _request(self, message: str) -> bytes:
        self._opaque += 1
        fields = AuthenticateRequest(message, self._scram.mechanism_name)
        return encode_frame(RequestCode.AUTHENTICATE, self._opaque, fields.to_ext())

    def _check(self, reply: Frame) -> None:
        """Raise the error that an answer reports."""
        if reply.code == ResponseCode.SUCCESS:
            return
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise AccessRefused(
                f"{self._peer}: user {self._user.name} cannot log in: this broker has an older version of metaq, which "
                "has no users: update it"
            )
        if reply.code in (ResponseCode.ACCESS_REFUSED, ResponseCode.MESSAGE_ILLEGAL):
            raise AccessRefused(f"{self._peer}: user {self._user.name} cannot log in: {reply.remark}")
        raise BrokerUnavailable(
            f"{self._peer} cannot log in user {self._user.name} now: {reply.remark or f'response code {reply.code}'}"
        )
