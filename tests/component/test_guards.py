"""tests/guards/runs.py: a run of pytest in which a guard of the product is gone."""

from __future__ import annotations

import pytest

from tests.guards.runs import Reached, find, first_failure

GUARD = "protocol/properties.py:encode_value:check:0"
FILE = "tests/unit/protocol/test_properties.py"
OTHER = f"{FILE}::test_metaqs_own_properties_are_apart_from_the_users"


def test_the_first_test_that_needs_the_guard_finds_it():
    found = find(GUARD, Reached({GUARD: [OTHER, FILE]}, {}))
    assert found.test is not None
    assert found.test.startswith(FILE)
    assert found.tried == 2


def test_nobody_finds_it_when_no_test_needs_it():
    assert find(GUARD, Reached({GUARD: [OTHER]}, {})).test is None


def test_a_test_that_is_no_more_counts_as_failed():
    assert first_failure([OTHER, f"{FILE}::test_gone"]) == f"{FILE}::test_gone"
    assert first_failure(["tests/unit/protocol/test_gone.py::test_gone"]) is not None


def test_a_guard_that_is_no_more_is_an_error():
    with pytest.raises(RuntimeError, match=r"no guard protocol/properties.py:gone:check:0"):
        first_failure([OTHER], "protocol/properties.py:gone:check:0")
