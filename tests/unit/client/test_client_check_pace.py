"""How fast a producer asks a broker for half messages to check."""

import pytest

from metaq.client.producer import tuning
from metaq.client.producer.check_pace import CheckPace


@pytest.mark.parametrize(
    ("each", "limit"), [(0.01, tuning.CHECK_HALVES), (0.5, 4), (tuning.CHECK_TURN_SECONDS, 1), (60.0, 1)]
)
def test_as_many_are_requested_as_are_checked_within_a_turn(each: float, limit: int) -> None:
    pace = CheckPace()
    assert pace.limit == 1
    pace.answered(each)
    assert pace.limit == limit
    pace.answered(0.0)  # an answer without half messages says nothing of their duration
    assert pace.limit == limit


def test_pauses_grow_until_the_broker_answers() -> None:
    pace = CheckPace(lambda: 0.0)
    assert [pace.failed() for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    pace.answered(0.0)
    assert pace.failed() == 0.1


def test_a_reason_is_told_once_until_the_broker_answers() -> None:
    pace = CheckPace()
    assert [pace.is_news(each) for each in ("away", "away", "full", "away")] == [True, False, True, True]
    pace.answered(0.0)
    assert pace.is_news("away")
