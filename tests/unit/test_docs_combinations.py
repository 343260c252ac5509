"""docs/combinations.md is what is declared beside the cases; `python -m tests.integration.combinations` writes it."""

import inspect

from tests.integration.combinations.declared import PAIRS, declared
from tests.integration.combinations.page import PAGE, page


def test_the_page_of_combinations_is_that_of_the_cases() -> None:
    assert PAGE.read_text("utf-8") == page()


def test_every_pair_is_declared_once() -> None:
    assert len(PAIRS) == 78
    assert tuple(declared()) == PAIRS
    assert len({each.topic for each in declared().values()}) == 78


def test_what_works_has_two_halves_and_what_is_refused_says_why() -> None:
    for each in declared().values():
        assert inspect.isgeneratorfunction(each.case) == each.works, each
        assert each.note, each
