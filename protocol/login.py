"""The framed protocol's request by which a user logs in: AUTHENTICATE.

It carries the messages of SCRAM (RFC 5802, RFC 7677) as text. A login takes two requests on the same connection: the
first has the client-first-message and is answered with the server-first-message, the second has the
client-final-message and is answered with the server-final-message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .errors import RemoteProtocolError
from .fields import ExtFields, Field, choice

__all__ = ["MAX_LOGIN_CHARACTERS", "MECHANISMS", "AuthenticateReply", "AuthenticateRequest"]

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256")
"""The SCRAM mechanisms of brokers, the strongest first. Names are those of RFC 7677 and its registry."""

MAX_LOGIN_CHARACTERS = 1024
"""Largest length of one message of SCRAM. An ordinary one has fewer than 300 characters."""


def _message(text: str) -> str:
    if len(text) > MAX_LOGIN_CHARACTERS or not text.isascii():
        raise RemoteProtocolError(
            f"extFields.message has no SCRAM message of at most {MAX_LOGIN_CHARACTERS} characters"
        )
    return text


MessageField = Annotated[str, Field("message", _message)]


@dataclass(slots=True)
class AuthenticateRequest(ExtFields):
    """AUTHENTICATE: one step of a login. message: the client's SCRAM message. mechanism: one of MECHANISMS, the same in
    both steps.
    """

    message: MessageField
    mechanism: Annotated[str, choice("mechanism", MECHANISMS)] = MECHANISMS[0]


@dataclass(slots=True)
class AuthenticateReply(ExtFields):
    """message: the broker's SCRAM message for the step."""

    message: MessageField
