"""Decide which access rights the znodes of a cluster should have. The znode `security/acl` holds the policy: who
belongs to the cluster, and who is a client. docs/security.md describes the rights of each area.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from metaq.protocol.errors import ConfigError

from .paths import ROOT, Paths, parent_of

__all__ = ["ALL", "ANYBODY", "MAX_IDENTITIES", "READ", "AclPolicy", "Area", "Areas", "Right", "ZooKeeperIdentity"]

READ, CREATE, ALL = 1, 4, 31
"""Permissions of ZooKeeper as bits: read a znode, create its children, and all five (also write, delete, administer).
"""

MAX_IDENTITIES = 64
"""Largest number of identities in each list of a policy. Every znode has the rights of all of them."""

MAX_POLICY_CHARS = 8_192
"""Largest number of characters of all identities of a policy together. Each request that creates a znode contains them,
and a server accepts a request of 1 MB.
"""

_MAX_IDENTITY_CHARS = 512

_SHA1_BYTES = 20


class Area(Enum):
    """The znodes of one area have the same access rights."""

    CLUSTER = "cluster"
    """Only brokers and operators write these znodes; everybody reads them."""
    SECRET = "verifiers"
    """Only brokers and operators read and write these znodes: the verifiers of users' passwords."""
    ENTRY = "entries"
    """Clients create children of these znodes, such as the znode of a new group, but delete and change nothing."""
    TOPICS = "topics"
    """As ENTRY, but only for clients that an address identifies: 1.x producers create the znode of a topic themselves.
    Other clients create no topics, and must not be able to: a broker serves no topic whose znode it may not write.
    """
    CLIENT = "clients"
    """Clients write these znodes; everybody reads them."""


class Areas:
    """Finds the area of each znode of a cluster."""

    def __init__(self, paths: Paths) -> None:
        brokers, spark = parent_of(paths.broker_ids()), parent_of(paths.spark_writes())
        self._single = {
            paths.groups(): Area.ENTRY,
            paths.topics_pub(): Area.TOPICS,
            paths.topics_sub(): Area.TOPICS,
        }
        if paths.root:
            self._single[paths.root] = Area.CLUSTER
        self._trees = {
            paths.users(): Area.SECRET,
            paths.groups(): Area.CLIENT,
            paths.spark_writes(): Area.CLIENT,
            brokers: Area.CLUSTER,
            paths.security(): Area.CLUSTER,
            spark: Area.CLUSTER,
        }
        self.tops = [paths.root] if paths.root else [brokers, paths.groups(), paths.security(), spark]
        """The topmost znodes that have an area."""

    def of(self, path: str) -> Area | None:
        """Return the area of a znode; None for a znode that metaq does not know, whose rights stay as they are."""
        if (single := self._single.get(path)) is not None:
            return single
        return next((area for top, area in self._trees.items() if path == top or path.startswith(top + ROOT)), None)


class ZooKeeperIdentity(NamedTuple):
    """Somebody who has proved to ZooKeeper who he is. scheme: how he has proved this, for example `x509`. name: what he
    has proved, for example `CN=mq1`.
    """

    scheme: str
    name: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}"

    @classmethod
    def parse(cls, text: str, option: str = "identity") -> ZooKeeperIdentity:
        """Parse `SCHEME:NAME`. Raises ConfigError for a text that no ZooKeeper accepts as an identity."""
        scheme, _, name = text.partition(":")
        if (check := _CHECKS.get(scheme)) is None:
            raise ConfigError(option, text, "write x509:SUBJECT, digest:USER:HASH, ip:NETWORK or world:anyone")
        if not name or len(text) > _MAX_IDENTITY_CHARS or not text.isprintable():
            raise ConfigError(option, text[:80], f"write {scheme}:… with at most {_MAX_IDENTITY_CHARS} characters")
        if remedy := check(name):
            raise ConfigError(option, text, remedy)
        return cls(scheme, name)

    @property
    def warning(self) -> str:
        """A sentence about an identity that ZooKeeper accepts but that is perhaps a mistake; "" if there is none."""
        if self.scheme == "x509" and ", " in self.name:
            return f"{self} has a space behind a comma, ZooKeeper compares with CN=…,O=… without spaces"
        if self.scheme == "x509" and "=" not in self.name:
            return f"{self} is no subject of a certificate such as CN=mq1"
        if self.scheme == "ip" and ipaddress.ip_network(self.name, strict=False).prefixlen == 0:
            return f"{self} is every address: world:anyone says so plainly"
        return ""


ANYBODY = ZooKeeperIdentity("world", "anyone")


class Right(NamedTuple):
    """What one identity may do with a znode. permissions: bits of ZooKeeper, such as READ."""

    permissions: int
    identity: ZooKeeperIdentity


@dataclass(frozen=True, slots=True)
class AclPolicy:
    """cluster: the identities of brokers and operators, who have all rights on all znodes. clients: the identities that
    have all rights on the clients' znodes.
    """

    cluster: tuple[ZooKeeperIdentity, ...]
    clients: tuple[ZooKeeperIdentity, ...] = ()

    @classmethod
    def of(cls, cluster: Iterable[str], clients: Iterable[str] = ()) -> AclPolicy:
        """Parse and check a policy. Raises ConfigError."""
        found = []
        for option, texts in (("cluster", cluster), ("clients", clients)):
            identities = tuple(dict.fromkeys(ZooKeeperIdentity.parse(each, option) for each in texts))
            if len(identities) > MAX_IDENTITIES:
                raise ConfigError(option, len(identities), f"name at most {MAX_IDENTITIES}: use a network, or one user")
            found.append(identities)
        if (chars := sum(len(str(each)) for each in (*found[0], *found[1]))) > MAX_POLICY_CHARS:
            remedy = f"all identities together may have {MAX_POLICY_CHARS:,} characters: use networks, or one user"
            raise ConfigError("cluster and clients", f"{chars:,} characters", remedy)
        if not found[0]:
            raise ConfigError("cluster", "", "name the identities of brokers and operators, such as x509:CN=mq1")
        if ANYBODY in found[0]:
            raise ConfigError("cluster", ANYBODY, "this would protect nothing: metaq security zookeeper-acl open does")
        return cls(*found)

    def rights(self, area: Area) -> tuple[Right, ...]:
        """Return the access rights of all znodes of an area."""
        found = dict.fromkeys(self.cluster, ALL)
        if area is not Area.SECRET:
            found[ANYBODY] = READ
        if area in (Area.CLIENT, Area.ENTRY, Area.TOPICS):
            for each in self.clients:
                if area is not Area.TOPICS or each.scheme == "ip":
                    found[each] = found.get(each, 0) | (ALL if area is Area.CLIENT else READ | CREATE)
        return tuple(Right(permissions, identity) for identity, permissions in found.items())

    @property
    def warnings(self) -> list[str]:
        """Sentences about identities that are perhaps mistakes."""
        return [each.warning for each in dict.fromkeys((*self.cluster, *self.clients)) if each.warning]


def _check_digest(name: str) -> str:
    user, _, digest = name.partition(":")
    try:
        sound = bool(user) and len(base64.b64decode(digest, validate=True)) == _SHA1_BYTES
    except (ValueError, binascii.Error):
        sound = False
    remedy = "write digest:USER:HASH with the hash that metaq security zookeeper-acl check shows, not the password"
    return "" if sound else remedy


def _check_network(name: str) -> str:
    try:
        ipaddress.ip_network(name, strict=False)
    except ValueError:
        return "write an address such as ip:10.0.0.7, or a network such as ip:10.0.0.0/8"
    return ""


_CHECKS: dict[str, Callable[[str], str]] = {
    "world": lambda name: "" if name == "anyone" else "only world:anyone exists",
    "digest": _check_digest,
    "ip": _check_network,
    "x509": lambda name: "",
    "super": lambda name: "",
}
