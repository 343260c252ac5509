"""What takes long of transactions is done in slices: others are served in between, and every order is kept."""

from __future__ import annotations

import pytest

from metaq.protocol.text import TransactionType
from tests.unit.broker.harness import Harness
from tests.unit.broker.test_slices import turns
from tests.unit.broker.transactions.conversation import Asker, tx


@pytest.fixture(autouse=True)
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice is one thing."""
    monkeypatch.setattr("metaq.broker.tuning.WORK_SLICE_SECONDS", 0.0)


BEGIN, ROLLBACK = TransactionType.BEGIN.name, TransactionType.ROLLBACK.name


def test_the_transactions_of_a_lost_connection_count_until_they_are_rolled_back(harness: Harness) -> None:
    lost, other = Asker(harness), Asker(harness)
    for number in range(5):
        lost.ok(tx(f"TX:s:{number}", BEGIN))
    lost.peer.lose()
    account = harness.broker.account.transactions
    assert account.used == 4
    assert "another connection" in other.refused(tx("TX:s:0", BEGIN))
    turns(harness)
    assert account.used == 0
    other.ok(tx("TX:s:0", BEGIN))


def test_one_of_a_lost_connection_that_has_ended_meanwhile_is_left_alone(harness: Harness) -> None:
    lost = Asker(harness)
    for number in range(3):
        lost.ok(tx(f"TX:s:{number}", BEGIN))
    lost.peer.lose()
    harness.broker.transactions.complete("TX:s:0", "rollback")
    turns(harness)
    other = Asker(harness)
    other.ok(tx("TX:s:0", BEGIN))
    assert harness.broker.account.transactions.used == 1
