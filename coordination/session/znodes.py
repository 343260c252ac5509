"""Read and write many znodes at once. The methods block until ZooKeeper has answered or a deadline has passed, and
raise metaq's own exceptions, not kazoo's.

Requests are pipelined: a call first sends all its requests, and then waits for all answers. So to read a thousand
znodes takes only a little longer than to read one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kazoo.client import TransactionRequest
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, OPEN_ACL_UNSAFE

from metaq.protocol.errors import CoordinationError, CoordinationRefused, CoordinationUnavailable, SessionLost

from ..records.paths import ROOT, ancestors
from ..runtime.forks import ForkGuard
from ..runtime.interrupts import Aside
from .fencing import FencedTransaction, Refusal
from .kazoo_client import Client
from .node_acls import NodeAcls

__all__ = [
    "ATOMIC_WRITES",
    "FencedWrite",
    "Znode",
    "Znodes",
    "check_version",
    "create_ephemeral",
    "create_persistent",
    "delete",
    "set_data",
]

ANY_VERSION = -1
"""The version number that means any version of a znode's data in a ZooKeeper request."""

_WINDOW = 1_000
"""One call has at most this number of requests that are sent and not answered yet. The limit keeps kazoo's queue of
requests short. It also limits the number of requests whose answers are lost when the connection is lost.
"""

ATOMIC_WRITES = 1_000
"""Largest number of writes in one transaction. The server accepts 1 MB for a transaction, and the write of a znode with
the longest name takes 0.4 KB without access rights. The number is even. So if a call deletes many znodes and creates
them again, one after the other, both writes for a znode are in the same transaction.
"""

_TRANSACTION_BYTES, _WRITE_BYTES = 800_000, 400
"""Largest number of bytes of a transaction, and of one of its writes without access rights."""

_READS = 500
"""Largest number of reads in one request. The server accepts a request of 1 MB, and the longest path takes 0.5 KB of
it.
"""

_RETRY_PAUSE = 0.05
"""If the connection is lost before a request is answered, the request is repeated after this pause in seconds."""

_LINGER_SECONDS = 0.05
"""If an interrupt may reach the caller's thread, a separate thread makes the requests of a call. Before this thread
ends, it waits this number of seconds for the next call. A caller often reads znodes, and shortly afterwards other
znodes whose names it has got by the first read. Because of the wait, the same thread can make both reads.
"""

_ROLLED_BACK = (RolledBackError, RuntimeInconsistency)
"""If one operation of a transaction fails, ZooKeeper returns the first of these errors for each operation before the
failed operation, and the second for each operation after it.
"""

_TRANSIENT = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)


class Znode(NamedTuple):
    """A znode as it was read. owner: the session id of an ephemeral znode, 0 for a persistent znode."""

    data: bytes | None
    owner: int


class FencedWrite(NamedTuple):
    """A write operation that ZooKeeper executes only on one certain session. `add` is a function that adds the
    operation to a transaction; its second argument is the access rights for the znode, if the operation creates one.
    """

    path: str
    add: Callable[[TransactionRequest, list[ACL]], None]
    creates: bool = False


def create_ephemeral(path: str, data: bytes) -> FencedWrite:
    return FencedWrite(path, lambda operations, acl: operations.create(path, data, acl, ephemeral=True), creates=True)


def create_persistent(path: str, data: bytes) -> FencedWrite:
    return FencedWrite(path, lambda operations, acl: operations.create(path, data, acl), creates=True)


def set_data(path: str, data: bytes, version: int = ANY_VERSION) -> FencedWrite:
    """Return a write that replaces the data of a znode. version: the version of the data to replace. If the data has
    another version when the write is executed, the write fails with BadVersionError.
    """
    return FencedWrite(path, lambda operations, _acl: operations.set_data(path, data, version))


def delete(path: str, version: int = ANY_VERSION) -> FencedWrite:
    """Return a write that deletes the znode. version: if the znode's data has another version when the write is
    executed, the write fails with BadVersionError.
    """
    return FencedWrite(path, lambda operations, _acl: operations.delete(path, version))


def check_version(path: str, version: int) -> FencedWrite:
    """Return a write that changes nothing. If the znode does not exist, or its data has another version, the write
    fails with NoNodeError or BadVersionError, and so does the transaction that contains it.
    """
    return FencedWrite(path, lambda operations, _acl: operations.check(path, version))


class Znodes:
    """The znode operations of one client. Any thread except kazoo's may call the methods.

    timeout: if a call gets no answer for this number of seconds, it raises CoordinationUnavailable. If the connection
    is lost, reads and the creation of persistent znodes are repeated until `timeout` is over, also on a new session.
    Fenced writes are not repeated. In a forked child, the methods raise ClientError. If an interrupt ends a call after
    its requests have begun, a thread that no interrupt reaches completes these requests, and only then the next call
    begins. If ZooKeeper refuses a request because of a znode's access rights, the methods raise CoordinationRefused.

    acls: decides the access rights of new znodes; without it, everybody has all rights on them. identity: how this
    process identifies itself to ZooKeeper, in words for errors.
    """

    def __init__(
        self, zk: Client, connect: str, timeout: float, acls: NodeAcls | None = None, identity: str = "nobody"
    ) -> None:
        self._zk = zk
        self._acls = acls
        self._identity = identity
        self._connect = connect
        self._timeout = timeout
        self._server_reads_many = True  # until a server answers that it cannot
        self._guard = ForkGuard("ZooKeeper session")
        self._aside = Aside("metaq zookeeper request", drops=True, lingers=_LINGER_SECONDS)

    # --- reads ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> Znode | None:
        """Return the znode, or None if it does not exist."""
        return self.get_many([path])[0]

    def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        """Return the result of get() for each path, in order."""
        answers = self.get_with_stats(paths)
        return [None if answer is None else Znode(answer[0], answer[1].ephemeralOwner) for answer in answers]

    def get_with_stats(self, paths: Sequence[str]) -> list[tuple[bytes | None, ZnodeStat] | None]:
        """Return data and stat of each znode, in order. The entry of a znode that does not exist is None.

        ZooKeeper servers from 3.6 on read up to 500 znodes at the same moment, so no write comes between two of these
        reads. Older servers read the paths one after the other, in order.
        """
        return self._read(paths, self._zk.get_async, self._zk.get_many_async)

    def sync(self, path: str) -> None:
        """Make the connected ZooKeeper server catch up with its ensemble. Reads after this call see all writes that
        were made before the call.
        """
        self._repeat([partial(self._zk.sync_async, path)], NoNodeError)

    def get_versioned(self, path: str) -> tuple[bytes | None, int] | None:
        """Return the znode's data and the version of the data, or None if the znode does not exist."""
        (answer,) = self._repeat([partial(self._zk.get_async, path)], NoNodeError)
        return None if answer is None else (answer[0], answer[1].version)

    def children(self, path: str) -> list[str]:
        """Return the names of the children, unordered. A znode that does not exist has no children."""
        return self.children_many([path])[0]

    def children_many(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the result of children() for each path, in order."""
        answers = self._read(paths, self._zk.get_children_async, self._zk.get_children_many_async)
        return [answer or [] for answer in answers]

    def children_and_stat(self, path: str) -> tuple[list[str], ZnodeStat | None]:
        """Return the names of the children, and the stat of the znode itself, or ([], None) if the znode does not
        exist.
        """
        (answer,) = self._repeat([partial(self._zk.get_children_async, path, include_data=True)], NoNodeError)
        return answer or ([], None)

    def exists_root(self) -> bool:
        """Return whether the chroot, which is the root of the tree that this client sees, exists."""
        (found,) = self._repeat([partial(self._zk.exists_async, ROOT)], NoNodeError)
        return found is not None

    # --- persistent nodes -------------------------------------------------------------------------------------------

    def ensure(self, paths: Iterable[str]) -> None:
        """Create the znodes at `paths` and their ancestors where they are missing, with null data as in 1.x."""
        wanted = list(dict.fromkeys(node for path in paths for node in (*ancestors(path), path)))
        # A read costs far less than a refused write, which every server of the ensemble keeps in its log.
        missing = [path for path, node in zip(wanted, self.get_many(wanted), strict=True) if node is None]
        # Requests of one connection are executed in order, so an ancestor exists before its child is created.
        if missing:
            self._guard.check()
            self._aside.do(self._read_policy)
        requests = [partial(self._zk.create_async, path, None, self._acl(path)) for path in missing]
        self._repeat(requests, NodeExistsError)

    # --- access rights ----------------------------------------------------------------------------------------------

    def acls_many(self, paths: Sequence[str]) -> list[list[ACL] | None]:
        """Return the access rights of each znode, in order; None for a znode that does not exist, and an empty list if
        this process may not read them.
        """
        requests = [partial(self._zk.get_acls_async, path) for path in paths]
        answers = self._repeat(requests, NoNodeError, returns_refusals=True)
        return [None if each is None else [] if isinstance(each, NoAuthError) else each[0] for each in answers]

    def set_acls_many(self, acls: Sequence[tuple[str, list[ACL]]]) -> list[str]:
        """Replace the access rights of znodes, and return the paths of those whose rights this process may not change.
        A znode that does not exist any more is skipped.
        """
        requests = [partial(self._zk.set_acls_async, path, acl) for path, acl in acls]
        answers = self._repeat(requests, NoNodeError, returns_refusals=True)
        return [path for (path, _), each in zip(acls, answers, strict=True) if isinstance(each, NoAuthError)]

    def policy_changed(self) -> None:
        """Read the policy again before the next znode is created. Any thread may call this method; it never waits."""
        if self._acls is not None:
            self._acls.changed()

    def _acl(self, path: str) -> list[ACL]:
        return OPEN_ACL_UNSAFE if self._acls is None else self._acls.of(path)

    def _atomic_writes(self) -> int:
        """Return ATOMIC_WRITES, or a smaller even number if the access rights need more bytes than that leaves."""
        rights = 0 if self._acls is None else self._acls.bytes
        fitting = _TRANSACTION_BYTES // (_WRITE_BYTES + rights)
        return min(ATOMIC_WRITES, fitting - fitting % 2)

    def _read_policy(self) -> None:
        """Read the policy of the access rights, if it is not known, and watch it."""
        acls = self._acls
        if acls is None or acls.known:
            return
        began = acls.begin_read()
        # The watch of `exists` also fires when the znode is created. The two requests are executed in this order.
        requests = [partial(self._zk.exists_async, acls.path, acls.changed), partial(self._zk.get_async, acls.path)]
        _, found = self._repeat_here(requests, NoNodeError)
        acls.learn(began, None if found is None else found[0])

    def refused(self, what: str, path: str, error: NoAuthError) -> CoordinationRefused:
        """Return the error for a request that ZooKeeper has refused because of access rights. what: what the request
        would do with the znode, such as "write".
        """
        policy = "the policy of the access rights" if self._acls is None else self._acls.path
        refused = CoordinationRefused(
            f"ZooKeeper does not let this process {what} {path}: it identifies itself as {self._identity}, and the "
            f"access rights of this node or of its parent are for others: {policy} says for whom; give the process an "
            "identity in [zookeeper] of its security.ini or profile, or change the rights with metaq security "
            "zookeeper-acl (docs/security.md)"
        )
        refused.__cause__ = error
        return refused

    # --- fenced writes ----------------------------------------------------------------------------------------------

    def write(
        self, session_id: int, writes: Sequence[FencedWrite], *expected: type[KazooException]
    ) -> list[KazooException | None]:
        """Execute `writes` in order, but only on the session `session_id`. If one write fails, the others are executed
        all the same.

        Return one result for each write: None for a success, or the failure if it is one of the `expected` exceptions
        (NodeExistsError, NoNodeError, …). Any other failure raises CoordinationError after all writes have been tried.
        Raises SessionLost if another session was current when a write was sent; in this case the server has refused the
        write. Raises CoordinationUnavailable if the outcome of a write is unknown. Up to ATOMIC_WRITES writes are sent
        as one transaction, which costs far less than single writes. If the transaction fails, its writes are sent one
        by one.
        """
        self._guard.check()
        failures = self._aside.do(self._write, session_id, writes)
        for write, failure in zip(writes, failures, strict=True):
            if isinstance(failure, NoAuthError):
                raise self.refused("write", write.path, failure)
            if failure is not None and not isinstance(failure, expected):
                raise CoordinationError(
                    f"cannot write ZooKeeper node {write.path}: {type(failure).__name__} {failure}"
                ) from failure
        return failures

    def owned(self, session_id: int, paths: Sequence[str]) -> list[str]:
        """Select from `paths` the ephemeral znodes of this session, and return their paths."""
        nodes = self.get_many(paths)
        return [path for path, node in zip(paths, nodes, strict=True) if node and node.owner == session_id]

    def delete_owned(self, session_id: int, paths: Sequence[str]) -> list[str]:
        """Delete the znodes in `paths` that belong to the session `session_id`, and return their paths. The remaining
        znodes are kept, because other processes may have created them after the session had expired.
        """
        owned = self.owned(session_id, paths)
        self.write(session_id, [delete(path) for path in owned], NoNodeError)  # one may have been removed just now
        return owned

    def _write(self, session_id: int, writes: Sequence[FencedWrite]) -> list[KazooException | None]:
        if any(write.creates for write in writes):
            self._read_policy()
        failures: list[KazooException | None] = []
        size = self._atomic_writes()
        for start in range(0, len(writes), size):
            chunk = writes[start : start + size]
            if len(chunk) > 1 and self._outcome(*self._send(session_id, chunk)) is None:
                failures += [None] * len(chunk)
            else:
                sent = [self._send(session_id, [write]) for write in chunk]
                failures += [self._outcome(transaction, result) for transaction, result in sent]
        return failures

    def write_atomically(self, session_id: int, writes: Sequence[FencedWrite]) -> KazooException | None:
        """Execute all of `writes` in one transaction, only on the session `session_id`. If one of the writes fails,
        none is executed, and the method returns the failure; otherwise it returns None. Raises the errors of write().

        The server accepts about 1 MB in one transaction.
        """
        self._guard.check()
        return self._aside.do(self._write_atomically, session_id, writes)

    def _write_atomically(self, session_id: int, writes: Sequence[FencedWrite]) -> KazooException | None:
        if any(write.creates for write in writes):
            self._read_policy()
        transaction, result = self._send(session_id, writes)
        failure = self._outcome(transaction, result)
        if isinstance(failure, NoAuthError):
            answers = zip(writes, result.get(), strict=True)
            raise self.refused("write", next(each.path for each, answer in answers if answer is failure), failure)
        return failure

    def _send(self, session_id: int, writes: Sequence[FencedWrite]) -> tuple[FencedTransaction, Any]:
        transaction = FencedTransaction(self._zk, session_id, time.monotonic() + self._timeout)
        for write in writes:
            write.add(transaction.operations, self._acl(write.path) if write.creates else OPEN_ACL_UNSAFE)
        return transaction, transaction.send()

    def _outcome(self, transaction: FencedTransaction, result: Any) -> KazooException | None:
        try:
            answers = result.get(timeout=self._timeout)
        except (SessionExpiredError, ConnectionClosedError) as error:
            raise SessionLost("the ZooKeeper session has ended") from error
        except (ConnectionLoss, OperationTimeoutError, KazooTimeoutError) as error:
            raise self._unavailable() from error
        if transaction.refusal is Refusal.SESSION:
            raise SessionLost("the ZooKeeper session has ended and was replaced by a new one")
        if transaction.refusal is Refusal.DEADLINE:
            raise self._unavailable()
        failed = [answer for answer in answers if isinstance(answer, KazooException)]
        if any(isinstance(answer, SessionExpiredError) for answer in failed):
            # A server may keep the connection of an ended session, and answer reads and pings on it. Only a new
            # connection reports the end.
            self._zk.interrupt()
            raise SessionLost("the ZooKeeper session has ended")
        return next((each for each in failed if not isinstance(each, _ROLLED_BACK)), None)

    # --- many reads at once -----------------------------------------------------------------------------------------

    def _read(self, paths: Sequence[str], one: Callable[[str], Any], many: Callable[[Sequence[str]], Any]) -> list[Any]:
        """Return the result of reading each path, in order. The result is None for a znode that does not exist. one:
        kazoo's method that reads one path. many: the method that reads many paths in one request.
        """
        if len(paths) > 1 and self._server_reads_many:
            try:
                return self._read_together(paths, many)
            except UnimplementedError:  # the server is older than 3.6
                self._server_reads_many = False
        return self._repeat([partial(one, path) for path in paths], NoNodeError)

    def _read_together(self, paths: Sequence[str], many: Callable[[Sequence[str]], Any]) -> list[Any]:
        requests = [partial(many, paths[start : start + _READS]) for start in range(0, len(paths), _READS)]
        answers = [answer for each in self._repeat(requests, NoNodeError) for answer in each]
        for path, answer in zip(paths, answers, strict=True):
            if isinstance(answer, NoAuthError):
                raise self.refused("read", path, answer)
            if isinstance(answer, Exception) and not _absent(answer):
                raise answer
        return [None if _absent(each) else each for each in answers]

    # --- pipelining -------------------------------------------------------------------------------------------------

    def _repeat(
        self,
        requests: Sequence[Callable[[], Any]],
        absent: type[KazooException],
        *,
        returns_refusals: bool = False,
    ) -> list[Any]:
        """Make all requests, and return their results in order. If the connection was lost before the answer to a
        request came, repeat the request. If a request fails with the error `absent`, its result is None. If ZooKeeper
        refuses a request because of a znode's access rights, raise CoordinationRefused, or with `returns_refusals` let
        the NoAuthError be its result.
        """
        self._guard.check()
        return self._aside.do(self._repeat_here, requests, absent, returns_refusals)

    def _repeat_here(
        self, requests: Sequence[Callable[[], Any]], absent: type[KazooException], returns_refusals: bool = False
    ) -> list[Any]:
        deadline = time.monotonic() + self._timeout
        answers: list[Any] = [None] * len(requests)
        waiting = list(range(len(requests)))
        while waiting:
            again = []
            for start in range(0, len(waiting), _WINDOW):
                window = [(index, requests[index]()) for index in waiting[start : start + _WINDOW]]
                for index, result in window:
                    try:
                        answers[index] = self._await(result, deadline)
                    except _TRANSIENT:
                        again.append(index)
                        continue
                    except absent:
                        answers[index] = None
                    except NoAuthError as error:
                        request = requests[index]
                        path = request.args[0] if isinstance(request, partial) else ""
                        if not returns_refusals:
                            raise self.refused("read or change", str(path), error) from error
                        answers[index] = error
                    deadline = time.monotonic() + self._timeout  # answered: thousands of requests may take longer
            waiting = again
            if waiting:
                self._pause(deadline)
        return answers

    def _await(self, result: Any, deadline: float) -> Any:
        try:
            return result.get(timeout=max(0.0, deadline - time.monotonic()))
        except KazooTimeoutError as error:
            raise self._unavailable() from error
        except ConnectionClosedError as error:
            raise SessionLost("the ZooKeeper session was closed") from error

    def _pause(self, deadline: float) -> None:
        if time.monotonic() + _RETRY_PAUSE >= deadline:
            raise self._unavailable()
        time.sleep(_RETRY_PAUSE)

    def _unavailable(self) -> CoordinationError:
        return CoordinationUnavailable(
            f"ZooKeeper at {self._connect} does not answer within {self._timeout:g} s: check that it can be reached"
        )


def _absent(answer: object) -> bool:
    return isinstance(answer, NoNodeError)
