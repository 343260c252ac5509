"""The table of all verbs (request types) of the text protocol and the framed protocol, for clients and for operators.
Each row of the table joins three functions:

a decoder of the request (protocol/), an action, and an encoder of the answer (answers.py). The row also passes to the
action the objects of the broker that this action needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred

from metaq.protocol.access import AccessOperation, Need, Principal
from metaq.protocol.delays import CancelDelayedRequest, ListDelayedRequest
from metaq.protocol.errors import AccessRefused, BrokerCertificateRequired, NotReplicating
from metaq.protocol.fields import Ext
from metaq.protocol.frames import Frame
from metaq.protocol.half_messages import CheckHalvesRequest, EndHalfRequest, ListHalvesRequest
from metaq.protocol.limits import (
    COMPRESSED_MARK,
    DELAYS_MARK,
    FRAMES_MARK,
    HALF_CHECK_MARK,
    HALVES_MARK,
    MANY_MARK,
    SEQUENCES_MARK,
    SHARED_MARK,
    WHERE_MARK,
)
from metaq.protocol.login import AuthenticateRequest
from metaq.protocol.put_run import PutRun
from metaq.protocol.remoting import (
    ClosePartitionsRequest,
    HandOverRequest,
    MessageCountsRequest,
    MoveRequest,
    OpenPartitionsRequest,
    PartitionRequest,
    QueryMessageRequest,
    SearchByCountRequest,
    SearchByTimeRequest,
    StatsRequest,
    ViewMessageRequest,
)
from metaq.protocol.sends import announced_parts
from metaq.protocol.shared import SharedForgetRequest
from metaq.protocol.statuses import RequestCode, Status
from metaq.protocol.text import (
    Get,
    IgnoredAnswer,
    OffsetQuery,
    Put,
    Stats,
    Sync,
    TooLargePut,
    TransactionCommand,
    Version,
    encode_result,
    encode_result_line,
)
from metaq.protocol.transaction_requests import (
    CompleteTransactionRequest,
    TransactionOutcomeRequest,
    TransactionRequest,
)

from ..access.control import AccessControl
from ..reading.answers import Answer, Bytes, Work, answer_frame, body_frame, json_frame, reply_frame, then
from ..reading.search import found_frame
from ..requests.acquire import Acquire, answer_settle
from ..requests.delayed import list_delayed
from ..requests.gate import Caller, Check, Gate, Nodes, PageRequest, Served, Verb
from ..requests.get import answer_get
from ..requests.half_verbs import checked_frame, end_halves, ended_frame, list_halves
from ..requests.lookup import Lookups
from ..requests.needs import (
    ADMIN,
    COOPERATE,
    KNOWN,
    NOTHING,
    REPLICATE,
    Needs,
    consumes,
    lists_halves,
    of_checks,
    of_many,
    of_page,
    of_run,
    of_stats,
    of_transaction,
    pulls,
    sees_group,
    sees_messages,
    sends,
    sends_in_transaction,
    shows,
)
from ..requests.pull import Pull
from ..requests.put import PutAnswers, PutGroup, answer_run, answer_sync
from ..requests.send import answer_send_batch, answer_send_many
from ..requests.transaction import TransactionVerbs
from ..runtime.account import NOBODY, WAITING_BYTES, Shares
from ..runtime.pending_puts import PUT_OVERHEAD_BYTES
from ..shared.status import answer_status
from .admin import AdminRequests, admits
from .broker import Broker
from .stats import ITEMS, stats_text

if TYPE_CHECKING:
    from ..network.session import Session
    from ..sets.connections import StreamProtocol

__all__ = ["make_gate"]


def _serve_broker(verb: Verb, access: AccessControl, request: Any, caller: Caller | None) -> Served:
    """Serve a request if the peer of its connection has shown a broker's certificate; otherwise raise
    BrokerCertificateRequired. A certificate that names a host is a broker's certificate; clients' certificates name no
    host.
    """
    if caller is None or not caller.certified_hosts:
        error = BrokerCertificateRequired()
        if caller is not None:
            for need in verb.needs(request):
                access.refuses(need, caller, request, str(error))
        raise error
    return verb.serve(request, caller)


def _serve_operator(verb: Verb, access: AccessControl, request: Any, caller: Caller | None) -> Served:
    """Serve a request that may be an operator's, and note it in the audit log."""
    if caller is not None:
        for need in verb.needs(request):
            access.serves(need, caller, request)
    return verb.serve(request, caller)


def make_gate(broker: Broker, check: Check | None = None) -> Gate:
    """Create and return the gate of a broker, with all verbs. The gate calls `check` for every request."""
    writing, reading = broker.writing, broker.reading
    answers = PutAnswers(writing, lambda: broker.url)
    lookups = Lookups(reading)
    searches = broker.searches
    admin = AdminRequests(
        broker.partitions,
        broker.reload_config,
        broker.replication_status,
        lambda: broker.replication,
        lambda: broker.member,
        broker.reactor.seconds,
    )

    def permit(need: Need, caller: Any) -> None:
        if gate.guard is not None and caller is not None:
            gate.guard.check(need, caller, "TRANSACTION")

    def permit_owner(owner: Principal | None, caller: Any, what: str) -> None:
        if gate.guard is None or not gate.guard.by_grants or caller is None or owner is None:
            return
        if caller.principal[:2] != owner[:2]:  # without the stamp, which changes with the password
            why = f"{what} belongs to {owner}, who has begun it, and not to {caller.principal}"
            broker.access.refuses(Need(AccessOperation.TRANSACT), caller, "TRANSACTION", why)
            raise AccessRefused(why)

    transactions = TransactionVerbs(broker.transactions, writing, permit, permit_owner)
    needs_certificate = broker.certificates is not None and broker.certificates.brokers_required

    def of_brokers(verb: Verb) -> Verb:
        return verb._replace(serve=partial(_serve_broker, verb, broker.access)) if needs_certificate else verb

    def refuses_operator(request: Frame, peer: Caller, why: str) -> None:
        for need in gate.frames[request.code].needs(request):
            broker.access.refuses(need, peer, request, why)

    new_group = partial(PutGroup, writing, answers)
    stats_needs = of_stats(ITEMS | {memory.item for memory in broker.memories})
    may_be_of_operators = (ADMIN, COOPERATE, stats_needs, of_page)

    def noted(verb: Verb) -> Verb:
        """Return the row with the audit log. Only rows of operators' requests change, so that others cost nothing."""
        if broker.access.audit is None or verb.needs not in may_be_of_operators:
            return verb
        return verb._replace(serve=partial(_serve_operator, verb, broker.access))

    def put_alone(put: Put | Frame, caller: Caller | None) -> Answer:
        group = new_group(caller)
        group.add(put)
        return group.commit()

    def put_with_key(put: Put, caller: Caller | None) -> Answer:
        if writing.takes_all_kinds:
            return transactions.put(put, caller)
        return put_alone(put._replace(tx_key=None), caller)  # 1.x ignores the key, and stores the message at once

    def stats(stats: Stats, caller: Caller | None) -> Work:
        # bytes: the configuration file may have any encoding
        body = yield from stats_text(broker, stats.item, gate.sees(caller))
        return encode_result_line(Status.SUCCESS, len(body), stats.opaque) + body

    def stats_frame(frame: Frame, caller: Caller | None) -> Work:
        body = yield from stats_text(broker, StatsRequest.from_ext(frame.ext).item, gate.sees(caller))
        return body_frame(frame.opaque, body)

    def version(version: Version, caller: Caller | None) -> Bytes:
        marks = [MANY_MARK, FRAMES_MARK, *([SEQUENCES_MARK] if writing.takes_all_kinds else []), COMPRESSED_MARK]
        marks += [WHERE_MARK, *([DELAYS_MARK, HALVES_MARK] if writing.takes_all_kinds else [])]
        if broker.shared.takes_shared:
            marks.append(SHARED_MARK)
        if writing.takes_all_kinds:
            marks.append(f"{HALF_CHECK_MARK}{int(broker.halves.first_seconds * 1000)}")
        return encode_result(Status.SUCCESS, " ".join([broker.version, *marks]), version.opaque)

    def authenticate(frame: Frame, caller: Caller | None) -> Answer:
        reply = broker.logins.step(AuthenticateRequest.from_ext(frame.ext), cast("Session", caller))
        return reply_frame(frame.opaque, reply)

    def follow(frame: Frame, caller: Caller | None) -> Answer:
        if broker.member is None:
            raise NotReplicating("this broker is no node of a broker set: start it with --node")
        session = cast("Session", caller)

        def become(stream: StreamProtocol) -> None:
            session.become(stream)
            for need in REPLICATE(frame):
                broker.access.watch(stream, need, session, RequestCode.FOLLOW.name)

        broker.member.accept(frame, become, session.certified_hosts if needs_certificate else None)
        return None

    def check_halves(frame: Frame, caller: Caller | None) -> Answer:
        request = CheckHalvesRequest.from_ext(frame.ext)
        address = NOBODY if caller is None else caller.address
        held = 2 * WAITING_BYTES + sum(WAITING_BYTES // 4 + len(topic) for topic in request.topics or ())
        waiting = broker.account.waiting
        waiting.check(address, held)
        checks = maybeDeferred(broker.halves.checks, request, caller)  # a request refused at once must not count
        checks.addCallback(still_permitted, frame, caller)
        return _answer(frame, checks.addBoth(_given_back, waiting, address, held), checked_frame)

    def still_permitted(result: Any, frame: Frame, caller: Caller | None) -> Any:
        """Raise MetaqError if the caller may not get the half messages any more for which it has waited."""
        for need in of_checks(frame):
            permit(need, caller)
        return result

    def move(request: MoveRequest) -> Deferred[Any]:
        if broker.moves is None:
            raise NotReplicating("this broker is not registered in ZooKeeper, or is a slave: nothing can be moved")
        address, places = broker.account.asker, broker.account.asked_moves
        places.check(address)
        return ensureDeferred(broker.moves.asked(request)).addBoth(_given_back, places, address, 1)

    def connection_lost(caller: Caller) -> None:
        broker.transactions.connection_lost(caller)
        broker.halves.connection_lost(caller)
        reading.places.connection_lost(caller)

    texts: Mapping[type, Verb] = {
        Put: Verb(
            put_alone,
            sends,
            _put_bytes,
            stores=True,
            gathers=True,
            in_transaction=Verb(put_with_key, sends_in_transaction),
        ),
        PutRun: Verb(partial(answer_run, writing, answers), of_run, _run_bytes, stores=True),
        TooLargePut: Verb(lambda put, caller: answers.too_large(put), NOTHING, nodes=Nodes.ALL),
        Sync: of_brokers(
            Verb(partial(answer_sync, writing, answers, broker.now_ms), REPLICATE, _put_bytes, stores=True)
        ),
        Get: Verb(partial(answer_get, reading), consumes, lambda get: get.max_size, repeatable=True),
        OffsetQuery: Verb(lookups.nearest, shows),
        TransactionCommand: Verb(transactions.text, of_transaction, repeatable=True),  # only recover may be large
        Stats: Verb(stats, stats_needs, lists=True, nodes=Nodes.ALL),
        Version: Verb(version, NOTHING, nodes=Nodes.ALL),
        IgnoredAnswer: Verb(lambda answer, caller: None, NOTHING, nodes=Nodes.ALL),
        PageRequest: Verb(lambda page, caller: page.show(), of_page, nodes=Nodes.ALL),
    }
    frames: Mapping[int, Verb] = {
        RequestCode.SEND: Verb(
            put_alone,
            sends,
            _put_bytes,
            stores=True,
            gathers=True,
            in_transaction=Verb(transactions.send, sends_in_transaction, _body_bytes),
        ),
        RequestCode.SEND_BATCH: Verb(
            partial(answer_send_batch, writing),
            sends,
            _body_bytes,
            stores=True,
            in_transaction=Verb(transactions.send_batch, sends_in_transaction, _body_bytes),
        ),
        RequestCode.SEND_MANY: Verb(
            partial(answer_send_many, writing, broker.reactor),
            of_many,
            _many_bytes,
            stores=True,
        ),
        RequestCode.PULL: Verb(lambda frame, caller: Pull(reading, frame), pulls, nodes=Nodes.READERS),
        RequestCode.MIN_OFFSET: _read(PartitionRequest.from_ext, lookups.min_offset, shows),
        RequestCode.MAX_OFFSET: _read(PartitionRequest.from_ext, lookups.max_offset, shows),
        RequestCode.SEARCH_OFFSET_BY_TIME: _read(SearchByTimeRequest.from_ext, lookups.by_time, shows),
        RequestCode.SEARCH_OFFSET_BY_COUNT: _read(SearchByCountRequest.from_ext, lookups.by_count, shows),
        RequestCode.MESSAGE_COUNTS: _read(MessageCountsRequest.from_ext, lookups.counts, shows),
        RequestCode.VIEW_MESSAGE_BY_ID: _read(ViewMessageRequest.from_ext, searches.by_id, sees_messages, found_frame),
        RequestCode.QUERY_MESSAGE: _read(QueryMessageRequest.from_ext, searches.by_key, sees_messages, found_frame),
        RequestCode.HEARTBEAT: _framed(_nothing, lambda _: None, NOTHING, _empty_frame, nodes=Nodes.ALL),
        RequestCode.AUTHENTICATE: Verb(authenticate, NOTHING, nodes=Nodes.ALL),
        RequestCode.STATS: Verb(stats_frame, stats_needs, _body_bytes, lists=True, nodes=Nodes.ALL),
        RequestCode.TRANSACTION: Verb(
            lambda frame, caller: _answer(
                frame, transactions.perform(TransactionRequest.from_ext(frame.ext), caller), _text_frame
            ),
            of_transaction,
            repeatable=True,  # only RECOVER may be large
        ),
        RequestCode.TRANSACTION_OUTCOME: Verb(
            lambda frame, caller: _answer(
                frame, transactions.outcome(TransactionOutcomeRequest.from_ext(frame.ext), caller), reply_frame
            ),
            of_transaction,
            _body_bytes,
        ),
        RequestCode.CANCEL_DELAYED: _framed(CancelDelayedRequest.from_ext, broker.delays.cancel, sends),
        RequestCode.LIST_DELAYED: _framed(
            ListDelayedRequest.from_ext,
            partial(list_delayed, broker.listings, broker.delays),
            sees_messages,
            body_frame,
            repeatable=True,
        ),
        RequestCode.END_HALF: _framed(EndHalfRequest.from_ext, broker.halves.end, sends),
        RequestCode.END_HALVES: Verb(
            lambda frame, caller: _answer(frame, end_halves(broker.halves, frame), ended_frame), sends, _body_bytes
        ),
        RequestCode.CHECK_HALVES: Verb(check_halves, of_checks, repeatable=True),
        RequestCode.LIST_HALVES: _framed(
            ListHalvesRequest.from_ext,
            partial(list_halves, broker.listings, broker.halves),
            lists_halves,
            body_frame,
            repeatable=True,
        ),
        RequestCode.RELOAD_CONFIG: _admin(_nothing, lambda _: admin.reload(), nodes=Nodes.ALL),
        RequestCode.CLOSE_PARTITIONS: _admin(ClosePartitionsRequest.from_ext, admin.close_partitions, nodes=Nodes.ALL),
        RequestCode.OPEN_PARTITIONS: _admin(OpenPartitionsRequest.from_ext, admin.open_partitions, nodes=Nodes.ALL),
        RequestCode.FOLLOW: of_brokers(Verb(follow, REPLICATE, nodes=Nodes.ALL)),
        RequestCode.REPLICATION_STATUS: _admin(_nothing, lambda _: admin.replication_status(), nodes=Nodes.ALL),
        RequestCode.RESTART_REPLICATION: _admin(_nothing, lambda _: admin.restart_replication(), nodes=Nodes.ALL),
        RequestCode.HAND_OVER: _admin(HandOverRequest.from_ext, admin.hand_over, nodes=Nodes.ALL),
        RequestCode.SET_STATUS: _framed(_nothing, lambda _: admin.set_status(), KNOWN, json_frame, nodes=Nodes.ALL),
        RequestCode.MOVE: _framed(MoveRequest.from_ext, move, COOPERATE, json_frame),
        RequestCode.ACQUIRE: Verb(lambda frame, caller: Acquire(broker.shared, reading, frame, caller), consumes),
        RequestCode.SETTLE: Verb(lambda frame, caller: answer_settle(broker.shared, frame), consumes, _body_bytes),
        RequestCode.SHARED_STATUS: Verb(
            lambda frame, caller: answer_status(broker.shared, broker.now_ms, frame),
            sees_group,
            _body_bytes,
            lists=True,
        ),
        RequestCode.SHARED_FORGET: _admin(
            SharedForgetRequest.from_ext, lambda request: broker.shared.forget(request.group)
        ),
        RequestCode.PREPARED_TRANSACTIONS: Verb(
            lambda frame, caller: transactions.prepared(frame), ADMIN, _body_bytes, lists=True, admin=True
        ),
        RequestCode.COMPLETE_TRANSACTION: _admin(
            CompleteTransactionRequest.from_ext, transactions.complete, _empty_frame
        ),
    }
    gate = Gate(
        {kind: noted(verb) for kind, verb in texts.items()},
        {code: noted(verb) for code, verb in frames.items()},
        new_group,
        lambda host: admits(broker.admin_from, host, broker.config.listen),
        connection_lost,
        broker.account.unsent,
        check,
    )
    gate.refuses_operator = refuses_operator
    return gate


# --- rows -------------------------------------------------------------------------------------------------------------

Encoder = Callable[[int, Any], Bytes]
"""encoder(opaque, result) returns the bytes of the answer; `result` is the result of the verb's action."""


def _framed(
    decode: Callable[[Ext], Any],
    act: Callable[[Any], Any],
    needs: Needs,
    encode: Encoder = reply_frame,
    *,
    admin: bool = False,
    nodes: Nodes = Nodes.LEADER,
    repeatable: bool = False,
) -> Verb:
    """Return the verb for a frame whose whole request is in the frame's extFields. `act` may return a Deferred."""
    return Verb(
        lambda frame, caller: _answer(frame, act(decode(frame.ext)), encode),
        needs,
        _body_bytes,
        admin=admin,
        nodes=nodes,
        repeatable=repeatable,
    )


def _read(decode: Callable[[Ext], Any], act: Callable[[Any], Any], needs: Needs, encode: Encoder = reply_frame) -> Verb:
    return _framed(decode, act, needs, encode, nodes=Nodes.READERS, repeatable=True)


def _admin(
    decode: Callable[[Ext], Any],
    act: Callable[[Any], Any],
    encode: Encoder = json_frame,
    nodes: Nodes = Nodes.LEADER,
) -> Verb:
    return _framed(decode, act, ADMIN, encode, admin=True, nodes=nodes)


def _answer(frame: Frame, result: Any, encode: Encoder) -> Answer:
    answer: Answer = then(result, lambda result: encode(frame.opaque, result))
    return answer


def _given_back(result: Any, places: Shares, address: str, amount: int) -> Any:
    """Called when a request is answered that `places` has counted for a client address: subtract `amount` from the
    count of this address.
    amount: 1, or the number of the request's bytes, as it was counted. Return the result unchanged.
    """
    places.add(address, -amount)
    return result


def _nothing(_: Ext) -> None:
    """Decode a request that has no fields: return None."""


def _empty_frame(opaque: int, _: None) -> Bytes:
    return answer_frame(opaque, {})


def _text_frame(opaque: int, text: str) -> Bytes:
    return body_frame(opaque, text.encode("utf-8"))


# --- bytes held until the answer --------------------------------------------------------------------------------------


def _body_bytes(frame: Frame) -> int:
    return len(frame.body)


def _many_bytes(frame: Frame) -> int:
    return len(frame.body) + PUT_OVERHEAD_BYTES * announced_parts(frame.ext)


def _run_bytes(run: PutRun) -> int:
    return run.body_bytes + PUT_OVERHEAD_BYTES * len(run.bodies)


def _put_bytes(put: Put | Sync | Frame) -> int:
    return len(put.body) + PUT_OVERHEAD_BYTES
