"""Check access rights to znodes. The schemes are world, auth, digest and ip, as in ZooKeeper 3.9.5, and also x509 on a
server with a secure port.

The rules are the same as in PrepRequestProcessor.fixupACL, ZooKeeperServer.checkACL, DigestAuthenticationProvider,
IPAuthenticationProvider and X509AuthenticationProvider of Apache's server.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from .codes import RefusalCode, Refused
from .distinguished_names import is_distinguished_name
from .jute import Acl, Malformed

__all__ = [
    "ADMIN",
    "CREATE",
    "DELETE",
    "OPEN",
    "READ",
    "READ_ONLY",
    "WRITE",
    "Identity",
    "admits",
    "digest",
    "expanded",
    "require",
    "user_of",
    "without_passwords",
]

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16

OPEN = (Acl(31, "world", "anyone"),)
READ_ONLY = (Acl(READ, "world", "anyone"),)

Identity = tuple[str, str]
"""An identity of a connection: a scheme, and a name that the client has proved by this scheme. A connection has the
identity ("ip", …) from its start, and gets the identity ("digest", "user:…") by an `auth` request. A connection with a
verified client certificate has the identity ("x509", …), too, with the name of the certificate's subject.
"""

_NAMED = ("digest", "x509")
"""The schemes whose identities match an ACL of the same name. An ACL of the scheme auth stands for these identities."""

_NUMBER = re.compile(r"[+-]?[0-9]+")


def digest(credentials: bytes) -> str:
    """Return the name that a connection gets when it authenticates with `user:password`."""
    text = credentials.decode("utf-8", "replace")
    hashed = hashlib.sha1(text.encode()).digest()
    return f"{text.partition(':')[0]}:{base64.b64encode(hashed).decode()}"


def user_of(identity: Identity) -> str:
    """Return the name that the answer to the request whoAmI contains for an identity. For a digest identity, this is
    only the user, without the hash of the password.
    """
    scheme, name = identity
    return name.partition(":")[0] if scheme == "digest" else name


def expanded(
    acls: Sequence[Acl] | None, identities: Iterable[Identity], *, knows_x509: bool = False
) -> tuple[Acl, ...]:
    """Return the ACLs that a request contains, without duplicates. Each ACL with the scheme "auth" is replaced by ACLs
    for the identities of the client. knows_x509: whether the server has a secure port, so that x509 is valid.

    Raises Refused (INVALID_ACL) for invalid ACLs. Raises Malformed for an ACL without a name, because Apache's server
    (in Java) cannot handle such an ACL either.
    """
    result: list[Acl] = []
    for each in dict.fromkeys(acls or ()):
        if each.scheme is None:
            raise Refused(RefusalCode.INVALID_ACL)
        if each.scheme == "auth":
            proved = [Acl(each.permissions, scheme, name) for scheme, name in identities if scheme in _NAMED]
            if not proved:
                raise Refused(RefusalCode.INVALID_ACL)
            result += proved
        elif (each.scheme != "x509" or knows_x509) and _is_valid(each.scheme, each.identity):
            result.append(each)
        else:
            raise Refused(RefusalCode.INVALID_ACL)
    if not result:
        raise Refused(RefusalCode.INVALID_ACL)
    return tuple(result)


def _is_valid(scheme: str, name: str | None) -> bool:
    if scheme not in ("world", "digest", "ip", "x509"):
        return False
    if name is None:
        raise Malformed("an ACL without a name")
    if scheme == "world":
        return name == "anyone"
    if scheme == "digest":
        return len(name.rstrip(":").split(":")) == 2
    return is_distinguished_name(name) if scheme == "x509" else _network(name) is not None


def require(acls: Collection[Acl], permission: int, identities: Collection[Identity]) -> None:
    """Raise Refused (NO_AUTH) if the ACLs grant these identities none of the bits of `permission`."""
    if acls is not OPEN and not admits(acls, permission, identities):
        raise Refused(RefusalCode.NO_AUTH)


def admits(acls: Collection[Acl], permission: int, identities: Collection[Identity]) -> bool:
    """Return whether the ACLs grant these identities at least one of the bits of `permission`."""
    if not acls:
        return True
    for permissions, scheme, name in acls:
        if not permissions & permission:
            continue
        if scheme == "world" and name == "anyone":
            return True
        if scheme in _NAMED and (scheme, name) in identities:
            return True
        if scheme == "ip" and any(each == "ip" and _is_in(address, name or "") for each, address in identities):
            return True
    return False


def without_passwords(acls: Iterable[Acl]) -> tuple[Acl, ...]:
    """Return the ACLs as they are sent to a client that may not change them: the digest names do not contain the hash
    of the password.
    """
    return tuple(
        each._replace(identity=re.sub(":.*", ":x", each.identity or "")) if each.scheme == "digest" else each
        for each in acls
    )


def _is_in(address: str, network: str) -> bool:
    wanted, found = _network(network), _address(address)
    if wanted is None or found is None or len(wanted[0]) != len(found):
        return False
    unused = len(found) * 8 - wanted[1]
    return int.from_bytes(wanted[0], "big") >> unused == int.from_bytes(found, "big") >> unused


@lru_cache(1024)
def _network(name: str) -> tuple[bytes, int] | None:
    """Parse the name of an ip ACL, which is "address" or "address/bits". Return the bytes of the address, and the
    number of its leading bits that must match.
    """
    text, slash, bits = name.partition("/")
    address = _address(text)
    if address is None:
        return None
    if not slash:
        return address, len(address) * 8
    if not _NUMBER.fullmatch(bits) or not 0 <= int(bits) <= len(address) * 8:
        return None
    return address, int(bits)


@lru_cache(1024)
def _address(text: str) -> bytes | None:
    if ":" in text:
        try:
            return ipaddress.IPv6Address(text).packed if "." not in text and "%" not in text else None
        except ValueError:
            return None
    parts = text.split(".")
    if len(parts) != 4 or not all(_NUMBER.fullmatch(part) and 0 <= int(part) <= 255 for part in parts):
        return None
    return bytes(map(int, parts))
