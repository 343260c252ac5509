"""Format and parse the payloads of the znodes that hold the mode, the users and the grants of a cluster, and the policy
of the access rights to znodes. The functions are pure.

A payload that cannot be understood wholly is damaged, and parsing it raises CoordinationError. Unknown keys of the JSON
objects are the exception: later versions of metaq may write them, so they are ignored, and kept when the payload is
written again. The error texts never contain a payload, because it holds the verifiers of a password.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from metaq.protocol.access import MAX_GRANTS, MAX_QUOTA, Access, AccessGrant, AccessMode, Quota, User, check_user
from metaq.protocol.errors import ConfigError, CoordinationError, InvalidName
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.login import MECHANISMS

from .acl_policy import AclPolicy

__all__ = [
    "MAX_ACL_POLICY_BYTES",
    "MAX_ITERATIONS",
    "MAX_MODE_BYTES",
    "MAX_USER_BYTES",
    "MIN_ITERATIONS",
    "StoredMode",
    "StoredUser",
    "Verifier",
    "format_acl_policy",
    "format_mode",
    "format_user",
    "format_verifier",
    "parse_acl_policy",
    "parse_mode",
    "parse_user",
    "parse_verifier",
]

MAX_USER_BYTES = 256 * 1024
"""Largest payload of a user's znode. MAX_GRANTS grants with the longest usual names of topics need half of it."""

MAX_MODE_BYTES = 4096
"""Largest payload of the znode that holds the mode."""

MAX_ACL_POLICY_BYTES = 128 * 1024
"""Largest payload of the znode that holds the policy of the access rights."""

MIN_ITERATIONS = 4096
"""Smallest iteration count of a verifier (RFC 7677)."""

MAX_ITERATIONS = 1_000_000
"""Largest iteration count of a verifier. A client computes that many iterations at each login, so it refuses more."""

_KEY_BYTES = {"SCRAM-SHA-512": 64, "SCRAM-SHA-256": 32}
_SALT_BYTES = range(8, 65)


class Verifier(NamedTuple):
    """The data with which a broker verifies a password by one SCRAM mechanism (RFC 5802). The password cannot be read
    from it, but it can be guessed if it is weak.
    """

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"Verifier(iterations={self.iterations})"


class StoredMode(NamedTuple):
    """The content of the znode `security`. unknown: keys of later versions, with their values. quotas: each
    counts for the users without such a quota of their own. unknown_quotas: quotas of later versions.
    """

    mode: AccessMode
    unknown: Mapping[str, Any] = MappingProxyType({})
    quotas: Mapping[Quota, int] = MappingProxyType({})
    unknown_quotas: Mapping[str, Any] = MappingProxyType({})


class StoredUser(NamedTuple):
    """The content of a user's znode. unknown: keys of later versions, with their values. unknown_verifiers: the
    verifiers of the password for mechanisms of later versions. unknown_quotas: quotas of later versions.
    """

    user: User
    unknown: Mapping[str, Any] = MappingProxyType({})
    unknown_verifiers: Mapping[str, Any] = MappingProxyType({})
    unknown_quotas: Mapping[str, Any] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"StoredUser({self.user.name!r})"


# --- the mode ---------------------------------------------------------------------------------------------------------


def format_mode(stored: StoredMode) -> bytes:
    """Return a JSON object with the key `mode`, and with `quotas` if all users have some."""
    quotas = _quotas_object(stored.quotas, stored.unknown_quotas)
    return _json({**stored.unknown, "mode": str(stored.mode), **quotas})


def parse_mode(path: str, data: bytes | None) -> StoredMode:
    """Parse a payload that format_mode() has made. An empty payload is damaged, too: nobody writes one."""
    fields = _object(path, data, MAX_MODE_BYTES)
    try:
        mode = AccessMode(fields.pop("mode"))
    except (KeyError, ValueError):
        raise _damaged(path, f"its mode is none of {', '.join(AccessMode)}") from None
    quotas, unknown_quotas = _quotas(path, fields.pop("quotas", {}))
    return StoredMode(mode, fields, quotas, unknown_quotas)


# --- users ------------------------------------------------------------------------------------------------------------


def format_user(stored: StoredUser) -> bytes:
    """Return a JSON object with the keys `grants`, `scram` (for a user with a password), `expires` (for a user who
    expires) and `quotas` (for a user who has some). The name of the znode is the user's name.
    """
    user = stored.user
    fields: dict[str, Any] = {**stored.unknown, "grants": list(map(str, user.access.grants))}
    if verifiers := {**stored.unknown_verifiers, **user.verifiers}:
        fields["scram"] = verifiers
    if user.expires_ms is not None:
        fields["expires"] = user.expires_ms
    return _json({**fields, **_quotas_object(user.quotas, stored.unknown_quotas)})


def parse_user(path: str, name: str, data: bytes | None) -> StoredUser:
    """Parse the payload of the znode of the user `name`.

    A single grant that cannot be understood makes the whole payload damaged, because it may be a
    prohibition.
    """
    try:
        check_user(name)
    except InvalidName as error:
        raise _damaged(path, str(error)) from None
    fields = _object(path, data, MAX_USER_BYTES)
    grants = _grants(path, fields.pop("grants", None))
    scram = fields.pop("scram", {})
    verifiers = _verifiers(path, scram)
    expires = fields.pop("expires", None)
    if expires is not None and not (type(expires) is int and 0 <= expires <= INT64_MAX):
        raise _damaged(path, "its expires is no number of milliseconds since 1970")
    quotas, unknown_quotas = _quotas(path, fields.pop("quotas", {}))
    user = User(name, Access(grants), expires, MappingProxyType(verifiers), quotas)
    unknown_verifiers = {key: value for key, value in scram.items() if key not in MECHANISMS}
    return StoredUser(user, fields, unknown_verifiers, unknown_quotas)


def _grants(path: str, texts: object) -> list[AccessGrant]:
    if type(texts) is not list or not all(type(each) is str for each in texts):
        raise _damaged(path, "its grants are no list of texts")
    if len(texts) > MAX_GRANTS:
        raise _damaged(path, f"it has more than {MAX_GRANTS} grants")
    try:
        return list(map(AccessGrant.parse, texts))
    except InvalidName as error:
        raise _damaged(path, str(error)) from None


def _verifiers(path: str, found: object) -> dict[str, str]:
    if type(found) is not dict:
        raise _damaged(path, "its scram is no object")
    known: dict[str, str] = {name: found[name] for name in MECHANISMS if name in found}
    for mechanism, text in known.items():
        try:
            parse_verifier(mechanism, text)
        except ValueError:
            raise _damaged(path, f"its verifier for {mechanism} cannot be used") from None
    return known


def _quotas_object(quotas: Mapping[Quota, int], unknown: Mapping[str, Any]) -> dict[str, Any]:
    found = {**unknown, **{str(quota): value for quota, value in quotas.items()}}
    return {"quotas": found} if found else {}


def _quotas(path: str, found: object) -> tuple[Mapping[Quota, int], Mapping[str, Any]]:
    """Return the quotas of an object, and those that only later versions know."""
    if type(found) is not dict:
        raise _damaged(path, "its quotas are no object")
    known = {Quota(name): value for name, value in found.items() if name in set(Quota)}
    for name, value in known.items():
        if not (type(value) is int and name.least <= value <= MAX_QUOTA):
            raise _damaged(path, f"its quota {name} is no number from {name.least} to {MAX_QUOTA:,}")
    unknown = {name: value for name, value in found.items() if name not in known}
    return MappingProxyType(known), unknown


def format_verifier(verifier: Verifier) -> str:
    """Return `ITERATIONS:SALT:STOREDKEY:SERVERKEY`; the last three parts are encoded in base64."""
    iterations, *parts = verifier
    return ":".join((str(iterations), *(base64.b64encode(part).decode() for part in parts)))


def parse_verifier(mechanism: str, text: str) -> Verifier:
    """Parse a text that format_verifier() has made for one of MECHANISMS. Raises ValueError, whose text does not
    contain the verifier.
    """
    try:
        count, *parts = text.split(":")
        salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in parts)
        sound = count.isascii() and count.isdecimal() and len(count) <= len(str(MAX_ITERATIONS))
        sound = sound and MIN_ITERATIONS <= int(count) <= MAX_ITERATIONS and len(salt) in _SALT_BYTES
        if sound and len(stored_key) == len(server_key) == _KEY_BYTES[mechanism]:
            return Verifier(int(count), salt, stored_key, server_key)
    except (ValueError, AttributeError, binascii.Error):
        pass  # reported below, without the text
    raise ValueError(f"this is no verifier for {mechanism}")


def format_acl_policy(policy: AclPolicy) -> bytes:
    return _json({"cluster": list(map(str, policy.cluster)), "clients": list(map(str, policy.clients))})


def parse_acl_policy(path: str, data: bytes | None) -> AclPolicy:
    """Parse the policy of the access rights to znodes. Raises CoordinationError if it is damaged."""
    fields = _object(path, data, MAX_ACL_POLICY_BYTES)
    lists = [fields.get(name, []) for name in ("cluster", "clients")]
    if not all(type(each) is list and all(type(text) is str for text in each) for each in lists):
        raise _damaged(path, "its cluster or its clients are no list of texts")
    try:
        return AclPolicy.of(*lists)
    except ConfigError as error:
        raise _damaged(path, str(error)) from None


# --- helpers ----------------------------------------------------------------------------------------------------------


def _object(path: str, data: bytes | None, most_bytes: int) -> dict[str, Any]:
    """Parse a payload as a JSON object, in which no key occurs twice."""
    if data is None or len(data) > most_bytes:
        raise _damaged(path, "it is empty" if data is None else f"it has more than {most_bytes:,} bytes")
    try:
        fields = json.loads(data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise _damaged(path, "it holds no JSON in UTF-8, or a key occurs twice") from None
    if type(fields) is not dict:
        raise _damaged(path, "it holds no JSON object")
    return fields


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _damaged(path: str, why: str) -> CoordinationError:
    return CoordinationError(f"ZooKeeper node {path} is damaged, {why}: correct or delete the node")
