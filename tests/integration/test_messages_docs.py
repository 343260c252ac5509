"""The worked examples of docs/messages.md run as they stand, on a real cluster; but nobody waits for 30 minutes."""

import re
from pathlib import Path

import pytest

from tests.integration.client_cluster import running_brokers

PAGE = Path(__file__).resolve().parents[2] / "docs" / "messages.md"
SECTIONS = {
    heading: re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for heading, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
}
ORDER = "An order that is cancelled if it is not paid within 30 minutes"
TRANSFER = "A bank transfer"


@pytest.fixture(scope="module")
def connect(zookeeper, tmp_path_factory):
    connect = f"{zookeeper.connect_string}/messages"
    with running_brokers(connect, tmp_path_factory.mktemp("messages"), {"order-timeouts": 2, "transfers": 1}):
        yield connect


def run(heading, connect, changes=(), *, together=False):
    """All examples of a section, one after the other. together: the names of one are known to the next."""
    names: dict[str, object] = {}
    for number, source in enumerate(SECTIONS[heading], 1):
        for shown, real in (("localhost:2181", connect), *changes):
            source = source.replace(shown, real)
        exec(compile(source, f"docs/messages.md, {heading}, example {number}", "exec"), names if together else {})


def test_an_order_that_is_not_paid_is_cancelled(connect, capsys):
    assert len(SECTIONS[ORDER]) == 2
    run(ORDER, connect, [("PAY_WITHIN_SECONDS = 30 * 60", "PAY_WITHIN_SECONDS = 2")])
    said = capsys.readouterr().out
    assert "o-1 is paid\n" in said
    assert "o-2 was not paid: its goods go back" in said
    assert "{'o-1': 'paid', 'o-2': 'cancelled'}" in said


def test_a_transfer_is_told_of_if_it_was_booked(connect, capsys):
    assert len(SECTIONS[TRANSFER]) == 3
    run(TRANSFER, connect, together=True)
    assert capsys.readouterr().out.startswith("committed 0\n")
