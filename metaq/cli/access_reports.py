"""Ask all broker processes of a cluster what they refuse, or would refuse (`stats access`), and decide what an operator
should do about it. All functions except `ask_all` are pure.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from metaq.client.questions.partition_bounds import read_stats
from metaq.client.settings.config import ConnectionConfig
from metaq.client.transport.connection import Endpoint, open_connection
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_view import read_sets
from metaq.protocol.access import AccessGrant, AccessMode, AccessOperation, Need, Permissions, Principal, User
from metaq.protocol.errors import AccessRefused, ClientError, InvalidName, MetaqError
from metaq.protocol.own_topics import RETRY_PREFIX
from metaq.protocol.printable import one_line

__all__ = [
    "ITEM",
    "RECENT_SECONDS",
    "AccessReport",
    "AddressUser",
    "BrokerAnswers",
    "RefusedNeed",
    "Suggestions",
    "ask_all",
    "covering_grant",
    "logged_in_admins",
    "mode_of_brokers",
    "need_of",
    "obstacles",
    "parse_report",
    "suggest",
    "unmet",
]

ITEM = "access"
"""The item of `stats` for which a broker answers with its report."""

RECENT_SECONDS = 600
"""A refused request counts as recent for this number of seconds. Clients that are still there repeat it within this
time.
"""

_MAX_ASKED = 16
"""At most this number of broker processes is asked at the same time."""

_SOME_TOPIC = "TOPIC"
"""In the need of a request for the failed messages of a group, this word stands for a topic that the group reads."""


class RefusedNeed(NamedTuple):
    """Requests of one client that a broker has refused, or would have refused while the mode is OBSERVE. principal: as
    the broker writes it: `anonymous`, `user NAME`, `user NAME (by address)` or `broker HOST`. address: the client's IP
    address. need: the smallest grant that would permit the requests. times: their number. last_ms: when the last one
    came, in milliseconds of the Unix epoch.
    """

    principal: str
    address: str
    need: str
    times: int
    last_ms: int

    @property
    def user(self) -> str:
        """The name of the user; "" if the principal is no user."""
        return "" if self.who is None else self.who.name

    @property
    def who(self) -> Principal | None:
        """The user, with how the broker knows him; None if the principal is no user."""
        kind, _, rest = self.principal.partition(" ")
        if kind != "user":
            return None
        by_address = Principal("address", rest.partition(" ")[0])
        return by_address if str(by_address) == self.principal else Principal("user", rest)


class AddressUser(NamedTuple):
    """A user whom a broker knows by the client's address. networks: as security.ini names them. exists: whether
    ZooKeeper has this user. expires_ms: when the user expires, in milliseconds of the Unix epoch; None: never.
    """

    name: str
    networks: tuple[str, ...]
    exists: bool
    expires_ms: float | None


class AccessReport(NamedTuple):
    """The answer of one broker process to `stats access`. mode, users: the mode that it obeys, and the number of users
    that it knows. forgotten: number of refused requests that its list no longer names, because it is full; the last of
    them was seen at forgotten_ms, in milliseconds of the Unix epoch. admins: the users with the grant admin who have
    logged in over TLS since the process started.
    """

    mode: AccessMode
    users: int
    refused: tuple[RefusedNeed, ...]
    forgotten: int
    admins: tuple[str, ...]
    forgotten_ms: float = 0.0
    addresses: tuple[AddressUser, ...] = ()


class BrokerAnswers(NamedTuple):
    """The answers of the broker processes. silent: for each process that has given none, the reason. before_users: the
    processes whose version knows no users (Java brokers are among them). refused: the processes that refused the
    question itself, which only brokers do that enforce grants; they are in `silent`, too.
    """

    reports: Mapping[str, AccessReport]
    silent: Mapping[str, str]
    before_users: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def parse_report(lines: Sequence[str]) -> AccessReport | None:
    """Parse the lines of a broker's answer to `stats access`. Return None if the broker's version knows no users: it
    takes the item for the name of a topic. Unknown keys are ignored. Raises ValueError if the answer is no report.
    """
    text = "\n".join(lines)
    if not text.lstrip().startswith("{"):
        return None
    try:
        fields = json.loads(text)
        refused = tuple(_refused(each) for each in fields["refused"])
        admins = tuple(str(each["name"]) for each in fields["admins"])
        return AccessReport(
            AccessMode(fields["mode"]),
            int(fields["users"]),
            refused,
            int(fields["forgotten"]),
            admins,
            float(fields.get("forgotten_ms", 0)),
            tuple(_address_user(each) for each in fields.get("addresses", ())),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"its answer to `stats {ITEM}` cannot be read: {type(error).__name__} {error}") from None


def _address_user(fields: Mapping[str, Any]) -> AddressUser:
    expires = fields["expires_ms"]
    networks = tuple(map(str, fields["networks"]))
    return AddressUser(
        str(fields["name"]), networks, fields["exists"] is True, None if expires is None else float(expires)
    )


def _refused(fields: Mapping[str, object]) -> RefusedNeed:
    principal, address, need = (str(fields[key]) for key in ("principal", "address", "need"))
    return RefusedNeed(principal, address, need, int(str(fields["count"])), int(str(fields["last_ms"])))


def ask_all(session: ZkSession, config: ConnectionConfig | None = None) -> BrokerAnswers:
    """Ask all registered brokers, slaves, and present nodes of broker sets. config: how to connect to them and as whom;
    without it, the user's profile says this. Raises CoordinationError.
    """
    config = ConnectionConfig() if config is None else config
    with ThreadPoolExecutor(_MAX_ASKED) as pool:
        processes = _processes(session)
        answers = list(pool.map(partial(_ask, config), processes.values()))
    return _sorted_out(dict(zip(processes, answers, strict=True)))


def ask_one(endpoint: Endpoint) -> BrokerAnswers:
    """Ask only the broker at this address. ZooKeeper is not asked."""
    return _sorted_out({str(endpoint): _ask(ConnectionConfig(), endpoint)})


def _sorted_out(named: Mapping[str, AccessReport | MetaqError | ValueError | None]) -> BrokerAnswers:
    return BrokerAnswers(
        {name: each for name, each in named.items() if isinstance(each, AccessReport)},
        {name: str(each) for name, each in named.items() if isinstance(each, ValueError | MetaqError)},
        tuple(name for name, each in named.items() if each is None),
        tuple(name for name, each in named.items() if isinstance(each, AccessRefused)),
    )


def _processes(session: ZkSession) -> dict[str, Endpoint]:
    """Return the address of each process by a name for operators."""
    found: dict[str, Endpoint] = {}
    sets = read_sets(session)
    for broker_id, view in sets.items():
        for name, node in view.nodes.items():
            found[f"broker {broker_id} node {name}"] = Endpoint(*node.address)
    known = set(found.values())
    for broker_id, nodes in ClusterView(session).brokers().items():
        # the leader of a set is among the nodes; a client with a listener sees another address of it here
        in_set = broker_id in sets and bool(sets[broker_id].nodes)
        for address in (None if in_set else nodes.master, *nodes.slaves):
            if address is not None and (endpoint := Endpoint(address.host, address.port)) not in known:
                slave = "" if address.slave_id is None else f" slave {address.slave_id}"
                found[f"broker {broker_id}{slave}"] = endpoint
    return found


def _ask(config: ConnectionConfig, endpoint: Endpoint) -> AccessReport | MetaqError | ValueError | None:
    try:
        connection = open_connection(endpoint, config)
        try:
            return parse_report(read_stats(connection, ITEM))
        finally:
            connection.close()
    except (MetaqError, ValueError) as error:
        return error


# --- grants and needs -------------------------------------------------------------------------------------------------


def need_of(grant: AccessGrant) -> Need | None:
    """Return the need for which Need.__str__ writes this grant; None if no request has such a need."""
    operation, topic, group, deny = grant
    if deny or (topic.endswith("*") and topic != "*"):
        return None
    if group is not None and topic == _SOME_TOPIC:
        return Need(AccessOperation.CONSUME, RETRY_PREFIX + group)
    if group is not None and topic == "*":
        return Need(AccessOperation.SEE, None, group)
    return Need(operation, None if topic in ("", "*") else topic, group or "")


def covering_grant(user: User, need: Need) -> AccessGrant | None:
    """Return the grant of a user that decides about a need: the first prohibition that forbids it, else the first grant
    that permits it; None if there is neither.
    """
    covering = sorted((each for each in user.access.grants if each.covers(need)), key=lambda each: not each.deny)
    return covering[0] if covering else None


def unmet(refused: RefusedNeed, users: Mapping[str, User], now_ms: float) -> bool:
    """Return whether the client would be refused with the present grants, too. Nobody knows this of an unknown need, so
    the result is True then.
    """
    need = _parsed(refused.need)
    if refused.who is None or need is None:
        return True
    return Permissions(users=users).refusal(refused.who, need, now_ms) is not None


def _parsed(need: str) -> Need | None:
    try:
        return need_of(AccessGrant.parse(need))
    except InvalidName:
        return None


class Suggestions(NamedTuple):
    """What an operator should do before the brokers enforce grants. commands: `metaq acl grant` commands. notes:
    sentences about clients that no such command would help.
    """

    commands: tuple[str, ...]
    notes: tuple[str, ...]


def suggest(reports: Iterable[AccessReport], users: Mapping[str, User], now_ms: float) -> Suggestions:
    """Return what to do about all that the brokers have refused, or would have. users: the present users by name."""
    grants: dict[str, list[str]] = {}
    notes: dict[str, None] = {}
    for each in _merged(reports):
        if not unmet(each, users, now_ms):
            continue
        if (note := _note(each, users, now_ms)) is None:
            grants.setdefault(each.user, []).append(each.need)
        else:
            notes[note] = None
    commands = []
    for user, needs in grants.items():
        written = _smallest(needs)
        for need in written:
            if _is_for_some_topic(need):
                group = need.partition("@")[2]
                notes[f"user {user}: write for {_SOME_TOPIC} in {need} a topic that the group {group} reads"] = None
        commands.append(f"metaq acl grant {user} {' '.join(map(_quoted, written))}")
    return Suggestions(tuple(commands), tuple(notes))


def _smallest(needs: Iterable[str]) -> list[str]:
    """Return those of these needs that, written as grants, permit all of them. A need that names no topic comes last,
    because a grant for a topic usually includes it.
    """

    def order(need: str) -> tuple[bool, bool, bool, bool, str]:
        see = need.startswith(f"{AccessOperation.SEE}:")
        return need != AccessOperation.ADMIN, "*" in need, _is_for_some_topic(need), see, need

    kept: list[AccessGrant] = []
    for each in sorted(set(needs), key=order):
        wanted = _parsed(each)
        if wanted is None or not any(grant.covers(wanted) for grant in kept):
            kept.append(AccessGrant.parse(each))
    return list(map(str, kept))


def _is_for_some_topic(need: str) -> bool:
    return need.startswith(f"{AccessOperation.CONSUME}:{_SOME_TOPIC}@")


def _merged(reports: Iterable[AccessReport]) -> list[RefusedNeed]:
    """Return what all brokers have refused, in one list sorted by principal, need and address."""
    found: dict[tuple[str, str, str], RefusedNeed] = {}
    for each in (each for report in reports for each in report.refused):
        key = (each.principal, each.need, each.address)
        if (before := found.get(key)) is not None:
            each = each._replace(times=before.times + each.times, last_ms=max(before.last_ms, each.last_ms))
        found[key] = each
    return [found[key] for key in sorted(found)]


def _note(refused: RefusedNeed, users: Mapping[str, User], now_ms: float) -> str | None:
    """Return the sentence about a client to which no grant can be given; None if it is a user who lacks a grant."""
    note = _raw_note(refused, users, now_ms)
    return None if note is None else one_line(note)


def _raw_note(refused: RefusedNeed, users: Mapping[str, User], now_ms: float) -> str | None:
    name, who = refused.user, f"{refused.principal} from {refused.address}"
    if refused.need == AccessOperation.REPLICATE:
        return f"{who} sends requests of brokers: give it a broker's certificate"
    if not name:
        if refused.principal == "anonymous":
            return f"{who} needs {refused.need}: let it log in as a user with this grant first"
        return f"{who} needs {refused.need}: let it log in as a user, a broker's certificate does not suffice"
    user = users.get(name)
    if user is None:
        return f"{who} needs {refused.need}, but there is no such user: metaq users add makes it"
    if user.has_expired(now_ms):
        return f"{who} needs {refused.need}, but has expired: metaq users expire {name} prolongs it"
    need = _parsed(refused.need)
    if need is None:
        return f"{who} needs {refused.need}, which this version of metaq does not know"
    if refused.who is not None and refused.who.kind == "address":
        if user.expires_ms is None:
            return f"{who} needs {refused.need}, but must expire: metaq users expire {name} 90d"
        if need.operation is AccessOperation.ADMIN:
            return f"{who} needs {refused.need}: let it log in, because its address makes nobody an operator"
    decides = covering_grant(user, need)
    return None if decides is None else f"{who} needs {refused.need}, which its grant '{decides}' forbids"


def _quoted(grant: str) -> str:
    """A client has chosen the names in the grant, and an operator passes the command to a shell."""
    return shlex.quote(one_line(grant))


# --- enforcing --------------------------------------------------------------------------------------------------------


def logged_in_admins(reports: Iterable[AccessReport], users: Mapping[str, User], now_ms: float) -> list[str]:
    """Return, sorted, the users who have logged in over TLS at some broker, and who are still admins."""
    names = {name for report in reports for name in report.admins}
    admin = Need(AccessOperation.ADMIN)
    return sorted(
        name
        for name in names
        if (user := users.get(name)) is not None and user.access.permits(admin) and not user.has_expired(now_ms)
    )


def obstacles(answers: BrokerAnswers, users: Mapping[str, User], now_ms: float) -> list[str]:
    """Return sentences with the reasons why brokers should not enforce grants yet; an empty list if there is none."""
    found = []
    if not logged_in_admins(answers.reports.values(), users, now_ms):
        found.append(
            "no user with the grant admin has logged in over TLS since the brokers' start, so perhaps nobody can: "
            "name the profile of one in METAQ_PROFILE"
        )
    found += [f"{name} does not answer: {why}" for name, why in answers.silent.items()]
    found += [f"{name} knows no users: update it" for name in answers.before_users]
    recent = now_ms - 1000 * RECENT_SECONDS
    for each in _merged(answers.reports.values()):
        if each.last_ms >= recent and unmet(each, users, now_ms):
            seconds = max(0, round((now_ms - each.last_ms) / 1000))
            told = f"{each.principal} from {each.address} would lack {each.need} (last seen {seconds} s ago)"
            found.append(one_line(told))
    found += [
        f"{name} has refused more in the last minutes than it can list: grant what it lists, and ask again"
        for name, report in answers.reports.items()
        if report.forgotten and report.forgotten_ms >= recent
    ]
    return found


# --- a tree without users ---------------------------------------------------------------------------------------------


def mode_of_brokers(answers: BrokerAnswers, *, force: bool) -> AccessMode:
    """Return the mode with which the first user of a tree without users is created: the strictest one that a broker
    obeys. So a cluster whose ZooKeeper came back empty is not opened by this.

    Raises ClientError if brokers do not answer, and, unless `force` is set, if brokers still know users who are not in
    ZooKeeper any more.
    """
    unknown = {name: why for name, why in answers.silent.items() if name not in answers.refused}
    if unknown:
        told = "; ".join(f"{name}: {why}" for name, why in unknown.items())
        raise ClientError(
            f"ZooKeeper has no mode yet, and perhaps these brokers enforce what they have read before: {told}: make "
            "them answer, or choose the mode yourself by `metaq security open` or `metaq security enforce --force`"
        )
    known = [name for name, each in answers.reports.items() if each.users] + list(answers.refused)
    if known and not force:
        raise ClientError(
            f"ZooKeeper has lost its users, and these brokers still know them: {', '.join(known)}. As soon as there is "
            "one user, only the users in ZooKeeper count: restore ZooKeeper's data, or add --force"
        )
    modes = [each.mode for each in answers.reports.values()] + [AccessMode.ENFORCE for _ in answers.refused]
    return max(modes, key=list(AccessMode).index, default=AccessMode.OPEN)
