"""What a fenced transaction puts on the wire, and when that is decided."""

from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import CheckVersion, Create, SetData, Transaction

from metaq.coordination.session.fencing import FencedTransaction, Refusal

FUTURE, PAST = 1e18, 0.0


class RecordingClient(KazooClient):  # type: ignore[misc]
    """A kazoo client without a connection: requests are kept, the session is set by the test."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1/root")
        self.requests: list[Any] = []
        self.session: tuple[int, bytes] | None = (7, b"password")

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return self.session

    def _call(self, request: Any, async_object: Any) -> None:
        self.requests.append(request)


def sent(client: RecordingClient, session_id: int = 7, deadline: float = FUTURE) -> FencedTransaction:
    transaction = FencedTransaction(client, session_id, deadline)
    transaction.operations.set_data("/a", b"1")
    transaction.operations.create("/b", b"2", ephemeral=True)
    transaction.send()
    return transaction


def refused(path: str = "/root/a") -> bytes:
    return bytes(Transaction([CheckVersion(path, -(1 << 31))]).serialize())


def test_on_its_own_session_it_is_kazoos_transaction_below_the_chroot():
    client = RecordingClient()
    transaction = sent(client)
    (request,) = client.requests
    set_data, create = request.operations
    assert isinstance(set_data, SetData)
    assert isinstance(create, Create)
    assert (set_data.path, create.path) == ("/root/a", "/root/b")
    assert request.serialize() == bytes(Transaction(request.operations).serialize())
    assert transaction.refusal is None


def test_the_session_is_looked_at_when_the_request_is_sent_not_when_it_is_made():
    client = RecordingClient()
    transaction = sent(client)
    client.session = (8, b"password")
    assert client.requests[0].serialize() == refused()
    assert transaction.refusal is Refusal.SESSION


def test_without_a_session_it_is_refused():
    client = RecordingClient()
    transaction = sent(client)
    client.session = None
    assert client.requests[0].serialize() == refused()
    assert transaction.refusal is Refusal.SESSION


def test_after_its_deadline_it_is_not_sent_as_it_is():
    client = RecordingClient()
    transaction = sent(client, deadline=PAST)
    assert client.requests[0].serialize() == refused()
    assert transaction.refusal is Refusal.DEADLINE


def test_kazoo_still_recognises_its_own_request():
    client = RecordingClient()
    sent(client)
    assert client.requests[0].type == Transaction.type
