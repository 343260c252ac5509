"""Pages with examples begin with the `metaq up` that makes all topics of their examples."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
UP = re.compile(r"metaq up((?:\s+--topic\s+\S+?)+)(?:\s+--setting\s+\S+)?[`\n]")
USED = re.compile(
    r"""(?:\.(?:send|send_async|produce|send_batch|send_batch_async|request)\(\s*|topics=\[?|topic=|TopicPartition\(
    |send_in_transaction\(\s*|StoredMessage\(|(?:xa|view_message|query_message)\(\[?|(?:browse|TopicBrowser)\("\S+",\ )
    "([^"]+)\"""",
    re.VERBOSE,
)


def examples(page: str) -> str:
    """Without those of a FakeBroker, which has topics of its own."""
    found = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return "".join(each for each in found if "FakeBroker" not in each)


@pytest.mark.parametrize(
    ("name", "topics"),
    [
        ("client.md", {"trades", "orders", "questions", "logs"}),
        ("messages.md", {"order-timeouts", "emails", "pictures", "transfers"}),
        ("filters.md", {"orders"}),
    ],
)
def test_the_command_at_the_head_of_a_page_makes_the_topics_of_its_examples(name, topics):
    page = (DOCS / name).read_text("utf-8")
    (up,) = UP.findall(page)
    assert page.index(up) < page.index("```python")
    assert set(re.findall(r"--topic\s+([^\s:]+)", up)) == set(USED.findall(examples(page))) == topics
