"""Make passwords, and the verifiers with which brokers verify them. The library scramp, which takes time to import, is
imported only when a verifier is made.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from metaq.protocol.errors import ConfigError
from metaq.protocol.login import MECHANISMS

from ..records.security_payloads import Verifier, format_verifier

__all__ = ["ITERATIONS", "MIN_PASSWORD_CHARACTERS", "make_verifiers", "random_password"]

ITERATIONS = 16_384
"""Iteration count of new verifiers. A login by SCRAM-SHA-512 then costs the client about 10 ms of processor time
(measured on one processor of an AMD EPYC), which nobody notices, and whoever has stolen a verifier can try only about
100 passwords in a second on such a processor. The broker pays nothing for the count. A password that metaq has made has
128 random bits and would be safe with any count; the count protects those that people choose.
"""

MIN_PASSWORD_CHARACTERS = 8
"""Smallest length of a password that a person chooses."""

_MAX_PASSWORD_CHARACTERS = 256
_RANDOM_BYTES = 16


def random_password() -> str:
    """Return a new password of 128 random bits. It has 22 letters, digits, `-` and `_`."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def make_verifiers(password: str, option: str = "password") -> Mapping[str, str]:
    """Return a verifier of the password for each of MECHANISMS. The call takes about 15 ms of processor time.

    option: the option in whose name the password came, for error texts. Raises ConfigError, without the password, if
    the password is too short or too long, begins or ends with a blank (a profile could not hold it), or has characters
    that SCRAM forbids.
    """
    from scramp import ScramException, ScramMechanism

    if not MIN_PASSWORD_CHARACTERS <= len(password) <= _MAX_PASSWORD_CHARACTERS or password != password.strip():
        length = f"{MIN_PASSWORD_CHARACTERS} to {_MAX_PASSWORD_CHARACTERS}"
        remedy = f"use {length} characters in one line, without blanks around them"
        raise ConfigError(option, "(not shown)", remedy)
    found = {}
    for mechanism in MECHANISMS:
        try:
            salt, stored, server, count = ScramMechanism(mechanism).make_auth_info(password, iteration_count=ITERATIONS)
        except ScramException:
            raise ConfigError(option, "(not shown)", "use no control characters and no private ones") from None
        found[mechanism] = format_verifier(Verifier(count, salt, stored, server))
    return found
