"""How commands name numbers of things and many members."""

import pytest

from metaq.cli.output import counted
from metaq.cli.shared import members_text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 messages"), (1, "1 message"), (1200, "1,200 messages"), (None, "unknown messages")]
)
def test_one_is_in_the_singular_and_what_is_not_known_is_no_number(number, text):
    assert counted(number, "message") == text


def test_members_that_have_most_come_first_and_no_more_than_five_are_named():
    members = {f"m{number}": number % 7 for number in range(16)}
    assert members_text(members) == "m13 6, m6 6, m12 5, m5 5, m11 4 and 11 more"
    assert members_text({"b": 0, "a": 0, "c": 1, "d": 0, "e": 0}) == "c 1, a 0, b 0, d 0, e 0"
    assert members_text({}) == ""
