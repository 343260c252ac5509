"""A broker's side of a login, with one user."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scramp import ScramException, ScramMechanism

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import RESPONSE, encode_frame, parse_frame
from metaq.protocol.login import MECHANISMS, AuthenticateReply, AuthenticateRequest
from metaq.protocol.statuses import RequestCode, ResponseCode

__all__ = ["ScramPeer", "answer"]


class ScramPeer:
    """Answers AUTHENTICATE requests of one connection: verifies the password by scramp's ScramServer.

    asked: the requests that it has served. iterations: the iteration count that it names; its keys are those of 4,096.
    """

    def __init__(self, password: str, knows: Collection[str] = MECHANISMS, iterations: int = 4096) -> None:
        self.asked: list[AuthenticateRequest] = []
        self._keys = {each: ScramMechanism(each).make_auth_info(password, 4096) for each in knows}
        self._iterations = iterations
        self._scram: Any = None

    def __call__(self, data: bytes) -> bytes:
        """Return the answer to one request."""
        frame = parse_frame(data, 0, len(data))
        assert frame.code == RequestCode.AUTHENTICATE
        try:
            request = AuthenticateRequest.from_ext(frame.ext)
            if request.mechanism not in self._keys:
                raise RemoteProtocolError("an unknown mechanism")
            reply = self._step(request)
        except RemoteProtocolError as error:
            return answer(frame.opaque, ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        except ScramException as error:
            return answer(frame.opaque, ResponseCode.ACCESS_REFUSED, remark=f"no: {error}")
        return answer(frame.opaque, message=self.changed(reply))

    def _step(self, request: AuthenticateRequest) -> str:
        self.asked.append(request)
        salt, stored, server, iterations = self._keys[request.mechanism]
        if self._scram is None:
            self._scram = ScramMechanism(request.mechanism).make_server(lambda _: (salt, stored, server, iterations))
            self._scram.set_client_first(request.message)
            return str(self._scram.get_server_first())
        self._scram.set_client_final(request.message)
        return str(self._scram.get_server_final())

    def changed(self, message: str) -> str:
        """Return the message to send instead of this one."""
        return message.replace("i=4096", f"i={self._iterations}")


def answer(opaque: int, code: int = ResponseCode.SUCCESS, message: str = "", remark: str = "") -> bytes:
    """Return an answer to AUTHENTICATE."""
    fields = AuthenticateReply(message).to_ext() if message else {}
    return encode_frame(code, opaque, fields, flag=RESPONSE, remark=remark)
