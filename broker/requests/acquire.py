"""Serve ACQUIRE and SETTLE, the requests of shared consumers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from twisted.internet.defer import Deferred, DeferredList, ensureDeferred, maybeDeferred
from twisted.python.failure import Failure

from metaq.protocol.access import Need
from metaq.protocol.errors import AccountSpent
from metaq.protocol.frames import Frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.record import Buffer
from metaq.protocol.shared import (
    AcquireReply,
    AcquireRequest,
    SettleRequest,
    decode_settlements,
    encode_leased,
    split_settlements,
)
from metaq.protocol.statuses import ResponseCode

from .. import tuning
from ..reading.answers import Answer, Bytes, Work, answer_frame, body_frame, then
from ..reading.long_poll import ParkedRequest
from ..reading.parkable import Parkable, Step
from ..reading.reading import Reading
from ..runtime.account import WAITING_BYTES, address_of
from ..shared.rows import SharedKey
from ..shared.shared_groups import Leases, SharedGroups
from .needs import need_to_consume

if TYPE_CHECKING:
    from .gate import Caller

__all__ = ["Acquire", "answer_settle"]

_MOST_BYTES = MAX_FRAME_BYTES * 3 // 4
"""The most bytes of records in one answer, even if the request asks for more. The rest of the frame is for the answer's
rows, one for each record.
"""


class Acquire(Parkable):
    """An ACQUIRE request that the broker is serving. Used only on the reactor thread.

    If the connection of the group's member ends after messages were leased to it and before the answer is sent, the
    messages are given to other members at once. Without this, other members would get these messages only after the end
    of the lease, and the messages would count as suspects.
    """

    __slots__ = ("_caller", "_groups", "_reading", "_request", "deadline", "held_bytes", "key", "opaque")

    repeatable = False  # the messages in the answer were leased

    def __init__(self, groups: SharedGroups, reading: Reading, frame: Frame, caller: Caller | None) -> None:
        """Raises RemoteProtocolError or InvalidName for a frame that is not a valid ACQUIRE."""
        request = AcquireRequest.from_ext(frame.ext)
        self._groups = groups
        self._caller = caller
        self._reading = reading
        self._request = request
        self.opaque = frame.opaque
        self.key: SharedKey = SharedKey(request.group, request.topic, request.partition)
        self.held_bytes = WAITING_BYTES
        self.deadline = reading.seconds() + request.wait_ms / 1000
        reading.metrics.get(request.topic)

    @property
    def need(self) -> Need:
        return need_to_consume(self._request.topic, self._request.group)

    @property
    def expired(self) -> bool:
        return self._reading.seconds() >= self.deadline

    @property
    def max_bytes(self) -> int:
        return min(self._request.max_bytes, self._reading.max_pull_bytes, _MOST_BYTES)

    def step(self) -> Bytes | Deferred[Bytes] | Step:
        """Advance the request as Parkable.step describes. Raises SharedRefused, StoreError, and the errors of
        Partitions.find.
        """
        request = self._request
        if not request.max_records:
            self._groups.withdraw(self.key, self._is_of_the_same)
            return self.nothing()
        if self._has_ended:
            return self.nothing()
        request.max_bytes = self.max_bytes
        leases = self._groups.acquire(request, address_of(self._caller))
        return Step.WAIT if leases is None else leases.addCallback(self._answer)

    def _is_of_the_same(self, other: ParkedRequest) -> bool:
        """Return whether `other` is an ACQUIRE request of the same group member on the same connection as this request.
        A new ACQUIRE request of a member ends the wait of its older one. The connections are compared so that no other
        client can end the wait by sending a request with the member's name.
        """
        return (
            isinstance(other, Acquire)
            and other._caller is self._caller
            and other._request.member == self._request.member
        )

    @property
    def _has_ended(self) -> bool:
        return self._caller is not None and self._caller.has_ended

    def nothing(self) -> Bytes:
        self._reading.metrics.get_missed(self._request.topic)
        return answer_frame(self.opaque, AcquireReply(0).to_ext(), ResponseCode.PULL_NOT_FOUND)

    def _answer(self, leases: Leases) -> Bytes:
        grants, parts, _ = leases.handed
        if self._has_ended:
            self._groups.give_back(self.key, grants, leases.token)
            return self.nothing()
        if (why := self._reading.why_no_answer(sum(map(len, parts)), address_of(self._caller))) is not None:
            self._groups.give_back(self.key, grants, leases.token)
            raise AccountSpent(why)
        reply = AcquireReply(len(grants), leases.waiting, leases.damaged_bytes, leases.suspicion)
        if not grants:  # all messages were damaged; there may be others
            return answer_frame(self.opaque, reply.to_ext(), ResponseCode.PULL_NOT_FOUND)
        token = leases.token
        rows = b"".join([encode_leased(offset, token, attempts, size) for offset, size, _, attempts in grants])
        body_bytes = len(rows) + sum(map(len, parts))
        return [answer_frame(self.opaque, reply.to_ext(), body=body_bytes) + rows, *parts]


def answer_settle(groups: SharedGroups, frame: Frame) -> Answer | Work:
    """Answer SETTLE, with which a member acknowledges or releases leased messages. Raises RemoteProtocolError,
    NotLeader, and the errors of Partitions.find.
    """
    request = SettleRequest.from_ext(frame.ext)
    slices = split_settlements(frame.body, request.records, tuning.SHARED_SETTLED)
    if len(slices) > 1:
        return _settle_in_slices(groups, request, frame.opaque, slices)
    outcomes = groups.settle(request, decode_settlements(slices[0]))
    return then(outcomes, lambda outcomes: body_frame(frame.opaque, outcomes))


def _settle_in_slices(groups: SharedGroups, request: SettleRequest, opaque: int, slices: Sequence[Buffer]) -> Work:
    """Serve a SETTLE request with many rows in slices; each row says what to do with one leased message. All rows are
    decoded first; if one of them cannot be decoded, the whole request fails without any effect. After that, each row is
    handled independently of the other rows. If a whole slice fails (it is refused, or its outcome is unknown), the
    answer to the whole request is the error of this slice.
    """
    for rows in slices:
        decode_settlements(rows)  # decoded again below, because all rows of a request at once would take 10 MB
        yield
    outcomes: list[Deferred[bytes]] = []
    settle = cast("Callable[..., Deferred[bytes]]", groups.settle)  # it may also return the outcomes themselves
    for rows in slices:
        outcomes.append(maybeDeferred(settle, request, decode_settlements(rows)))
        yield
    return ensureDeferred(_joined(outcomes, opaque))


async def _joined(outcomes: Sequence[Deferred[bytes]], opaque: int) -> Bytes:
    """Wait until the outcomes of all slices are known, and return the answer that contains them. Raises the error of
    the first slice that failed.
    """
    found: list[bytes] = []
    for is_done, result in await DeferredList(outcomes, consumeErrors=True):
        if not is_done:
            raise cast(BaseException, cast(Failure, result).value)
        found.append(result)
    return body_frame(opaque, b"".join(found))
