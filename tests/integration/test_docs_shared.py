"""The examples of docs/messages.md about shared consumers run as they stand, one after the other, on a real cluster."""

import re
from pathlib import Path

TOPICS = {"pictures": 1}
TEXT = (Path(__file__).resolve().parents[2] / "docs" / "messages.md").read_text("utf-8")


def test_the_examples_of_the_section_run(brokers, capsys):
    (section,) = re.findall(r"^## Many consumers of one partition.*?(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    examples = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert len(examples) == 4
    names: dict[str, object] = {}
    for number, source in enumerate(examples):
        code = source.replace("localhost:2181", brokers.connect)
        exec(compile(code, f"docs/messages.md, shared example {number + 1}", "exec"), names)
    done = names["done"]
    assert isinstance(done, list)
    assert {name for name, _ in done} >= {"portrait.jpg", "archive/0.jpg", "archive/499.jpg"}
    assert capsys.readouterr().out == "b'report.docx' 3 ValueError: this is no picture\n"
