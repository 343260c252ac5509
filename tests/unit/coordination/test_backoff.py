"""Pauses between tries."""

import random

from metaq.coordination.runtime.backoff import Backoff


def test_pauses_double_up_to_the_maximum_with_jitter():
    longest = Backoff(0.1, 1.0, random=lambda: 0.0)
    assert [round(longest.next(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    shortest = Backoff(0.1, 1.0, random=lambda: 1.0)
    assert round(shortest.next(), 3) == 0.05
    longest.reset()
    assert round(longest.next(), 3) == 0.1


def test_pauses_stay_finite_after_very_many_tries():
    backoff = Backoff(0.1, 1.0, random=lambda: 0.0)
    backoff.tries = 10**6
    assert backoff.next() == 1.0


def test_pauses_differ_by_up_to_a_half():
    backoff = Backoff(1.0, 5.0, random.Random(7).random)
    pauses = [backoff.next() for _ in range(6)]
    ceilings = [1, 2, 4, 5, 5, 5]
    assert all(ceiling / 2 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings, strict=True))
    assert len(set(pauses)) == 6
