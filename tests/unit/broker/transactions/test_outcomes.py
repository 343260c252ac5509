"""What a broker says of local transactions whose commit was not answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from metaq.broker.transactions import outcomes
from metaq.broker.transactions.outcomes import Outcomes
from metaq.protocol.errors import NotLeader, TransactionRefused, XaRefused
from metaq.protocol.frames import encode_frame
from metaq.protocol.sends import SendReply, SendRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.transaction_requests import TransactionOutcomeReply, TransactionOutcomeRequest, TransactionRequest
from tests.unit.broker.harness import Harness
from tests.unit.broker.transactions.conversation import XID, Lives, bodies

KEY = "TX:s:1"


class Client:
    """A connection that sends frames."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.peer = harness.connect()

    def ask(self, code: RequestCode, request: Any, body: bytes = b"") -> None:
        self.peer.send(encode_frame(code, 1, request.to_ext(), len(body)) + body)

    def start(self, verb: str, key: str = KEY) -> None:
        self.ask(RequestCode.TRANSACTION, TransactionRequest(key, verb))

    def ends(self, verb: str, key: str = KEY) -> int:
        """What it is answered, and when everything is written."""
        self.start(verb, key)
        self.harness.threads.run()
        (frame,) = self.peer.frames()
        return int(frame.code)

    def send(self, body: bytes, key: str = KEY) -> None:
        self.ask(RequestCode.SEND, SendRequest("t", 0, 0, -1, key), body)

    def begin(self, key: str = KEY) -> int:
        """With one message; its id."""
        assert self.ends("BEGIN", key) == ResponseCode.SUCCESS
        self.send(b"m", key)
        (frame,) = self.peer.frames()
        return SendReply.from_ext(frame.ext).message_id

    def commit(self, key: str = KEY) -> None:
        assert self.ends("COMMIT_ONE_PHASE", key) == ResponseCode.SUCCESS

    def want(self, first_id: int, key: str = KEY) -> None:
        self.ask(RequestCode.TRANSACTION_OUTCOME, TransactionOutcomeRequest(key, first_id))

    def outcome(self, first_id: int, key: str = KEY) -> bool | str:
        self.want(first_id, key)
        (told,) = self.told()
        return told

    def told(self) -> list[bool | str]:
        """Whether each was committed, or what is said instead."""
        return [
            TransactionOutcomeReply.from_ext(frame.ext).committed
            if frame.code == ResponseCode.SUCCESS
            else str(frame.remark)
            for frame in self.peer.frames()
        ]


@pytest.fixture
def client(harness: Harness) -> Client:
    return Client(harness)


@pytest.fixture
def other(harness: Harness) -> Client:
    return Client(harness)


def test_a_commit_is_remembered_and_a_rollback_is_not_one(client: Client, other: Client) -> None:
    first, second = client.begin("TX:s:1"), client.begin("TX:s:2")
    client.commit("TX:s:1")
    assert client.ends("ROLLBACK", "TX:s:2") == ResponseCode.SUCCESS
    assert (other.outcome(first, "TX:s:1"), other.outcome(second, "TX:s:2")) == (True, False)


def test_an_open_transaction_is_rolled_back_so_that_a_late_commit_changes_nothing(client, other) -> None:
    first = client.begin()
    assert other.outcome(first) is False
    assert client.ends("COMMIT_ONE_PHASE") == ResponseCode.TRANSACTION_REFUSED
    assert bodies(client.harness, "t", 0) == []
    assert other.outcome(first) is False


def test_who_does_not_know_the_first_message_ends_no_open_transaction(client: Client, other: Client) -> None:
    first = client.begin()
    for guess in (0, 1, first - 1, first + 1):
        assert "does not begin with" in str(other.outcome(guess))
    client.commit()
    assert bodies(client.harness, "t", 0) == [b"m"]
    assert "does not begin with" in str(other.outcome(first + 1))
    assert other.outcome(first) is True


def test_nobody_can_end_a_transaction_without_a_message_by_asking_for_it(client: Client, other: Client) -> None:
    assert client.ends("BEGIN") == ResponseCode.SUCCESS
    assert "does not begin with" in str(other.outcome(0))
    client.commit()


def test_two_commits_of_one_key_are_told_apart_while_they_are_written(client: Client, other: Client) -> None:
    """Whoever asks meanwhile is told when they are."""
    first = client.begin()
    client.start("COMMIT_ONE_PHASE")
    client.start("BEGIN")
    client.send(b"n")
    client.start("COMMIT_ONE_PHASE")
    second = next(SendReply.from_ext(frame.ext).message_id for frame in client.peer.frames() if "msgId" in frame.ext)
    for message_id in (first, second):
        other.want(message_id)
    assert other.told() == []
    client.harness.threads.run()
    assert other.told() == [True, True]
    assert bodies(client.harness, "t", 0) == [b"m", b"n"]


def test_the_next_life_knows_it_from_the_log(lives: Lives) -> None:
    client = Client(lives.start().harness)
    committed, opened = client.begin("TX:s:1"), client.begin("TX:s:2")
    client.commit("TX:s:1")
    lives.kill()
    other = Client(lives.start().harness)
    asked = {"TX:s:1": committed, "TX:s:2": opened, "TX:s:3": opened + 1}
    assert [other.outcome(first, key) for key, first in asked.items()] == [True, False, False]
    assert "not known any more" in str(other.outcome(committed - 1, "TX:s:0"))


def test_what_is_older_than_the_part_of_the_log_that_is_read_is_not_known(lives: Lives) -> None:
    client = Client(lives.start().harness)
    first = client.begin()
    client.commit()
    again = Client(lives.again().harness)  # its replay begins at the end of the log
    assert "not known any more" in str(again.outcome(first))
    assert again.outcome(again.begin("TX:s:3"), "TX:s:2") is False


def test_xa_transactions_are_asked_for_by_recover(client: Client) -> None:
    assert "ask by RECOVER" in str(client.outcome(1, XID))


def test_a_leader_that_may_have_been_replaced_says_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.begin()
    elsewhere = SimpleNamespace(refusal_now=lambda: NotLeader(0))
    monkeypatch.setattr(client.harness.broker.transactions, "_copies", elsewhere)
    assert "does not lead" in str(client.outcome(first))
    client.commit()


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
