"""What a broker says of local transactions whose commit was not answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet.defer import Deferred

from metaq.broker.transactions import outcomes
from metaq.broker.transactions.outcomes import Outcomes
from metaq.protocol.errors import MetaqError, NotLeader, TransactionRefused, XaRefused
from metaq.protocol.frames import encode_frame
from metaq.protocol.sends import SendReply, SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.transaction_requests import TransactionOutcomeReply, TransactionOutcomeRequest, TransactionRequest
from tests.unit.broker.harness import Harness
from tests.unit.broker.transactions.conversation import XID, bodies

KEY = "TX:s:1"


class Client:
    """A connection that sends frames."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.peer = harness.connect()

    def ask(self, code: RequestCode, ext: dict[str, str | int], body: bytes = b"") -> None:
        self.peer.send(encode_frame(code, 1, ext, len(body)) + body)

    def verb(self, key: str, kind: str) -> int:
        self.ask(RequestCode.TRANSACTION, dict(TransactionRequest(key, kind).to_ext()))
        self.harness.threads.run()
        (frame,) = self.peer.frames()
        return int(frame.code)

    def begin(self, key: str, body: bytes = b"m") -> int:
        """With one message; its id."""
        assert self.verb(key, "BEGIN") == ResponseCode.SUCCESS
        self.ask(RequestCode.SEND, dict(SendRequest("t", 0, 0, -1, key).to_ext()), body)
        (frame,) = self.peer.frames()
        return SendReply.from_ext(frame.ext).message_id

    def outcome(self, key: str, first_id: int) -> bool | str:
        self.ask(RequestCode.TRANSACTION_OUTCOME, dict(TransactionOutcomeRequest(key, first_id).to_ext()))
        return self.told()

    def told(self) -> bool | str:
        (frame,) = self.peer.frames()
        if frame.code != ResponseCode.SUCCESS:
            return str(frame.remark)
        return TransactionOutcomeReply.from_ext(frame.ext).committed


def test_a_commit_is_remembered_and_a_rollback_is_not_one(harness: Harness) -> None:
    client = Client(harness)
    first = client.begin("TX:s:1")
    second = client.begin("TX:s:2")
    assert client.verb("TX:s:1", "COMMIT_ONE_PHASE") == ResponseCode.SUCCESS
    assert client.verb("TX:s:2", "ROLLBACK") == ResponseCode.SUCCESS
    other = Client(harness)
    assert other.outcome("TX:s:1", first) is True
    assert other.outcome("TX:s:2", second) is False


def test_an_open_transaction_is_rolled_back_so_that_a_late_commit_changes_nothing(harness: Harness) -> None:
    client, other = Client(harness), Client(harness)
    first = client.begin(KEY)
    assert other.outcome(KEY, first) is False
    assert client.verb(KEY, "COMMIT_ONE_PHASE") == ResponseCode.TRANSACTION_REFUSED
    assert bodies(harness, "t", 0) == []
    assert other.outcome(KEY, first) is False


def test_who_does_not_know_the_first_message_ends_no_open_transaction(harness: Harness) -> None:
    client, stranger = Client(harness), Client(harness)
    first = client.begin(KEY)
    for other in (0, 1, first - 1, first + 1):
        assert "does not begin with" in str(stranger.outcome(KEY, other))
    assert client.verb(KEY, "COMMIT_ONE_PHASE") == ResponseCode.SUCCESS
    assert bodies(harness, "t", 0) == [b"m"]
    assert "does not begin with" in str(stranger.outcome(KEY, first + 1))
    assert stranger.outcome(KEY, first) is True


def test_nobody_can_end_a_transaction_without_a_message_by_asking_for_it(harness: Harness) -> None:
    client, stranger = Client(harness), Client(harness)
    assert client.verb(KEY, "BEGIN") == ResponseCode.SUCCESS
    assert "does not begin with" in str(stranger.outcome(KEY, 0))
    assert client.verb(KEY, "COMMIT_ONE_PHASE") == ResponseCode.SUCCESS


def test_two_commits_of_one_key_are_told_apart_while_they_are_written(harness: Harness) -> None:
    client, other = Client(harness), Client(harness)
    first = client.begin(KEY)
    client.ask(RequestCode.TRANSACTION, dict(TransactionRequest(KEY, "COMMIT_ONE_PHASE").to_ext()))
    client.ask(RequestCode.TRANSACTION, dict(TransactionRequest(KEY, "BEGIN").to_ext()))
    client.ask(RequestCode.SEND, dict(SendRequest("t", 0, 0, -1, KEY).to_ext()), b"n")
    client.ask(RequestCode.TRANSACTION, dict(TransactionRequest(KEY, "COMMIT_ONE_PHASE").to_ext()))
    second = next(SendReply.from_ext(frame.ext).message_id for frame in client.peer.frames() if "msgId" in frame.ext)
    asked = [first, second]
    for message_id in asked:
        other.ask(RequestCode.TRANSACTION_OUTCOME, dict(TransactionOutcomeRequest(KEY, message_id).to_ext()))
    assert other.peer.frames() == []
    harness.threads.run()
    told = [TransactionOutcomeReply.from_ext(frame.ext).committed for frame in other.peer.frames()]
    assert told == [True, True]
    assert bodies(harness, "t", 0) == [b"m", b"n"]


def test_whoever_asks_while_the_commit_is_written_is_told_when_it_is(harness: Harness) -> None:
    client, other = Client(harness), Client(harness)
    first = client.begin(KEY)
    client.ask(RequestCode.TRANSACTION, dict(TransactionRequest(KEY, "COMMIT_ONE_PHASE").to_ext()))
    other.ask(RequestCode.TRANSACTION_OUTCOME, dict(TransactionOutcomeRequest(KEY, first).to_ext()))
    assert other.peer.frames() == []
    harness.threads.run()
    assert other.told() is True


def test_the_next_life_knows_it_from_the_log(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    client = Client(harness)
    committed, opened = client.begin("TX:s:1"), client.begin("TX:s:2")
    assert client.verb("TX:s:1", "COMMIT_ONE_PHASE") == ResponseCode.SUCCESS
    harness.store.close()  # it is killed
    again = Harness(tmp_path)
    other = Client(again)
    assert other.outcome("TX:s:1", committed) is True
    assert other.outcome("TX:s:2", opened) is False
    assert other.outcome("TX:s:3", opened + 1) is False
    assert "not known any more" in str(other.outcome("TX:s:0", committed - 1))
    again.close()


def test_what_is_older_than_the_part_of_the_log_that_is_read_is_not_known(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    client = Client(harness)
    first = client.begin(KEY)
    assert client.verb(KEY, "COMMIT_ONE_PHASE") == ResponseCode.SUCCESS
    harness.close()  # the next replay begins at the end of the log
    again = Harness(tmp_path)
    assert "not known any more" in str(Client(again).outcome(KEY, first))
    assert Client(again).outcome("TX:s:2", Client(again).begin("TX:s:3")) is False
    again.close()


def test_xa_transactions_are_asked_for_by_recover(harness: Harness) -> None:
    assert "ask by RECOVER" in str(Client(harness).outcome(XID, 1))


def test_a_leader_that_may_have_been_replaced_says_nothing(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        def refusal_now(self) -> MetaqError | None:
            return NotLeader(0)

    client = Client(harness)
    first = client.begin(KEY)
    monkeypatch.setattr(harness.broker.transactions, "_copies", Elsewhere())
    assert "does not lead" in str(client.outcome(KEY, first))
    assert client.verb(KEY, "COMMIT_ONE_PHASE") == ResponseCode.SUCCESS


def test_only_so_many_are_remembered_and_of_older_ones_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MAX_REMEMBERED", 2)
    found = Outcomes(10, {"a": 10, "b": 12})
    assert [found.ask("a", 10), found.ask("b", 12), found.ask("never", 11)] == [True, True, False]
    found.deciding("c", 20)
    found.decided("c", 20, None)
    assert [found.ask("b", 12), found.ask("c", 20), found.ask("never", 11)] == [True, True, False]
    with pytest.raises(TransactionRefused, match="not known any more"):
        found.ask("a", 10)


def test_a_commit_of_which_nobody_knows_is_unknown_to_those_who_ask() -> None:
    found = Outcomes(0, {})
    found.deciding("a", 1)
    asked = found.ask("a", 1)
    assert isinstance(asked, Deferred)
    failures: list[object] = []
    asked.addErrback(lambda failure: failures.append(failure.value))
    found.decided("a", 1, XaRefused(-7, "the log has failed"))
    assert "the log has failed" in str(failures)
